"""The false worker: the real scheduler, with a cost model and counted tokens in place of a model."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from shared.messages import Cancel, Park, Submit
from tests.simulation.costs import Costs
from worker.plan import Chunk, Plan, StepTimes
from worker.scheduler import Emitted, Ended, Scheduler
from worker.sequence import Sequence

STOP = 0
_TOKENS_DIFFERENT = 1000


def token_at(index: int) -> int:
    """Return the token that every answer has at an index: a lost or a doubled one shows."""
    return 1 + index % _TOKENS_DIFFERENT


@dataclass(slots=True)
class Report:
    """What the proxy hears at a turn's end; `firsts` are tokens that prefill brought, ahead of the step."""

    step_ms: float = 0.0
    rows: int = 0
    firsts: list[Emitted] = field(default_factory=list)
    emitted: list[Emitted] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    parked: list[Sequence] = field(default_factory=list)
    chunks: tuple[Chunk, ...] = ()


class Device:
    """One life of the worker. A turn takes its time between `begin` and `end`; words meanwhile wait."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._times = StepTimes(costs.prefill_ms(1), costs.decode_ms(1))
        self._scheduler = Scheduler(costs.slots, self._times, prefills_last=True)
        self._inbox: list[Submit | Cancel | Park] = []
        self._report = Report()
        self._plan: Plan | None = None

    def hear(self, word: Submit | Cancel | Park) -> None:
        self._inbox.append(word)

    def begin(self, now: float) -> float:
        """Take in what was said, and plan a turn; return its milliseconds, 0 if there is nothing to do."""
        self._report = Report()
        for word in self._inbox:
            self._take(word, now)
        self._inbox.clear()
        for sequence in self._scheduler.beginning():
            sequence.begin(0)
        self._plan = plan = self._scheduler.plan(now)
        if plan.idle:
            return 0.0
        rows_ms = self._costs.decode_ms(len(plan.rows))
        return rows_ms + self._costs.prefill_ms(sum(chunk.tokens for chunk in plan.chunks))

    def end(self) -> Report:
        """Return what is to be told of the turn that began."""
        plan, report = self._plan, self._report
        assert plan is not None
        if plan.chunks:
            report.chunks = plan.chunks
            prefill_ms = self._costs.prefill_ms(sum(chunk.tokens for chunk in plan.chunks))
            self._times.prefilled(plan.chunks, prefill_ms)
            firsts = [chunk.sequence for chunk in plan.chunks if chunk.brings_token]
            self._settle(firsts, report.firsts)
        rows = self._scheduler.still_in(plan)
        if rows:
            report.rows, report.step_ms = len(rows), self._costs.decode_ms(len(rows))
            self._times.decoded(report.rows, report.step_ms)
            self._settle(rows, report.emitted)
        return report

    def _settle(self, rows: Seq[Sequence], emitted: list[Emitted]) -> None:
        for outcome in self._scheduler.settle(rows, _tokens(rows)):
            if isinstance(outcome, Emitted):
                emitted.append(outcome)
            else:
                assert isinstance(outcome, Ended), "nothing has a grammar"
                self._report.ended.append(outcome)

    @property
    def has_turn(self) -> bool:
        """Whether a turn has begun, ever."""
        return self._plan is not None

    @property
    def manifest(self) -> dict[str, int]:
        """Who is in the turn under way, and the index of the token that each is to get next."""
        assert self._plan is not None
        chunks = [chunk.sequence for chunk in self._plan.chunks]
        return {sequence.name: sequence.settled for sequence in (*chunks, *self._plan.rows)}

    @property
    def waits(self) -> bool:
        """Whether something was said that no turn has taken in."""
        return bool(self._inbox)

    @property
    def busy(self) -> bool:
        return self._scheduler.busy

    def _take(self, word: Submit | Cancel | Park, now: float) -> None:
        if isinstance(word, Submit):
            # The park or the end that frees its row was said before it.
            assert len(self._scheduler.names) < self._costs.slots, f"no row is free for {word.sequence}"
            self._scheduler.submit(Sequence.of(word, now))
        elif isinstance(word, Cancel):
            self._scheduler.cancel(word.sequence)
        else:
            sequence = self._scheduler.park(word.sequence)
            if sequence is not None:
                self._report.parked.append(sequence)


def _tokens(rows: Seq[Sequence]) -> list[int]:
    """Return each row's next token. Its sampling's seed says how long the answer is."""
    return [STOP if row.settled == row.sampling.seed else token_at(row.settled) for row in rows]
