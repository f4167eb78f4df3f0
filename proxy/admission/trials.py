"""Who is suspected of having killed the worker, and the trial: to run alone past the point of death.

Suspicion is of a fingerprint (what is asked, not who asks): a request that is sent again is the same one. A
suspect that gets past the point is cleared; one that kills the worker again, alone, is guilty. So a killer
kills twice, and who merely ran beside it is never convicted.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from proxy.admission.answer import Answer, Standing

# What runs beside a suspect may go on for so long; then it is parked for the trial.
TRIAL_WAIT_S: Final = 5.0
# A trial that takes longer is adjourned for as long, if others wait: who is tried keeps what it has.
TRIAL_S_MAX: Final = 20.0
_REMEMBERED_MAX: Final = 1024
_REMEMBERED_S: Final = 3600.0
# The token at the point of death, and one more: a step is launched before the one before it is read.
_PAST_TOKENS: Final = 2


@dataclass(frozen=True, slots=True)
class _Suspicion:
    passes_at: int
    until: float


@dataclass(slots=True)
class Trials:
    """`waiting` are suspects that wait for their trial, by name; `on_trial` is the one that runs alone.

    It still waits while what ran beside it goes.
    `tried` are the names of those that were on trial and haven't passed: the client of one may leave, words
    may get lost, and another trial begin, before it is known that the worker has died of it.
    """

    waiting: dict[str, Answer] = field(default_factory=dict)
    on_trial: Answer | None = None
    tried: OrderedDict[str, None] = field(default_factory=OrderedDict)
    due_at: float = 0.0
    _suspicions: OrderedDict[str, _Suspicion] = field(default_factory=OrderedDict)

    def suspects(self, answer: Answer, now: float) -> bool:
        """Whether an answer may not run beside others."""
        suspicion = self._suspicions.get(answer.newcomer.fingerprint)
        return suspicion is not None and now < suspicion.until

    def wait(self, answer: Answer, now: float) -> None:
        """Have a suspect wait for its trial, which is due a little later: others may be done by then."""
        if not self.waiting:
            self.due_at = max(self.due_at, now + TRIAL_WAIT_S)
        self.waiting[answer.name] = answer

    def worker_came(self, now: float) -> None:
        """Begin anew with a worker that runs nothing: nobody is on trial, and others may go first."""
        self.on_trial = None
        self.due_at = now + TRIAL_WAIT_S

    def began(self, answer: Answer) -> None:
        """Take note that a trial is under way."""
        self.tried[answer.name] = None
        while len(self.tried) > _REMEMBERED_MAX:
            self.tried.popitem(last=False)

    def overstays(self, now: float) -> bool:
        """Whether the one on trial has had its time. Its prefill is left to end: it would begin anew."""
        tried = self.on_trial
        if tried is None or tried.emitted == tried.emitted_at_start:
            return False
        return now - tried.started_at >= TRIAL_S_MAX

    def adjourn(self, now: float) -> None:
        """Let others go on for a while before the next trial."""
        self.due_at = now + TRIAL_S_MAX

    def in_order(self) -> Iterator[Answer]:
        """Yield who waits: those that ran before first, then by arrival."""
        yield from sorted(self.waiting.values(), key=lambda answer: (answer.starts == 0, answer.number))

    # --- verdicts -----------------------------------------------------------------------------------------

    def died(self, ran: Mapping[str, tuple[str, int]], now: float, *, alone: bool) -> str | None:
        """Take note of who ran in the step in which the worker died; return the fingerprint of the guilty.

        By name: a fingerprint, and the index of the token that was to be made next. `alone` says that the
        step had one row only: else what was to be gone for the trial still ran, and the trial says nothing.
        """
        for name, (fingerprint, index) in ran.items():
            if alone and name in self.tried and fingerprint in self._suspicions:
                self._suspicions.pop(fingerprint, None)
                return fingerprint
            self._suspect(fingerprint, index + _PAST_TOKENS, now)
        return None

    def _suspect(self, fingerprint: str, passes_at: int, now: float) -> None:
        known = self._suspicions.pop(fingerprint, None)
        most = passes_at if known is None else max(passes_at, known.passes_at)
        self._suspicions[fingerprint] = _Suspicion(most, now + _REMEMBERED_S)
        while len(self._suspicions) > _REMEMBERED_MAX:
            self._suspicions.popitem(last=False)

    def has_passed(self) -> bool:
        """Whether the one on trial is past the point of death."""
        tried = self.on_trial
        if tried is None or tried.standing is not Standing.RUNNING:
            return False
        suspicion = self._suspicions.get(tried.newcomer.fingerprint)
        return suspicion is None or tried.emitted >= suspicion.passes_at

    def acquit(self) -> Collection[Answer]:
        """Clear the one on trial; return those like it, which needn't wait for one any more."""
        assert self.on_trial is not None, "nobody is on trial"
        name, fingerprint = self.on_trial.name, self.on_trial.newcomer.fingerprint
        self.on_trial = None
        self.tried.pop(name, None)
        self._suspicions.pop(fingerprint, None)
        return [each for each in self.waiting.values() if each.newcomer.fingerprint == fingerprint]
