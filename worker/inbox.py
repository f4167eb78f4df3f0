"""What came in from the proxy since the last turn. Whatever can't be read is counted and dropped."""

from shared.channel import DealerChannel
from shared.codec import decode
from shared.errors import FrameError
from shared.logs import Logger
from shared.messages import Message


class Inbox:
    """Reads frames of this life of the process; those of another epoch are a zombie's and are ignored."""

    def __init__(self, channel: DealerChannel, epoch: int, log: Logger) -> None:
        self._channel = channel
        self._epoch = epoch
        self._log = log
        self.malformed = 0
        self.foreign = 0

    def drain(self) -> list[Message]:
        """Return what is here, without waiting."""
        messages = (self._read(frame) for frame in self._channel.drain())
        return [message for message in messages if message is not None]

    def wait(self, timeout_s: float) -> None:
        """Sleep until something is here, or the time is over."""
        self._channel.wait(timeout_s)

    def _read(self, frame: bytes) -> Message | None:
        try:
            message = decode(frame)
        except FrameError as problem:
            self.malformed += 1
            self._log.warning("dropped a frame", problem=str(problem), dropped=self.malformed)
            return None
        if message.epoch != self._epoch:
            self.foreign += 1
            return None
        return message
