"""Messages to bytes and back: msgpack arrays, checked field by field against the dataclass.

A frame is `[PROTOCOL_VERSION, kind, field, field, …]`; nested records are arrays of their fields. Whatever
bytes come in, `decode` returns a message whose types and bounds hold, or raises FrameError.
"""

import math
import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgpack

from shared.errors import FrameError
from shared.limits import CONTEXT_TOKENS_MAX, FRAME_BYTES_MAX, TEXT_CHARS_MAX
from shared.messages import (
    PROTOCOL_VERSION,
    BackingOff,
    Cancel,
    Exited,
    Failed,
    Finished,
    Hello,
    Message,
    Ping,
    Progress,
    Starting,
    Step,
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
}
_NUMBERS: Final = {kind: number for number, kind in _KINDS.items()}

Reader = Callable[[Any], Any]


def encode(message: Message) -> bytes:
    """Return the frame of a message, ValueError if it is over FRAME_BYTES_MAX."""
    frame = msgpack.packb([PROTOCOL_VERSION, _NUMBERS[type(message)], *_flatten(message)], use_bin_type=True)
    if len(frame) > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {len(frame)} bytes exceeds {FRAME_BYTES_MAX}")
    return bytes(frame)


def decode(frame: bytes) -> Message:
    """Return the message in a frame; raise FrameError on anything else."""
    parts = _unpack(frame)
    if len(parts) < 2 or parts[0] != PROTOCOL_VERSION:
        raise FrameError(f"protocol version {parts[0] if parts else None!r}, not {PROTOCOL_VERSION}")
    kind = _KINDS.get(parts[1]) if type(parts[1]) is int else None
    if kind is None:
        raise FrameError(f"unknown kind {parts[1]!r}")
    message: Message = _RECORDS[kind](parts[2:])
    return message


def _flatten(record: Any) -> list[Any]:
    return [_plain(getattr(record, field.name)) for field in fields(record)]


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return _flatten(value)
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return [_flatten(item) for item in value]
    return value


def _unpack(frame: bytes) -> list[Any]:
    if len(frame) > FRAME_BYTES_MAX:
        raise FrameError(f"a frame of {len(frame)} bytes exceeds {FRAME_BYTES_MAX}")
    try:
        parts = msgpack.unpackb(
            frame,
            max_str_len=TEXT_CHARS_MAX * 4,
            max_array_len=CONTEXT_TOKENS_MAX,
            max_bin_len=0,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException) as problem:
        raise FrameError(f"not msgpack: {type(problem).__name__}") from problem
    if not isinstance(parts, list):
        raise FrameError("not an array")
    return parts


# --- readers: one for each annotation, built once at import -----------------------------------------------


@dataclass(frozen=True, slots=True)
class _Record:
    """Reads an array of fields into one dataclass."""

    kind: Callable[..., Any]
    readers: tuple[Reader, ...]

    def __call__(self, parts: Any) -> Any:
        if not isinstance(parts, list) or len(parts) != len(self.readers):
            raise FrameError("wrong number of fields")
        try:
            return self.kind(*(read(part) for read, part in zip(self.readers, parts, strict=True)))
        except ValueError as problem:
            raise FrameError(str(problem)) from problem


def _read_int(value: Any) -> int:
    if type(value) is not int:
        raise FrameError("not an integer")
    return value


def _read_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise FrameError("not a boolean")
    return value


def _read_float(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise FrameError("not a finite number")
    return float(value)


def _read_str(value: Any) -> str:
    if type(value) is not str or len(value) > TEXT_CHARS_MAX:
        raise FrameError("not a short string")
    return value


def _read_ints(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise FrameError("not a list of integers")
    return tuple(value)


def _tuple_reader(item: Reader) -> Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise FrameError("not a list")
        return tuple(item(part) for part in value)

    return read


def _literal_reader(allowed: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not str or value not in allowed:
            raise FrameError(f"not one of {allowed}")
        return value

    return read


_PLAIN_READERS: Final[dict[Any, Reader]] = {
    int: _read_int,
    bool: _read_bool,
    float: _read_float,
    str: _read_str,
}


def _reader_of(annotation: Any) -> Reader:
    if annotation in _PLAIN_READERS:
        return _PLAIN_READERS[annotation]
    if get_origin(annotation) is Literal:
        return _literal_reader(get_args(annotation))
    if get_origin(annotation) is tuple:
        item = get_args(annotation)[0]
        return _read_ints if item is int else _tuple_reader(_reader_of(item))
    assert is_dataclass(annotation), f"the codec has no reader for {annotation}"
    return _record_of(annotation)


def _record_of(kind: Any) -> _Record:
    hints = get_type_hints(kind)
    return _Record(kind, tuple(_reader_of(hints[field.name]) for field in fields(kind)))


_RECORDS: Final = types.MappingProxyType({kind: _record_of(kind) for kind in _KINDS.values()})
