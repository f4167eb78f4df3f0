"""One answer in the making, as the worker sees it: ids to prefill, then tokens one by one."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from shared.messages import Submit
from shared.prefix_chain import keys_of, root_key
from shared.sampling import Sampling
from worker.grammar import Guide


class Phase(Enum):
    """Where a sequence stands. It only moves downward."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    GONE = "gone"


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable, and changed by the scheduler only.

    `ids` are the prompt and what was emitted before. Where it `prefills_last`, prefill brings the answer's
    next token with it. Otherwise, and where nothing but the last id is left to do, that is the input of the
    first decode step. `launched` and `settled` count tokens of the answer: those a step, or such a prefill,
    was launched for, and those that were read back. `rank` is its lane's place, 0 for the first, and
    `quantum_ms` what one piece of its prefill may take. Of the answer, `emitted` tokens are among the ids.

    `begun` says that its prefill has: its first `cached` tokens were there already, kept from prompts of the
    same `salt`. `said` are the tokens that were read for it since, with the one that ended it. Prefill stops
    at each of its `checkpoints`, counts of tokens behind which its state is kept.

    Where its answer has a grammar, `guide` is its place in it. Until that is made it `awaits_guide`, and
    can't begin.
    """

    name: str
    attempt: int
    ids: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    stop_ids: frozenset[int]
    launched: int
    settled: int
    submitted_at: float
    rank: int
    quantum_ms: float
    prefilled: int = 0
    phase: Phase = field(default=Phase.WAITING)
    emitted: int = 0
    salt: str = ""
    begun: bool = False
    cached: int = 0
    said: list[int] = field(default_factory=list)
    checkpoints: tuple[int, ...] = ()
    prefills_last: bool = False
    guide: Guide | None = None
    awaits_guide: bool = False
    _keys: list[bytes] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, submit: Submit, now: float) -> Self:
        """Make a sequence that goes on after the tokens it has emitted already."""
        emitted = len(submit.emitted_ids)
        return cls(
            name=submit.sequence,
            attempt=submit.attempt,
            ids=submit.prompt_ids + submit.emitted_ids,
            sampling=submit.sampling,
            max_tokens=submit.max_tokens,
            stop_ids=frozenset(submit.stop_ids),
            launched=emitted,
            settled=emitted,
            submitted_at=now,
            rank=submit.rank,
            quantum_ms=submit.quantum_ms,
            emitted=emitted,
            salt=submit.salt,
            awaits_guide=bool(submit.sampling.grammar),
        )

    def begin(self, cached: int) -> None:
        """Begin behind the first `cached` tokens, which are there already; the last token never is."""
        assert not self.begun, "it has begun before"
        assert 0 <= cached < len(self.ids), "no token is left to run"
        self.begun = True
        self.cached = self.prefilled = cached

    @property
    def keys(self) -> list[bytes]:
        """The keys of the whole blocks among the tokens to prefill, made at the first look.

        They tell beginnings apart within one worker only: no model and no quantisation is in them.
        """
        if self._keys is None:
            self._keys = keys_of(root_key("", 0, salt=self.salt), self.ids[:-1])
        return self._keys

    @property
    def to_prefill(self) -> int:
        """How many tokens are still to be prefilled before the first decode step."""
        left = len(self.ids) - self.prefilled
        # One alone is no prefill: it costs nothing in a step of all rows.
        return left if self.prefills_last and left > 1 else max(0, left - 1)

    @property
    def prefill_tokens(self) -> int:
        """How many tokens its caches have once it decodes, at most."""
        return len(self.ids) if self.prefills_last else len(self.ids) - 1

    @property
    def context(self) -> int:
        """How many tokens it has once the newest step that was launched for it is done."""
        return len(self.ids) + self.launched - self.emitted

    @property
    def known(self) -> tuple[int, ...]:
        """All tokens that it is known to consist of by now."""
        return (*self.ids, *self.said)

    @property
    def last_id(self) -> int:
        """The newest token that is known: the input of the first decode step."""
        return self.said[-1] if self.said else self.ids[-1]
