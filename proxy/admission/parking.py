"""Whose row is given up for a waiting answer of a higher lane, or because memory runs out."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from proxy.admission import last_row
from proxy.admission.answer import Answer
from proxy.admission.lane import Lane
from proxy.admission.ledger import Ledger, Reserve
from proxy.admission.state import MARGIN_TOKENS, State

_RIPE_TOKENS: Final = 64
_RIPE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """Who starts of one lane, in order, each with the rows that are parked for it just before.

    What a start takes depends on who is there then, where rows share: the order is that of the trying out.
    """

    lane: Lane
    turns: list[tuple[list[Answer], Answer]]


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
    """Whether rows below, once they are ripe, would let a lane's first in: then those below wait."""
    assert state.ledger is not None
    head = next(last_row.candidates(state, lane, now), None)
    if head is None:
        return False
    without = [row.name for row in rows_below(state, lane)]
    return state.fits(head, state.reserve_above(lane), without)


def for_waiting(state: State, lane: Lane, now: float) -> Exchange | None:
    """Return which rows make room for those who wait in a lane, or None.

    They are tried in their order, and no more rows are taken than they need. What doesn't fit even so is
    passed by smaller ones, until it has aged.
    """
    rows = [row for row in rows_below(state, lane) if ripe(row, now)] if len(lane) else []
    if state.ledger is None or not rows:
        return None
    trial, reserve = state.ledger.copy(), state.reserve_above(lane)
    turns, parked, settled = list[tuple[list[Answer], Answer]](), 0, 0
    for head in itertools.islice(filter(state.fits_now, lane.candidates(now)), trial.slots):
        if last_row.must_be_left(state, lane, head.key, now, len(turns)):
            continue
        needed = _needed_rows(state, trial, rows[parked:], head, reserve)
        if needed is not None:
            parked += len(needed)
            turns.append((needed, head))
            settled = len(turns) if needed else settled
            for row in needed:
                trial.release(row.name)
            trial.reserve(head.name, state.tokens_for(head), head.shareable)
        elif lane.has_aged(head, now):
            break
    return Exchange(lane, turns[:settled]) if settled else None


def _needed_rows(
    state: State, ledger: Ledger, rows: Sequence[Answer], head: Answer, reserve: Reserve
) -> list[Answer] | None:
    """Return the first rows that must go for an answer to fit; None if it won't without all of them."""
    tokens, names = state.tokens_for(head), head.shareable
    if not ledger.fits(tokens, reserve, [row.name for row in rows], names):
        return None
    trial, needed = ledger.copy(), list[Answer]()
    while not trial.fits(tokens, reserve, (), names):
        needed.append(rows[len(needed)])
        trial.release(needed[-1].name)
    return needed


def for_growth(state: State, now: float) -> list[Answer]:
    """Raise the reservations of rows that overcommit as they grow; return rows to park if they can't be.

    Ask again once those are parked: then the others have room.
    """
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
    """Return the rows to park so that the stuck ones can grow, no more than that takes."""
    assert state.ledger is not None
    trial = state.ledger.copy()
    rows, victims = _lowest_newest(state, now), list[Answer]()
    for answer in stuck:
        while answer not in victims and not trial.grow(answer.name, _needed_tokens(answer)) and rows:
            victims.append(rows.pop(0))
            trial.release(victims[-1].name)
    return victims


def for_shortage(state: State, now: float) -> list[Answer]:
    """Return the rows to park because the budget has shrunk below what is reserved, no more than are needed.

    What can't be parked keeps its row: then more stays reserved than the budget, and nothing starts.
    """
    ledger = state.ledger
    # With the full budget nothing is over it: this is asked with every step.
    if ledger is None or ledger.budget_bytes == ledger.full_bytes:
        return []
    if ledger.reserved_bytes <= ledger.budget_bytes:
        return []
    trial, victims = ledger.copy(), list[Answer]()
    for row in _lowest_newest(state, now):
        if trial.reserved_bytes <= trial.budget_bytes:
            break
        trial.release(row.name)
        victims.append(row)
    return victims


def _needed_tokens(answer: Answer) -> int:
    return answer.tokens_now + min(answer.remaining, MARGIN_TOKENS)


def _grew(state: State, answer: Answer, ledger: Ledger) -> bool:
    """Raise a reservation if it is nearly used up; False if there is no room for that."""
    needed = _needed_tokens(answer)
    if needed <= ledger.tokens_of(answer.name):
        return True
    return ledger.grow(answer.name, state.tokens_for(answer)) or ledger.grow(answer.name, needed)


def _lowest_newest(state: State, now: float) -> list[Answer]:
    """Return all rows that may be parked: the lowest lane's first; of a lane the ripe, then the newest."""
    found: list[Answer] = []
    for lane in reversed(state.lanes):
        rows = newest_first(row for row in lane.running.values() if lane.may_park(row))
        found += sorted(rows, key=lambda row: not ripe(row, now))
    return found
