"""A worker dies, hangs or stops at every point of the protocol: every answer comes whole, and once."""

import asyncio
from collections import Counter
from typing import Final

import pytest

from tests.chaos.faults import Point
from tests.chaos.script import Case, all_points_of_a_life, run_all, run_chain
from worker import restart

pytestmark = [pytest.mark.usefixtures("early_parks"), pytest.mark.timeout(900)]

# What must be among the points.
NAMES: Final = {
    "Hello to be sent",
    "Hello left",
    "Progress left",
    "Ping taken",
    "Submit came",
    "Submit taken",
    "prefill",
    "prefilled",
    "launch",
    "launched",
    "read",
    "was read",
    "Step to be sent",
    "Step handed over",
    "Step left",
    "Finished to be sent",
    "Finished left",
    "Park came",
    "Park taken",
    "Cancel came",
    "Cancel taken",
}
# What is done at a point, and how the supervisor must call it. None: that is no death.
DEEDS: Final = {
    "kill": "killed",
    "sent:ABRT": "killed",
    "sent:SEGV": "killed",
    "stop": "killed",
    "pause": None,
    "abort": "memory",
    "fault": "memory",
    "memory": "memory",
    "raise": "loop_exception",
    "exit": "crash",
    "wedge": "hang",
}
# Those that are found out by a worker's silence; with the others one that is slow must not be taken for it.
SILENT: Final = {"stop", "wedge"}
_CHAINS: Final = 4


def mixed(points: list[Point]) -> list[Point]:
    """Return early and late points in turn, so that no answer meets only early deaths."""
    half = len(points) // 2
    early, late = points[:half], points[half:]
    return [point for pair in zip(early, late, strict=False) for point in pair] + late[half:]


def one_of_each_name(points: list[Point]) -> list[Point]:
    """Return one point of each name, in the order in which a life passes them."""
    named: dict[str, list[Point]] = {}
    for point in points:
        named.setdefault(point[0], []).append(point)
    chosen = {times[-(place % 2)] for place, times in enumerate(named.values())}
    return [point for point in points if point in chosen]


async def test_a_worker_is_killed_at_every_point(monkeypatch: pytest.MonkeyPatch, all_points: bool) -> None:
    """Each life is killed at its own point, and the next one goes on with what it has left.

    In the short round one point of each name has its turn: of one name an early one, of the next a late one.
    """
    monkeypatch.setattr(restart, "backoff_s", lambda *_: 0.0)
    points = await all_points_of_a_life(NAMES)
    points = points if all_points else one_of_each_name(points)
    chains = [mixed(points[first::_CHAINS]) for first in range(_CHAINS)]
    results = await asyncio.gather(*(run_chain("kill", chain) for chain in chains))
    causes = Counter(life.cause for lives in results for life in lives)
    assert causes == {"killed": len(points), "planned": _CHAINS}


@pytest.mark.parametrize(("deed", "cause"), DEEDS.items())
async def test_whatever_happens_at_a_point_every_answer_comes_whole(
    deed: str, cause: str | None, all_points: bool
) -> None:
    """One deed at one point of a first life; in the short round at one, another for each deed."""
    place = [*DEEDS].index(deed)
    if all_points:
        some = (await all_points_of_a_life(NAMES))[place % 2 :: 2]
    else:
        name = sorted(NAMES)[-len(DEEDS) :][place]
        some = [(name, time_of(name, place))]
    floor_s = 2.0 if deed in SILENT else 10.0
    cases = await run_all(deed, some, hang_floor_s=floor_s, load_deadline_s=8.0)
    assert [case for case in cases if case.problem] == []
    assert [case for case in cases if not is_called(case, cause)] == []


def time_of(name: str, place: int) -> int:
    """Return which of its name a point is to be: the first or the second, but a Hello needs no second."""
    return 1 if name.startswith("Hello") else 1 + place % 2


def is_called(case: Case, cause: str | None) -> bool:
    """Whether the first life's end has the right name; one that was still loading is stuck, not hanging."""
    if cause is None:
        return len(case.lives) == 1
    if cause == "hang" and case.point[0].startswith("Hello"):
        return case.cause in ("stuck_load", "hang")
    return case.cause == cause
