"""Messages to bytes and back: msgpack arrays, checked field by field against the dataclass.

A frame is `[PROTOCOL_VERSION, kind, field, field, …]`; nested records are arrays of their fields. Whatever
bytes come in, `decode` returns a message whose types and bounds hold, or raises FrameError. It reads a frame
as the message's fields prescribe, piece by piece, so it never builds a structure that no message has: a
frame of sixteen million empty lists costs nothing.
"""

import math
import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgpack

from shared.errors import FrameError
from shared.limits import (
    CONTEXT_TOKENS_MAX,
    FRAME_BYTES_MAX,
    GRAMMAR_CHARS_MAX,
    RECORDS_MAX,
    TEXT_CHARS_MAX,
    CharsMax,
)
from shared.messages import (
    PROTOCOL_VERSION,
    BackingOff,
    Cancel,
    Exited,
    Failed,
    Finished,
    Hello,
    Message,
    Park,
    Parked,
    Ping,
    Prefixes,
    Progress,
    Restart,
    Starting,
    Step,
    Stop,
    Submit,
)

# A kind's number is part of the protocol: append, never reorder.
_KINDS: Final[dict[int, type[Message]]] = {
    1: Submit,
    2: Cancel,
    3: Ping,
    4: Hello,
    5: Step,
    6: Finished,
    7: Failed,
    8: Progress,
    9: Starting,
    10: Exited,
    11: BackingOff,
    12: Park,
    13: Parked,
    14: Restart,
    15: Stop,
    16: Prefixes,
}
_NUMBERS: Final = {kind: number for number, kind in _KINDS.items()}

_BYTES_A_CHAR: Final = 4
_LONGEST_TEXT_CHARS: Final = max(TEXT_CHARS_MAX, GRAMMAR_CHARS_MAX)
_FIRST_BUFFER_BYTES: Final = 1024

Reader = Callable[[msgpack.Unpacker], Any]


def encode(message: Message) -> bytes:
    """Return the frame of a message, ValueError if it is over FRAME_BYTES_MAX."""
    frame = msgpack.packb([PROTOCOL_VERSION, _NUMBERS[type(message)], *_flatten(message)], use_bin_type=True)
    if len(frame) > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {len(frame)} bytes exceeds {FRAME_BYTES_MAX}")
    return bytes(frame)


def decode(frame: bytes) -> Message:
    """Return the message in a frame; raise FrameError on anything else."""
    if len(frame) > FRAME_BYTES_MAX:
        raise FrameError(f"a frame of {len(frame)} bytes exceeds {FRAME_BYTES_MAX}")
    source = _open(frame)
    try:
        message = _read_message(source)
    except (ValueError, msgpack.UnpackException) as problem:
        raise FrameError(f"not a frame: {type(problem).__name__}") from problem
    if source.tell() != len(frame):
        raise FrameError("bytes after the end")
    return message


def _read_message(source: msgpack.Unpacker) -> Message:
    parts = source.read_array_header()
    version = _read_int(source)
    if version != PROTOCOL_VERSION:
        raise FrameError(f"protocol version {version}, not {PROTOCOL_VERSION}")
    number = _read_int(source)
    if number not in _KINDS:
        raise FrameError(f"unknown kind {number}")
    message: Message = _RECORDS[_KINDS[number]].read(source, parts - 2)
    return message


def _flatten(record: Any) -> list[Any]:
    return [_plain(getattr(record, field.name)) for field in fields(record)]


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return _flatten(value)
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return [_flatten(item) for item in value]
    return value


def _open(frame: bytes) -> msgpack.Unpacker:
    """Return what unpacks the frame's numbers and short texts; arrays are opened by their readers only."""
    source = msgpack.Unpacker(
        read_size=_FIRST_BUFFER_BYTES,
        max_buffer_size=FRAME_BYTES_MAX,
        max_str_len=_LONGEST_TEXT_CHARS * _BYTES_A_CHAR,
        max_array_len=0,
        max_bin_len=0,
        max_map_len=0,
        max_ext_len=0,
    )
    source.feed(frame)
    return source


# --- readers: one for each annotation, built once at import -----------------------------------------------


@dataclass(frozen=True, slots=True)
class _Record:
    """Reads an array of fields into one dataclass."""

    kind: Callable[..., Any]
    readers: tuple[Reader, ...]

    def __call__(self, source: msgpack.Unpacker) -> Any:
        return self.read(source, source.read_array_header())

    def read(self, source: msgpack.Unpacker, parts: int) -> Any:
        if parts != len(self.readers):
            raise FrameError(f"{parts} fields, not {len(self.readers)}")
        values = [read(source) for read in self.readers]
        try:
            return self.kind(*values)
        except ValueError as problem:
            raise FrameError(str(problem)) from problem


def _read_int(source: msgpack.Unpacker) -> int:
    value = source.unpack()
    if type(value) is not int:
        raise FrameError("not an integer")
    return value


def _read_bool(source: msgpack.Unpacker) -> bool:
    value = source.unpack()
    if type(value) is not bool:
        raise FrameError("not a boolean")
    return value


def _read_float(source: msgpack.Unpacker) -> float:
    value = source.unpack()
    if type(value) not in (int, float) or not math.isfinite(value):
        raise FrameError("not a finite number")
    return float(value)


def _text_reader(chars_max: int) -> Reader:
    def read(source: msgpack.Unpacker) -> str:
        value = source.unpack()
        if type(value) is not str or len(value) > chars_max:
            raise FrameError(f"not a string of at most {chars_max} characters")
        return value

    return read


def _read_ints(source: msgpack.Unpacker) -> tuple[int, ...]:
    unpack = source.unpack
    values = [unpack() for _ in range(_read_length(source, CONTEXT_TOKENS_MAX))]
    if not set(map(type, values)) <= {int}:
        raise FrameError("not a list of integers")
    return tuple(values)


def _read_length(source: msgpack.Unpacker, longest: int) -> int:
    length: int = source.read_array_header()
    if length > longest:
        raise FrameError(f"a list of {length}, which is over {longest}")
    return length


def _tuple_reader(item: Reader) -> Reader:
    def read(source: msgpack.Unpacker) -> tuple[Any, ...]:
        return tuple(item(source) for _ in range(_read_length(source, RECORDS_MAX)))

    return read


def _literal_reader(allowed: tuple[Any, ...]) -> Reader:
    def read(source: msgpack.Unpacker) -> Any:
        value = source.unpack()
        if type(value) is not str or value not in allowed:
            raise FrameError(f"not one of {allowed}")
        return value

    return read


_PLAIN_READERS: Final[dict[Any, Reader]] = {
    int: _read_int,
    bool: _read_bool,
    float: _read_float,
    str: _text_reader(TEXT_CHARS_MAX),
}


def _reader_of(annotation: Any) -> Reader:
    if annotation in _PLAIN_READERS:
        return _PLAIN_READERS[annotation]
    if get_origin(annotation) is Annotated:
        kind, chars_max = get_args(annotation)
        assert kind is str
        assert isinstance(chars_max, CharsMax), f"the codec has no reader for {annotation}"
        assert chars_max.chars <= _LONGEST_TEXT_CHARS
        return _text_reader(chars_max.chars)
    if get_origin(annotation) is Literal:
        return _literal_reader(get_args(annotation))
    if get_origin(annotation) is tuple:
        item = get_args(annotation)[0]
        return _read_ints if item is int else _tuple_reader(_reader_of(item))
    assert is_dataclass(annotation), f"the codec has no reader for {annotation}"
    return _record_of(annotation)


def _record_of(kind: Any) -> _Record:
    hints = get_type_hints(kind, include_extras=True)
    return _Record(kind, tuple(_reader_of(hints[field.name]) for field in fields(kind)))


_RECORDS: Final = types.MappingProxyType({kind: _record_of(kind) for kind in _KINDS.values()})
