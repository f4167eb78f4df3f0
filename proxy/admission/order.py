"""Who starts next: lanes by rank, the aged before them, and nobody into what is kept for those above."""

from collections.abc import Iterator
from typing import Final

from proxy.admission import last_row, parking
from proxy.admission.answer import Answer
from proxy.admission.lane import Lane
from proxy.admission.ledger import NO_RESERVE, Reserve
from proxy.admission.parking import Exchange
from proxy.admission.shares import WINDOW_S
from proxy.admission.state import State
from shared.limits import CONTEXT_TOKENS_MAX

_LONG_AGED: Final = 2.0


def next_start(state: State, now: float) -> tuple[Answer, Lane] | None:
    """Return who starts now, or None.

    A lane below the first whose oldest has aged goes before the others, and what it needs is kept for it
    once it has waited twice as long.
    """
    if not state.has_worker or state.ledger is None or state.ledger.rows >= state.ledger.slots:
        return None
    for lane in state.lanes[1:]:
        if _is_due(state, lane, now):
            candidates = last_row.candidates(state, lane, now)
            head = next(candidates, None)
            answer = head and _fitting(state, head, candidates, NO_RESERVE)
            if answer is not None:
                return answer, lane
            if _waits_long(state, lane, now):
                return None
    return _next_by_rank(state, now)


def _next_by_rank(state: State, now: float) -> tuple[Answer, Lane] | None:
    """Go down the lanes. What doesn't fit is passed by smaller ones, until it has aged.

    A lane below takes what is left over, unless parking its rows would let in who waits above.
    """
    for lane in state.lanes:
        candidates = last_row.candidates(state, lane, now)
        head = next(candidates, None)
        if head is None:
            continue
        smaller: Iterator[Answer] = iter(()) if lane.has_aged(head, now) else candidates
        answer = _fitting(state, head, smaller, state.reserve_above(lane))
        if answer is not None:
            return answer, lane
        if _holds_others(state, lane, head, now):
            return None
    return None


def next_exchange(state: State, now: float) -> Exchange | None:
    """Return which rows are parked for whom, or None. Ask when nobody can start as it is.

    The highest lane goes first, and none gets past one that the others wait for. What is parked serves those
    it is parked for, and nobody else, however aged.
    """
    if not state.has_worker or state.ledger is None:
        return None
    for lane in state.lanes[1:]:
        if _is_due(state, lane, now) and _waits_long(state, lane, now):
            return parking.for_waiting(state, lane, now)
    for lane in state.lanes:
        exchange = parking.for_waiting(state, lane, now)
        if exchange is not None:
            return exchange
        head = next(last_row.candidates(state, lane, now), None)
        if head is not None and _holds_others(state, lane, head, now):
            return None
    return None


def _holds_others(state: State, lane: Lane, head: Answer, now: float) -> bool:
    """Whether lanes below start nothing while a lane's first doesn't fit: it has aged, or parks will help."""
    return lane.has_aged(head, now) or parking.would_help(state, lane, now)


def _waits_long(state: State, lane: Lane, now: float) -> bool:
    """Whether a lane that goes before the others has waited so long that what it needs is kept for it."""
    if lane.waits_s(now) < _LONG_AGED * lane.settings.ages_after_s:
        return False
    return next(last_row.candidates(state, lane, now), None) is not None


def _is_due(state: State, lane: Lane, now: float) -> bool:
    """Whether a lane goes before those above it, once: its oldest has aged, or it gets too little.

    Too little means less than its least share of the device over a minute in which it had work.
    """
    waits_s, after_s = lane.waits_s(now), lane.settings.ages_after_s
    if waits_s >= after_s and now - lane.last_start_at >= after_s:
        return True
    since = lane.backlogged_since
    if lane.running or since is None or now - since < WINDOW_S or waits_s < min(after_s, WINDOW_S):
        return False
    return state.shares.of(lane.settings.name, now) < lane.settings.step_share_min


def _fitting(state: State, head: Answer, others: Iterator[Answer], reserve: Reserve) -> Answer | None:
    """Return the first of head and others that fits.

    What there is room for is worked out once for all that share nothing with a row.
    """
    ledger = state.ledger
    assert ledger is not None
    if state.fits(head, reserve):
        return head
    room_tokens = ledger.room_tokens(reserve, CONTEXT_TOKENS_MAX + 1)
    if not room_tokens:
        return None

    def fits(answer: Answer) -> bool:
        if ledger.may_share(answer.shareable):
            return state.fits(answer, reserve)
        return state.tokens_for(answer) <= room_tokens

    return next(filter(fits, others), None)
