"""An answer's bytes as they come, for any number of listeners: each hears all of it from the beginning."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from shared.errors import Refusal

_TAKEN_BYTES_MAX: Final = 64 * 1024


class RunBrokeError(Exception):
    """The run behind a recording ended by an error that nobody foresaw, which is this one's cause."""


class Recording:
    """Written by one run, and read by listeners.

    `streams` says whether it is an event stream, once that is known. `spoiled` is set when what was written
    ends with an error; `error` is what the run failed by before it wrote anything. `forgotten` is set when
    nobody new can come to listen. `grew` is told of each write's length; `gathered_bytes` returns, roughly,
    what the run holds beside it, to be written at once.
    """

    def __init__(self) -> None:
        self.grew: Callable[[int], None] = _ignore
        self.gathered_bytes: Callable[[], int] = int
        self.forgotten = False
        self.streams = False
        self.lane = ""
        self.spoiled = False
        self.ended = False
        self.error: BaseException | None = None
        self._bytes: bytearray | bytes = bytearray()
        self._begins_at = 0
        self._listeners: set[Listener] = set()
        self._news = asyncio.Event()

    def __len__(self) -> int:
        """Return how many bytes were written."""
        return self._begins_at + len(self._bytes)

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    @property
    def unwritten_bytes(self) -> int:
        """Return each listener's part of what is gathered and not written yet."""
        return self.gathered_bytes() // max(1, len(self._listeners))

    @property
    def is_whole(self) -> bool:
        """Whether it still has its beginning."""
        return self._begins_at == 0

    def write(self, blocks: bytes) -> None:
        assert isinstance(self._bytes, bytearray), "nothing is written after the end"
        self._bytes += blocks
        self.grew(len(blocks))
        self._tell()

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more comes; `error` says why, if the run failed."""
        self.error = error
        self.ended = True
        if self.is_whole:
            self._bytes = bytes(self._bytes)
        self._tell()

    def listen(self) -> "Listener":
        """Return one that hears it from the beginning; enter it."""
        assert self.is_whole, "its beginning is gone"
        return Listener(self)

    def trim(self) -> None:
        """Let go of what all listeners have taken: nobody can listen from the beginning any more."""
        assert isinstance(self._bytes, bytearray), "after the end it stays as it is"
        taken = min((listener.position for listener in self._listeners), default=len(self))
        # Deleting at the front moves nothing: this is done at each write, and the rest may be megabytes.
        del self._bytes[: taken - self._begins_at]
        self._begins_at = taken

    def came(self, listener: "Listener") -> None:
        self._listeners.add(listener)

    def left(self, listener: "Listener") -> None:
        self._listeners.discard(listener)

    def after(self, position: int) -> bytes:
        """Return some of what comes after a position; nothing if it's all there is so far."""
        start = position - self._begins_at
        return bytes(self._bytes[start : start + _TAKEN_BYTES_MAX])

    async def news(self, within_s: float) -> bool:
        """Wait until more was written, or it ended; False if neither happened in this time."""
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class Listener:
    """One client's place in a recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.position = 0

    def __enter__(self) -> Self:
        self.recording.came(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.recording.left(self)

    @property
    def behind_bytes(self) -> int:
        """How much is there that this one hasn't taken."""
        return len(self.recording) - self.position

    def take(self) -> bytes:
        """Return the next bytes, at most 64 KiB of them; none if it has taken all that there is."""
        blocks = self.recording.after(self.position)
        self.position += len(blocks)
        return blocks

    def raise_error(self) -> None:
        """Raise what the run failed by, if it did."""
        error = self.recording.error
        if isinstance(error, Refusal):
            raise afresh(error)
        if error is not None:
            raise RunBrokeError("the run of this answer broke") from error


def _ignore(_length: int) -> None:
    pass


def afresh(refusal: Refusal) -> Refusal:
    """Return a refusal that says the same and holds on to nothing: one that was raised keeps its frames."""
    copy = type(refusal).__new__(type(refusal), *refusal.args)
    copy.__dict__.update(refusal.__dict__)
    return copy
