"""Whose row is given up for a waiting answer of a higher lane, or because memory runs out."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

from proxy.admission import last_row
from proxy.admission.answer import Answer, Standing
from proxy.admission.lane import Lane
from proxy.admission.ledger import Ledger
from proxy.admission.state import MARGIN_TOKENS, State

_RIPE_TOKENS: Final = 64
_RIPE_S: Final = 2.0


def ripe(answer: Answer, now: float) -> bool:
    """Whether a row has come so far since its start that starting it wasn't in vain."""
    return answer.emitted - answer.emitted_at_start >= _RIPE_TOKENS or now - answer.started_at >= _RIPE_S


def newest_first(rows: Iterable[Answer]) -> list[Answer]:
    return sorted(rows, key=lambda answer: (answer.started_at, answer.number), reverse=True)


def rows_below(state: State, lane: Lane) -> list[Answer]:
    """Return the rows that may be parked for a lane, the newest first."""
    below = state.lanes[lane.rank + 1 :]
    return newest_first(row for each in below for row in each.running.values() if each.may_park(row))


def would_help(state: State, lane: Lane, now: float) -> bool:
    """Whether rows below, parked now or soon, would let a lane's first in: then those below wait."""
    assert state.ledger is not None
    head = next(last_row.candidates(state, lane, now), None)
    if head is None:
        return False
    without = [row.name for row in rows_below(state, lane)] + state.parking
    return state.ledger.fits(state.tokens_for(head), state.reserve_above(lane), without)


def for_waiting(state: State, now: float) -> list[Answer]:
    """Return the rows to park for the highest lane that waits and that it helps.

    The lane's answers are tried in their order, and no more rows are taken than they need. What is being
    parked already is theirs, too.
    """
    if state.ledger is None:
        return []
    for lane in state.lanes:
        rows = [row for row in rows_below(state, lane) if ripe(row, now)] if len(lane) else []
        victims = _victims(state, lane, rows, now) if rows else []
        if victims:
            return victims
    return []


def _victims(state: State, lane: Lane, rows: list[Answer], now: float) -> list[Answer]:
    """Take `rows` out of a trial ledger, in order, until those who wait fit, one after the other."""
    assert state.ledger is not None
    trial, reserve = state.ledger.copy(), state.reserve_above(lane)
    for name in state.parking:
        trial.release(name)
    left, victims = list(rows), list[Answer]()
    for place, head in enumerate(itertools.islice(lane.candidates(now), trial.slots)):
        if last_row.must_be_left(state, lane, head.key, now, place):
            continue
        tokens, needed = state.tokens_for(head), list[Answer]()
        while left and not trial.fits(tokens, reserve):
            needed.append(left.pop(0))
            trial.release(needed[-1].name)
        if not trial.fits(tokens, reserve):
            break
        trial.reserve(head.name, tokens)
        victims += needed
    return victims


def for_growth(state: State, now: float) -> list[Answer]:
    """Raise the reservations of rows that overcommit as they grow; return rows to park if they can't be."""
    if state.ledger is None:
        return []
    stuck: list[Answer] = []
    for lane in state.lanes:
        short = [row for row in lane.running.values() if not _grew(state, row, state.ledger)]
        if short:
            lane.ran_out()
        stuck += short
    return _room_for(state, stuck, now) if stuck else []


def _room_for(state: State, stuck: Sequence[Answer], now: float) -> list[Answer]:
    """Return the rows to park so that the stuck ones can grow; what is being parked already counts.

    As many as that takes, at once: while one after the other is given up, the stuck outgrow their margin.
    """
    assert state.ledger is not None
    trial = state.ledger.copy()
    for name in state.parking:
        trial.release(name)
    rows, victims = _lowest_newest(state, now), list[Answer]()
    for answer in stuck:
        # Until a park is done the answer has used up one margin, and needs the next.
        tokens = answer.tokens_now + min(answer.remaining, 2 * MARGIN_TOKENS)
        while answer not in victims and not trial.grow(answer.name, tokens) and rows:
            victims.append(rows.pop(0))
            trial.release(victims[-1].name)
    return victims


def is_short(state: State) -> bool:
    """Whether a row waits for a park to grow: until then nobody may take what is freed for it."""
    ledger = state.ledger
    return ledger is not None and any(
        row.standing is Standing.RUNNING and _needed_tokens(row) > ledger.tokens_of(row.name)
        for lane in state.lanes
        for row in lane.running.values()
    )


def _needed_tokens(answer: Answer) -> int:
    return answer.tokens_now + min(answer.remaining, MARGIN_TOKENS)


def _grew(state: State, answer: Answer, ledger: Ledger) -> bool:
    """Raise a reservation if it is nearly used up; False if there is no room for that."""
    needed = _needed_tokens(answer)
    if needed <= ledger.tokens_of(answer.name) or answer.standing is not Standing.RUNNING:
        return True
    return ledger.grow(answer.name, state.tokens_for(answer)) or ledger.grow(answer.name, needed)


def _lowest_newest(state: State, now: float) -> list[Answer]:
    """Return all rows that may be parked: the lowest lane's first; of a lane the ripe, then the newest."""
    found: list[Answer] = []
    for lane in reversed(state.lanes):
        rows = newest_first(row for row in lane.running.values() if lane.may_park(row))
        found += sorted(rows, key=lambda row: not ripe(row, now))
    return found
