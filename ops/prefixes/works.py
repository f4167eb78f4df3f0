"""The works by name: each is measured, and makes its lines."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from ops.engine.lines import Line
from ops.prefixes.in_process import COPIES, NO_STORE, SHARED, STORE, Bench, Texts, equal_share
from ops.prefixes.lines import lines_of
from ops.prefixes.plan import Arm, Measured, Plan, Values, in_turn
from ops.prefixes.resume import resume
from ops.prefixes.served import conversation, ttft

SERVED: Final[Mapping[str, Callable[[Plan], Values]]] = {
    "ttft": ttft,
    "conversation": conversation,
    "resume": resume,
}
IN_PROCESS: Final = ("sharing", "unrelated")
WORKS: Final = ("ttft", "sharing", "conversation", "resume", "unrelated")

_Said = dict[tuple[str, int], Texts]


@dataclass(frozen=True, slots=True)
class Found:
    """What a work, or a part of it, came to. `name` says which."""

    name: str
    values: Values
    lines: list[Line]


class Measuring:
    """Measures works one by one. `bench` makes the engine's bench; `checks` compares what rows say."""

    def __init__(self, plan: Plan, bench: Callable[[], Bench], *, checks: bool) -> None:
        self._plan = plan
        self._make_bench = bench
        self._bench: Bench | None = None
        self._checks = checks

    def measure(self, work: str) -> Iterator[Found]:
        """Yield each part of a work as soon as it is done. Raises NotMeasured, NotStarted, ModelError."""
        if work in SERVED:
            values = SERVED[work](self._plan)
            yield Found(work, values, lines_of(work, values))
            return
        if self._bench is None:
            self._bench = self._make_bench()
        if work == "unrelated":
            values = in_turn(work, (STORE, NO_STORE), self._bench.crowd, self._plan)
            yield Found(work, values, lines_of(work, values))
        else:
            yield from self._sharing(self._bench)

    def _sharing(self, bench: Bench) -> Iterator[Found]:
        for arm in self._plan.scale.arms:
            said: _Said = {}
            values = in_turn(
                f"sharing {arm}", (SHARED, COPIES), partial(_share, bench, arm, said), self._plan
            )
            lines = lines_of("sharing", values, arm)
            if self._checks:
                values["equal_share"] = [
                    equal_share(said[SHARED, number], said[COPIES, number])
                    for number in range(1, self._plan.repeats + 1)
                ]
                lines += lines_of("equal", values, arm)
            yield Found(f"sharing {arm}", values, lines)


def _share(bench: Bench, arm: Arm, said: _Said, way: str, number: int) -> Measured:
    measured, said[way, number] = bench.share(arm, way, number)
    return measured
