"""What the worker says to the proxy: one Step for all rows and what was prefilled, and ends of sequences."""

from collections.abc import Sequence as Seq
from dataclasses import replace

from shared.channel import DealerChannel
from shared.codec import encode
from shared.limits import PREFIX_NEWS_MAX
from shared.messages import (
    Failed,
    Finished,
    Message,
    Parked,
    PrefillShare,
    Prefixes,
    RowLogprobs,
    Step,
    StepRow,
)
from worker.engine.batch_engine import StepResult
from worker.plan import Chunk
from worker.scheduler import Broke, Emitted, Ended, Outcome
from worker.sequence import Sequence


class Outbox:
    """Sends without waiting. What no proxy is there to read is dropped: it will ask again by resubmitting."""

    def __init__(self, channel: DealerChannel, epoch: int) -> None:
        self._channel = channel
        self._epoch = epoch
        self.dropped = 0
        self._prefills: list[PrefillShare] = []

    def send(self, message: Message) -> bool:
        """Hand a message over; False if it was dropped."""
        was_sent = self._channel.send(encode(message))
        self.dropped += not was_sent
        return was_sent

    def note_prefills(self, chunks: Seq[Chunk], shares_ms: Seq[float]) -> None:
        """Keep what was prefilled, and the milliseconds each chunk took, for the next Step."""
        for chunk, gpu_ms in zip(chunks, shares_ms, strict=True):
            sequence = chunk.sequence
            cached = sequence.cached if chunk.start == sequence.cached else 0
            share = PrefillShare(sequence.name, sequence.attempt, chunk.tokens, gpu_ms, cached)
            self._prefills.append(share)

    def note_begun(self, sequence: Sequence) -> None:
        """Keep for the next Step that everything was there already, if so: else its first chunk tells it."""
        if sequence.cached and not sequence.to_prefill:
            share = PrefillShare(sequence.name, sequence.attempt, 0, 0.0, sequence.cached)
            self._prefills.append(share)

    def send_prefills(self, step: int) -> None:
        """Tell what is kept in a Step without rows, if no Step has told it since."""
        self._send_step(step, 0.0, 0.0, ())

    def send_step(self, step: int, result: StepResult, outcomes: Seq[Outcome]) -> None:
        """Tell all rows' tokens in one message, then who has ended."""
        emitted = [outcome for outcome in outcomes if isinstance(outcome, Emitted)]
        rows = tuple(
            StepRow(outcome.sequence.name, outcome.sequence.attempt, outcome.index, outcome.token)
            for outcome in emitted
        )
        logprobs = _of_emitted(result, emitted)
        self._send_step(step, result.elapsed_ms, result.elapsed_ms / len(result.rows), rows, logprobs)
        for outcome in outcomes:
            if isinstance(outcome, Ended):
                self.send_finished(outcome)
            elif isinstance(outcome, Broke):
                self.send_failed(outcome.sequence, outcome.problem)

    def send_finished(self, ended: Ended) -> None:
        """Tell that a sequence has ended by itself."""
        sequence = ended.sequence
        self.send(Finished(self._epoch, sequence.name, sequence.attempt, ended.index, ended.reason))

    def send_prefixes(self, added: Seq[int], gone: Seq[int]) -> None:
        """Tell which blocks of prompts are kept from now on, and which no more."""
        for first in range(0, max(len(added), len(gone)), PREFIX_NEWS_MAX):
            past = first + PREFIX_NEWS_MAX
            self.send(Prefixes(self._epoch, tuple(added[first:past]), tuple(gone[first:past])))

    def send_parked(self, sequence: Sequence) -> None:
        """Tell that a sequence gave up its row behind the tokens that were sent."""
        self.send(Parked(self._epoch, sequence.name, sequence.attempt, sequence.settled))

    def send_failed(self, sequence: Sequence, message: str) -> None:
        self.send(Failed(self._epoch, sequence.name, sequence.attempt, message))

    def _send_step(
        self,
        step: int,
        step_ms: float,
        row_ms: float,
        rows: tuple[StepRow, ...],
        logprobs: tuple[RowLogprobs, ...] = (),
    ) -> None:
        prefills, self._prefills = tuple(self._prefills), []
        if rows or prefills:
            self.send(Step(self._epoch, step, step_ms, row_ms, rows, prefills, logprobs))


def _of_emitted(result: StepResult, emitted: Seq[Emitted]) -> tuple[RowLogprobs, ...]:
    """Return the log probabilities of tokens that are sent, each at its token's place among these."""
    if not result.logprobs:
        return ()
    places = {outcome.sequence: place for place, outcome in enumerate(emitted)}
    return tuple(
        replace(each, place=places[row])
        for each in result.logprobs
        if (row := result.rows[each.place]) in places
    )
