"""The real worker.process with a false engine in it, which fails as its arguments say.

Arguments: a Plan, a file to which each life appends "epoch pid", and the LaunchSpec, which the real process
reads. Each life's points stand beside that file, in "points-1" and so on.
"""

import os
import sys
from pathlib import Path

from tests.chaos import false_engine
from tests.chaos.faults import Plan, Points, do, fill_stderr

# It only makes a terminal look better, and takes a fifth of the time in which a life begins.
sys.modules["rich"] = None  # type: ignore[assignment]  # Python's mark of what can't be imported
false_engine.install()

from shared.channel import DealerChannel  # noqa: E402 (what it imports must find the stand-ins)
from shared.codec import decode  # noqa: E402 (likewise)
from shared.messages import Message  # noqa: E402 (likewise)
from worker import foreign_signals, process  # noqa: E402 (likewise)
from worker.launch import LaunchSpec  # noqa: E402 (likewise)
from worker.loop import Loop  # noqa: E402 (likewise)


class PointedChannel(DealerChannel):
    """Passes a point around each frame that leaves."""

    points: Points

    def __init__(self, endpoint: str, identity: bytes) -> None:
        super().__init__(endpoint, identity)
        self.points.armed = True

    def send(self, frame: bytes) -> bool:
        name = type(decode(frame)).__name__
        self.points.passed(f"{name} to be sent")
        was_sent = super().send(frame)
        self.points.left(name)
        return was_sent


class PointedLoop(Loop):
    """Passes a point before and after each message that is taken."""

    points: Points

    def _take(self, message: Message) -> None:
        name = type(message).__name__
        self.points.passed(f"{name} came")
        super()._take(message)
        self.points.passed(f"{name} taken")


def main() -> None:
    foreign_signals.ensure_blocked()
    words, lives_file = sys.argv[1], Path(sys.argv[2])
    del sys.argv[1:3]
    plan, spec = Plan.from_json(words), LaunchSpec.from_json(sys.argv[1])
    with lives_file.open("a+") as file:
        file.write(f"{spec.epoch} {os.getpid()}\n")
        file.seek(0)
        life = len(file.read().splitlines())
    if plan.broken and Path(plan.broken).exists():
        do(plan.broken_deed)
    if plan.fills_stderr:
        fill_stderr()
    points = Points(plan, life, lives_file.with_name(f"points-{life}"))
    false_engine.FalseEngine.plan, false_engine.FalseEngine.points = plan, points
    PointedChannel.points = PointedLoop.points = points
    process.DealerChannel, process.Loop = PointedChannel, PointedLoop  # type: ignore[misc] # stand-ins
    process.main()


if __name__ == "__main__":
    main()
