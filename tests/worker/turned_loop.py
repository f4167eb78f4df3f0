"""The worker's loop with a false channel, a false engine and a clock moved by hand."""

from collections import deque
from collections.abc import Sequence as Seq

from shared.clock import FalseClock
from shared.limits import PING_INTERVAL_S, PINGS_MISSED_MAX
from shared.logs import get
from shared.messages import (
    Hello,
    MemoryReading,
    Message,
    Ping,
    Progress,
    Submit,
)
from shared.model_facts import ModelFacts
from shared.sampling import Sampling
from tests.worker.workbench import FalseChannel, SteadyTimes
from worker.batch_engine import StepResult
from worker.inbox import Inbox
from worker.loop import Loop
from worker.outbox import Outbox
from worker.plan import Chunk
from worker.scheduler import Scheduler
from worker.sequence import Sequence

EPOCH = 5
CONTEXT = 100
QUANTUM_MS = 40.0
KV_BYTES = 4096
FACTS = ModelFacts("f", "llama", CONTEXT, 50, 1, 1, 256, 2, 0, 0, 0, batches=True, why_not="")
HELLO = Hello(EPOCH, "0", FACTS, 1 << 30, 2, 1.0, 1.0)
MEMORY = MemoryReading(1, 2, 3, 4)
SILENCE_S = PING_INTERVAL_S * PINGS_MISSED_MAX


class FalseEngine:
    """Answers every row with token 7, a step behind, as the real one does; keeps what it was told to drop."""

    def __init__(self) -> None:
        self.steps: deque[tuple[Sequence, ...]] = deque()
        self.calls: list[str] = []
        self.dropped: list[str] = []
        self.problem: Exception | None = None
        self.kv_bytes = KV_BYTES

    @property
    def under_way(self) -> int:
        return len(self.steps)

    def drop(self, sequences: Seq[Sequence]) -> None:
        self.dropped += [sequence.name for sequence in sequences]

    def prefill(self, chunks: Seq[Chunk]) -> float:
        assert chunks
        self.calls.append("prefill")
        return 3.0

    def launch(self, rows: Seq[Sequence]) -> None:
        if self.problem:
            raise self.problem
        self.calls.append("launch")
        self.steps.append(tuple(rows))

    def read(self) -> StepResult:
        self.calls.append("read")
        rows = self.steps.popleft()
        return StepResult(rows, [7] * len(rows), 3.0)

    def tidy(self) -> None:
        """There is nothing to tidy."""


class Turned:
    """A loop and everything around it."""

    def __init__(self, slots: int = 2) -> None:
        self.channel = FalseChannel()
        self.clock = FalseClock(1000.0)
        self.engine = FalseEngine()
        self.reports: list[Progress] = []
        times = SteadyTimes()
        self.inbox = Inbox(self.channel, EPOCH, get("test"))  # type: ignore[arg-type]  # stands in for a dealer
        self.loop = Loop(
            HELLO,
            CONTEXT,
            (
                self.inbox,
                Outbox(self.channel, EPOCH),  # type: ignore[arg-type]  # likewise
                Scheduler(slots, times),
                self.engine,  # type: ignore[arg-type]  # stands in for one with a model
                times,
            ),
            self.reports.append,
            lambda: MEMORY,
            clock=self.clock,
        )

    def turn(self, *messages: Message, after_s: float = 0.0, times: int = 1) -> None:
        self.clock.advance(after_s)
        for message in messages:
            self.channel.say(message)
        for _ in range(times):
            self.loop.turn()

    def ping(self, number: int = 1) -> None:
        self.turn(Ping(EPOCH, number))


def submit(name: str, prompt: Seq[int] = (1,), max_tokens: int = 4, epoch: int = EPOCH) -> Submit:
    return Submit(epoch, name, 1, tuple(prompt), (), max_tokens, (), Sampling(), 0, QUANTUM_MS)


def met_loop() -> Turned:
    """Return a loop that has been greeted by its proxy."""
    turned = Turned()
    turned.ping()
    turned.channel.sent.clear()
    return turned
