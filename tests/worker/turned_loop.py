"""The worker's loop with a false channel, a false engine and a clock moved by hand."""

from collections import deque
from collections.abc import Sequence as Seq
from typing import Any

from shared.clock import FalseClock
from shared.limits import PING_INTERVAL_S, PINGS_MISSED_MAX
from shared.logs import get
from shared.messages import Hello, ManifestRow, Message, Ping, Progress, Submit
from shared.model_facts import ModelFacts
from shared.readings import MemoryReading, PrefixReading
from shared.sampling import Sampling
from tests.worker.tiny_grammars import tiny_desk
from tests.worker.workbench import FalseChannel, SteadyTimes
from worker.engine.batch_engine import PrefillResult, StepResult
from worker.first_runs import FirstRuns
from worker.grammar_desk import GrammarDesk
from worker.held_memory import HeldMemory, MemorySources
from worker.inbox import Inbox
from worker.loop import Loop, Parts
from worker.memory_guard import Bounds
from worker.outbox import Outbox
from worker.plan import Chunk
from worker.reporter import Reporter
from worker.running import Running
from worker.scheduler import Scheduler
from worker.sequence import Sequence

EPOCH = 5
CONTEXT = 100
QUANTUM_MS = 40.0
KV_BYTES = 4096
FACTS = ModelFacts("f", "llama", CONTEXT, 50, 1, 1, 256, 0, 0, 0, batches=True, why_not="")
HELLO = Hello(EPOCH, "0", FACTS, 1 << 30, 2, 1.0, 1.0)
MEMORY = MemoryReading(1, 2, 3, 4)
BOUNDS = Bounds(limit_bytes=1 << 40, budget_bytes=HELLO.budget_bytes)
SILENCE_S = PING_INTERVAL_S * PINGS_MISSED_MAX


class FalseEngine:
    """Answers every row with token 7, a step behind, as the real one does; keeps what it was told to drop.
    Of a chunk that has a prompt's last token the 7 comes at once.

    It raises `problem` in the call that `fails_in` names. `kept` says how many tokens of a sequence's prompt
    are there already, None while they are read from the disk; of one that isn't named, none are.
    """

    def __init__(self) -> None:
        self.steps: deque[tuple[Sequence, ...]] = deque()
        self.calls: list[str] = []
        self.dropped: list[str] = []
        self.problem: Exception | None = None
        self.fails_in = "launch"
        self.kv_bytes = KV_BYTES
        self.arrays = 0
        self.rows_and_groups = (0, 0)
        self.bytes_max: list[int] = []
        self.kept: dict[str, int | None] = {}
        self.begun: list[str] = []
        self.prefixes = PrefixReading()
        self.keeps: list[bool] = []
        self.names: list[int] = []
        self.news: tuple[list[int], list[int]] = ([], [])

    @property
    def under_way(self) -> int:
        return len(self.steps)

    def drop(self, sequences: Seq[Sequence]) -> None:
        if sequences:
            self.called("drop")
        self.dropped += [sequence.name for sequence in sequences]

    def begin(self, sequence: Sequence) -> int | None:
        assert not self.steps, "a row that may be copied from is under way"
        cached = self.kept.get(sequence.name, 0)
        if cached is not None:
            self.begun.append(sequence.name)
        return cached

    def limit_prefixes(self, keeps: bool) -> None:
        self.keeps.append(keeps)

    def take_prefix_news(self) -> tuple[list[int], list[int]]:
        news, self.news = self.news, ([], [])
        return news

    def prefix_names(self) -> list[int]:
        return self.names

    def prefill(self, chunks: Seq[Chunk]) -> PrefillResult:
        assert chunks
        self.called("prefill")
        rows = tuple(chunk.sequence for chunk in chunks if chunk.brings_token)
        return PrefillResult(3.0, StepResult(rows, [7] * len(rows), 0.0) if rows else None)

    def launch(self, rows: Seq[Sequence]) -> None:
        self.called("launch")
        self.steps.append(tuple(rows))

    def read(self) -> StepResult:
        self.called("read")
        rows = self.steps.popleft()
        return StepResult(rows, [7] * len(rows), 3.0)

    def limit_bytes(self, bytes_max: int) -> None:
        self.bytes_max.append(bytes_max)

    def tidy(self) -> None:
        """There is nothing to tidy."""

    def called(self, call: str) -> None:
        if self.problem and call == self.fails_in:
            raise self.problem
        if call != "drop":
            self.calls.append(call)


class FalseMemory:
    """What is held and what is free, as a test says; counts what was given back."""

    def __init__(self) -> None:
        self.reading = MEMORY
        self.available_bytes = 1 << 40
        self.given_back: list[bool] = []

    def give_back(self, *, collect: bool) -> None:
        self.given_back.append(collect)

    @property
    def sources(self) -> MemorySources:
        return MemorySources(lambda: self.reading, lambda: self.available_bytes, self.give_back)


class Turned:
    """A loop and everything around it."""

    def __init__(
        self,
        slots: int = 2,
        bounds: Bounds = BOUNDS,
        engine: FalseEngine | None = None,
        first_run_ms: float = 0.0,
        share_tokens: int = 0,
        grammars: GrammarDesk | None = None,
        *,
        prefills_last: bool = False,
    ) -> None:
        self.channel = FalseChannel()
        self.clock = FalseClock(1000.0)
        self.engine = engine or FalseEngine()
        self.memory = FalseMemory()
        self.reports: list[Progress] = []
        self.manifest: list[list[ManifestRow]] = []
        times = SteadyTimes()
        log = get("test")
        ours: Any = self.engine  # stands in for one with a model
        channel: Any = self.channel  # stands in for a dealer
        self.inbox = Inbox(channel, EPOCH, log)
        self.scheduler = Scheduler(
            slots, times, reuse="any", share_tokens=share_tokens, prefills_last=prefills_last
        )
        outbox = Outbox(channel, EPOCH)
        watch = HeldMemory(bounds, self.memory.sources, ours, 0, clock=self.clock, log=log)
        parts = Parts(
            inbox=self.inbox,
            outbox=outbox,
            scheduler=self.scheduler,
            engine=ours,
            times=times,
            running=Running(lambda rows: self.manifest.append(list(rows))),
            memory=watch,
            reporter=Reporter(HELLO, outbox, self.reports.append, watch),
            first_runs=FirstRuns(first_run_ms),
            grammars=grammars or tiny_desk(),
        )
        self.loop = Loop(HELLO, parts, clock=self.clock)

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


def met_loop(*, prefills_last: bool = False) -> Turned:
    """Return a loop that has been greeted by its proxy."""
    turned = Turned(prefills_last=prefills_last)
    turned.ping()
    turned.channel.sent.clear()
    return turned
