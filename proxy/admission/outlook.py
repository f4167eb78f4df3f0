"""What a newcomer finds before it, and what that means: its wait, and when to come back instead."""

from collections.abc import Mapping, Sequence

from proxy.admission import last_row
from proxy.admission.answer import Answer, Newcomer
from proxy.admission.estimate import Outlook
from proxy.admission.lane import Lane
from proxy.admission.speeds import Speeds
from proxy.admission.state import State

_Row = tuple[Answer, Lane]


def estimated_wait_s(state: State, lane: Lane, newcomer: Newcomer, more_ahead: int, now: float) -> float:
    """Return how long a newcomer would wait for its start, in seconds; four in five wait less.

    `more_ahead` counts answers that aren't queued yet and go before it.
    """
    found = outlook(state, lane, newcomer, more_ahead, now)
    residual_s = found.step_ms / 1000 if state.running else 0.0
    wait_s = found.wait_ms / 1000 * state.calibration.factor
    return wait_s + residual_s + state.restarts.left_s(now)


def answer_s(state: State, lane: Lane) -> float:
    """Return the device time of a lane's usual answer with all rows busy, in seconds."""
    rows = state.ledger.slots if state.ledger else 1
    tokens = lane.lengths.remaining(0, lane.settings.max_tokens_default)
    prompt = lane.prompts.quantile(0.5) or 0
    return (tokens * state.speeds.step_ms(rows) / rows + state.speeds.prefill_ms(prompt)) / 1000


def come_back_s(state: State, lane: Lane, newcomer: Newcomer, answers: int, now: float) -> float:
    """Return when someone who is refused now should ask again, in seconds within [1, 50]."""
    estimated_s = estimated_wait_s(state, lane, newcomer, 0, now)
    earliest_s = max(1.0, estimated_s - newcomer.deadline_s / 2)
    return state.promises.next_s(earliest_s, answers * answer_s(state, lane), now)


def outlook(state: State, lane: Lane, newcomer: Newcomer, more_ahead: int, now: float) -> Outlook:
    """Return a newcomer's outlook. Rows that may be parked for it count as free."""
    speeds, slots = state.speeds, state.ledger.slots if state.ledger else 1
    ahead, prefill_ms = _ahead(state.lanes, lane, newcomer, speeds)
    rows = [(row, each) for each in state.lanes for row in each.running.values()]
    step_ms = speeds.step_ms(max(1, len(rows)))
    in_the_way = [(row, each) for row, each in rows if each.rank <= lane.rank or not each.may_park(row)]
    ends = sorted((_ends_ms(row, each, step_ms, speeds), row.name) for row, each in in_the_way)
    unfinished_ms = sum(speeds.prefill_ms(row.to_prefill) for row, each in rows if each.rank <= lane.rank)
    return Outlook(
        ahead=ahead + more_ahead,
        ahead_prefill_ms=prefill_ms + unfinished_ms,
        free_rows=_free_rows(state, lane, newcomer.key, in_the_way, now),
        ends_ms=tuple(end for end, _ in ends),
        bytes_ms=_bytes_ms(state, lane, newcomer, ends),
        service_ms=lane.lengths.remaining(0, lane.settings.max_tokens_default) * speeds.step_ms(slots),
        step_ms=step_ms,
    )


def _free_rows(state: State, lane: Lane, key: str, in_the_way: Sequence[_Row], now: float) -> int:
    usable = state.ledger.usable_slots(state.reserve_above(lane)) if state.ledger else 1
    if in_the_way and last_row.must_be_left(state, lane, key, now):
        usable -= 1
    return max(0, usable - len(in_the_way))


def _ahead(lanes: Sequence[Lane], lane: Lane, newcomer: Newcomer, speeds: Speeds) -> tuple[int, float]:
    """Return how many start before the newcomer, and the milliseconds of their prefill.

    Inside the lane keys take turns by weight: with `own` answers waiting of its key, another key gets about
    own + 1 turns before it, times the ratio of their weights. Its own count in full even where the newest
    goes first: they were promised a start, too.
    """
    above = lanes[: lane.rank]
    count = sum(map(len, above)) + lane.resuming
    waiting: Mapping[str, tuple[int, float]] = lane.keys_waiting()
    own = waiting.get(newcomer.key, (0, 0.0))[0]
    turns = own + sum(
        min(number, -(-(own + 1) * weight // newcomer.weight))
        for key, (number, weight) in waiting.items()
        if key != newcomer.key
    )
    tokens = sum(each.uncached_tokens for each in above)
    if lane.fresh:
        tokens += int(lane.uncached_tokens * turns / lane.fresh)
    return count + int(turns), speeds.prefill_ms(tokens)


def _ends_ms(row: Answer, lane: Lane, step_ms: float, speeds: Speeds) -> float:
    tokens = lane.lengths.remaining(row.emitted, row.newcomer.max_tokens)
    return tokens * step_ms + speeds.prefill_ms(row.to_prefill)


def _bytes_ms(state: State, lane: Lane, newcomer: Newcomer, ends: Sequence[tuple[float, str]]) -> float:
    """Return when so many rows have ended that the newcomer's bytes are free; 0 if they are now."""
    ledger, reserve = state.ledger, state.reserve_above(lane)
    if ledger is None:
        return 0.0
    stay = {name for _, name in ends}
    gone = {name for each in state.lanes for name in each.running if name not in stay}
    names = newcomer.shareable_in(lane.settings.name)
    if not gone and ledger.affords(newcomer.tokens, reserve, names):
        return 0.0
    trial = ledger.that_lost(gone)
    if trial.affords(newcomer.tokens, reserve, names):
        return 0.0
    for end_ms, name in ends:
        trial.release(name)
        if trial.affords(newcomer.tokens, reserve, names):
            return end_ms
    return ends[-1][0] if ends else 0.0
