"""What each fault did: journal, clients' records and the moments of the faults put side by side; pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from ops.chaos.said import Said
from ops.load.statistics import summary
from worker.journal import Life


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, in seconds of the wall clock: when it came, and when whatever it takes was over.

    `kills` says whether a life of the worker has to end by it. `unseen`: its end is in no journal.
    """

    kind: str
    at: float
    over_at: float
    kills: bool = True
    unseen: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """What one fault did; seconds since the fault, but for `waited_s` and `load_s`, which are parts of it.

    `next_token_s` has one value for each stream that had begun, and went on, with its lane; `pause_s` is how
    long it was silent around that.
    """

    kind: str
    cause: str | None
    detect_s: float | None
    waited_s: float | None
    load_s: float | None
    ready_s: float | None
    next_token_s: tuple[tuple[str, float], ...]
    pause_s: tuple[float, ...]
    streams: int
    resumed: int


@dataclass(slots=True)
class Account:
    """All faults' effects, and the epochs of lives that ended though nobody did anything to them."""

    effects: list[Effect] = field(default_factory=list)
    uncaused: list[int] = field(default_factory=list)
    without_effect: list[str] = field(default_factory=list)


def account(
    faults: Sequence[Fault], lives: Sequence[Life], said: Sequence[Said], expected: Mapping[int, str]
) -> Account:
    """Give each fault the life that it ended, and see what became of the streams. Lives: the oldest first."""
    result, taken = Account(), set[int]()
    for fault in faults:
        life = _life_at(lives, fault.at) if fault.kills else None
        after = None
        if life is not None:
            taken.add(life.epoch)
            after = next((each for each in lives if each.epoch > life.epoch and _ready_at(each)), None)
        if fault.kills and (life is None or after is None or not (fault.unseen or life.ended_at)):
            result.without_effect.append(fault.kind)
        result.effects.append(_effect(fault, life, after, said, expected))
    result.uncaused = [life.epoch for life in lives if life.ended_at and life.epoch not in taken]
    return result


def _life_at(lives: Sequence[Life], at: float) -> Life | None:
    """Return the newest life that had begun by then."""
    begun = [life for life in lives if (spawned := _seconds(life.spawned_at)) is not None and spawned <= at]
    return begun[-1] if begun else None


def _effect(
    fault: Fault, life: Life | None, after: Life | None, said: Sequence[Said], expected: Mapping[int, str]
) -> Effect:
    exited_at = _seconds(life.ended_at) if life else None
    spawned_at = _seconds(after.spawned_at) if after else None
    ready_at = _ready_at(after) if after else None
    since = fault.over_at if ready_at is None else ready_at
    streams = [one for one in said if _was_live(one, fault.at) and not one.left]
    later = [(one.ask.lane, _first_after(one, since)) for one in streams]
    resumed = [one.completed and one.text == expected[one.ask.number] for one in streams]
    return Effect(
        kind=fault.kind,
        cause=life.cause if life else None,
        detect_s=_difference(exited_at, fault.at),
        waited_s=_difference(spawned_at, exited_at),
        load_s=_difference(ready_at, spawned_at),
        ready_s=_difference(ready_at, fault.at),
        next_token_s=tuple((lane, moment - fault.at) for lane, moment in later if moment is not None),
        pause_s=tuple(pause for one in streams if (pause := _pause(one, since)) is not None),
        streams=len(streams),
        resumed=sum(resumed),
    )


def _was_live(one: Said, at: float) -> bool:
    """Whether a stream had begun to speak, and hadn't ended."""
    return bool(one.piece_times) and one.piece_times[0] <= at < one.ended_at and one.ask.stream


def _first_after(one: Said, since: float) -> float | None:
    return next((moment for moment in one.piece_times if moment > since), None)


def _pause(one: Said, since: float) -> float | None:
    pairs = pairwise(one.piece_times)
    return next((later - earlier for earlier, later in pairs if earlier <= since < later), None)


def _ready_at(life: Life) -> float | None:
    spawned_at = _seconds(life.spawned_at)
    return None if spawned_at is None or life.ready_after_s is None else spawned_at + life.ready_after_s


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _difference(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else later - earlier


def by_kind(effects: Iterable[Effect]) -> dict[str, dict[str, Any]]:
    """Return the figures of each kind of fault, and of all together."""
    kinds: dict[str, list[Effect]] = {}
    everything = list(effects)
    for effect in everything:
        kinds.setdefault(effect.kind, []).append(effect)
    return {name: _figures(of_kind) for name, of_kind in [*sorted(kinds.items()), ("all", everything)]}


def _figures(effects: Sequence[Effect]) -> dict[str, Any]:
    times = {
        name: summary([value for each in effects if (value := getattr(each, name)) is not None])
        for name in ("detect_s", "waited_s", "load_s", "ready_s")
    }
    streams = sum(each.streams for each in effects)
    next_tokens = [token for each in effects for token in each.next_token_s]
    return {
        "faults": len(effects),
        "causes": sorted({each.cause for each in effects if each.cause}),
        **times,
        "next_token_s": summary([seconds for _, seconds in next_tokens]),
        "next_token_of_lane_s": {
            lane: summary([seconds for its, seconds in next_tokens if its == lane])
            for lane in sorted({its for its, _ in next_tokens})
        },
        "pause_s": summary([pause for each in effects for pause in each.pause_s]),
        "streams": streams,
        "resumed_share": sum(each.resumed for each in effects) / streams if streams else None,
    }


def told(lives: Sequence[Life]) -> list[dict[str, Any]]:
    """Return how lives ended, as JSON can hold it."""
    return [
        {"epoch": life.epoch, "cause": life.cause, "detail": life.detail, "lived_s": life.lived_s}
        for life in lives
    ]
