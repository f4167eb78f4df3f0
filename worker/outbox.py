"""What the worker says to the proxy: one Step for all rows, and the ends of sequences."""

from collections.abc import Sequence as Seq

from shared.channel import DealerChannel
from shared.codec import encode
from shared.messages import Failed, Finished, Message, Step, StepRow
from worker.scheduler import Emitted, Ended
from worker.sequence import Sequence


class Outbox:
    """Sends without waiting. What no proxy is there to read is dropped: it will ask again by resubmitting."""

    def __init__(self, channel: DealerChannel, epoch: int) -> None:
        self._channel = channel
        self._epoch = epoch
        self.dropped = 0

    def send(self, message: Message) -> None:
        if not self._channel.send(encode(message)):
            self.dropped += 1

    def send_step(self, step: int, step_ms: float, outcomes: Seq[Emitted | Ended]) -> None:
        """Tell all rows' tokens in one message, then who has ended."""
        rows = tuple(
            StepRow(outcome.sequence.name, outcome.sequence.attempt, outcome.index, outcome.token)
            for outcome in outcomes
            if isinstance(outcome, Emitted)
        )
        if rows:
            self.send(Step(self._epoch, step, step_ms, rows))
        for outcome in outcomes:
            if isinstance(outcome, Ended):
                sequence = outcome.sequence
                finished = Finished(
                    self._epoch, sequence.name, sequence.attempt, outcome.index, outcome.reason
                )
                self.send(finished)

    def send_failed(self, sequence: Sequence, message: str) -> None:
        self.send(Failed(self._epoch, sequence.name, sequence.attempt, message))
