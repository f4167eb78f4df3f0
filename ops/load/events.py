"""Server-sent events of an answer, however the bytes are cut, and how much text one of them brings."""

import json
from collections.abc import Iterator
from typing import Any, Final

from shared.limits import MIB

_UNREAD_BYTES_MAX: Final = 4 * MIB
_DONE: Final = b"[DONE]"


class EventStream:
    """Bytes in, events out; what isn't whole waits. Comments and other fields than data are passed over."""

    def __init__(self) -> None:
        self._unread = b""

    def feed(self, data: bytes) -> Iterator[dict[str, Any] | None]:
        """Yield each event that is whole now, None for the [DONE] at the end.

        Raises ValueError for what is no JSON object, and for an event without an end.
        """
        unread = (self._unread + data).replace(b"\r\n", b"\n")
        *blocks, self._unread = unread.split(b"\n\n")
        if len(self._unread) > _UNREAD_BYTES_MAX:
            raise ValueError("an event of the stream never ends")
        for block in blocks:
            lines = [line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield _read(b"\n".join(lines))


def _read(data: bytes) -> dict[str, Any] | None:
    if data == _DONE:
        return None
    event = json.loads(data)
    if not isinstance(event, dict):
        raise ValueError("an event is no object")  # noqa: TRY004 (what a server sent, not what a caller gave)
    return event


def piece_chars(delta: dict[str, Any]) -> int:
    """Return how many characters a piece of an answer has: of text, of thoughts, or of a tool's arguments."""
    texts = [delta.get(name) for name in ("content", "reasoning_content", "reasoning")]
    texts += [(call.get("function") or {}).get("arguments") for call in delta.get("tool_calls") or ()]
    # Servers that know both names of thoughts send the same text under each.
    if texts[1] and texts[2]:
        texts[2] = None
    return sum(len(text) for text in texts if isinstance(text, str))
