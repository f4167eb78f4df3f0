"""A scheduler whose caller begins everybody as soon as may be, with so many tokens kept as a test says."""

from collections.abc import Mapping

from worker.plan import Plan
from worker.scheduler import Scheduler


class PromptScheduler(Scheduler):
    """Begins whoever may before each plan, as the loop does; `kept` tokens of each are there, by name."""

    kept: Mapping[str, int] = {}

    def plan(self, now: float) -> Plan:
        self._begin_all()
        return super().plan(now)

    def extend(self, plan: Plan, now: float) -> Plan:
        self._begin_all()
        return super().extend(plan, now)

    def _begin_all(self) -> None:
        for sequence in self.beginning():
            sequence.begin(self.kept.get(sequence.name, 0))
