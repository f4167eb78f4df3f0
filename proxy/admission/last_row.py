"""The last row is left to other keys: whoever comes next doesn't have to wait for an answer to end.

Only a key that holds half of the rows or more leaves it, and only while other keys have asked lately. So a
machine that one key has to itself is used whole. Where rows are few the last one is too dear for this.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from proxy.admission.answer import Answer
from proxy.admission.lane import Lane
from proxy.admission.state import State

_LATELY_S: Final = 600.0
_KEYS_KEPT: Final = 4096
_ROWS_MIN: Final = 8


def asked(keys: OrderedDict[str, float], key: str, now: float) -> None:
    """Take note that a key has asked; forget those that haven't for long."""
    keys[key] = now
    keys.move_to_end(key)
    while len(keys) > _KEYS_KEPT or now - next(iter(keys.values())) > _LATELY_S:
        keys.popitem(last=False)


def must_be_left(state: State, lane: Lane, key: str, now: float, more_rows: int = 0) -> bool:
    """Whether a key may not take one more row now. `more_rows` are taken before, beside those that run.

    Rows that could be parked for the lane count as free.
    """
    if state.ledger is None or state.ledger.slots < _ROWS_MIN or not _others_asked(state, key, now):
        return False
    rows = [(row, each) for each in state.lanes for row in each.running.values()]
    in_the_way = sum(each.rank <= lane.rank or not each.may_park(row) for row, each in rows) + more_rows
    if in_the_way + 1 < state.ledger.usable_slots(state.reserve_above(lane)):
        return False
    return 2 * (sum(row.key == key for row, _ in rows) + more_rows) >= state.ledger.slots


def candidates(state: State, lane: Lane, now: float) -> Iterator[Answer]:
    """Yield who waits in a lane and fits, in order, but those of a key that must leave the last row."""
    left_by: dict[str, bool] = {}
    for answer in filter(state.fits_now, lane.candidates(now)):
        if answer.key not in left_by:
            left_by[answer.key] = must_be_left(state, lane, answer.key, now)
        if not left_by[answer.key]:
            yield answer


def _others_asked(state: State, key: str, now: float) -> bool:
    latest = next((at for other, at in reversed(state.keys_asked.items()) if other != key), None)
    return latest is not None and now - latest <= _LATELY_S
