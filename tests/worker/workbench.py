"""The worker's loop on a table: real parts and a real model, with a channel and a clock that a test moves."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Final

from shared.clock import FalseClock
from shared.codec import decode, encode
from shared.logs import get
from shared.messages import (
    Cancel,
    Failed,
    Finished,
    Hello,
    ManifestRow,
    Message,
    Ping,
    Progress,
    RowLogprobs,
    Step,
    Submit,
)
from shared.readings import MemoryReading
from shared.sampling import Sampling
from tests.worker.tiny_grammars import tiny_desk
from worker.engine.batch_engine import BatchEngine
from worker.engine.model import LoadedModel
from worker.first_runs import FirstRuns
from worker.grammar_desk import GrammarDesk
from worker.held_memory import HeldMemory, MemorySources
from worker.inbox import Inbox
from worker.loop import Loop, Parts
from worker.memory_guard import Bounds
from worker.outbox import Outbox
from worker.plan import CHUNK_TOKENS_MAX, Chunk, StepTimes
from worker.prefix_disk.tier import DiskTier
from worker.reporter import Reporter
from worker.running import Running
from worker.scheduler import Scheduler

EPOCH: Final = 1
GREEDY: Final = Sampling(temperature=0.0)
PLENTY: Final = 1 << 40
_TURNS_MAX: Final = 5000


class FalseChannel:
    """Frames in and out, as a dealer has them, without a socket. `connected` is whether anybody gets them."""

    def __init__(self) -> None:
        self.connected = True
        self.incoming: list[bytes] = []
        self.sent: list[Message] = []
        self.waits = 0
        self.waited_s: list[float] = []

    def say(self, message: Message) -> None:
        self.incoming.append(encode(message))

    def drain(self) -> list[bytes]:
        frames, self.incoming = self.incoming, []
        return frames

    def wait(self, timeout_s: float) -> bool:
        self.waits += 1
        self.waited_s.append(timeout_s)
        return bool(self.incoming)

    def send(self, frame: bytes) -> bool:
        if self.connected:
            self.sent.append(decode(frame))
        return self.connected

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]


@dataclass(slots=True)
class SteadyTimes(StepTimes):
    """A millisecond a prompt token and one a step, whatever is measured by this machine.

    Chunks are as long as the times say, but not longer than `chunk_tokens_max`.
    """

    prefill_ms_per_token: float = 1.0
    decode_ms_per_step: float = 1.0
    chunk_tokens_max: int = CHUNK_TOKENS_MAX

    def tokens_for(self, budget_ms: float, context: int) -> int:
        return min(self.chunk_tokens_max, StepTimes.tokens_for(self, budget_ms, context))

    def decoded(self, rows: int, elapsed_ms: float) -> None:
        assert elapsed_ms >= 0

    def prefilled(self, chunks: Seq[Chunk], elapsed_ms: float) -> None:
        assert chunks
        assert elapsed_ms >= 0


class Workbench:
    """Submits and cancels, turns the loop, and keeps what each sequence was told. Checks every index."""

    def __init__(
        self,
        loaded: LoadedModel,
        slots: int = 4,
        quantum_ms: float = 40.0,
        kv_bytes_max: int = PLENTY,
        chunk_tokens_max: int = CHUNK_TOKENS_MAX,
        kept_bytes_max: int = 0,
        tier: DiskTier | None = None,
        grammars: GrammarDesk | None = None,
    ) -> None:
        self.kv_bytes_max = kv_bytes_max
        self.quantum_ms = quantum_ms
        self.channel = FalseChannel()
        self.clock = FalseClock()
        self.facts = loaded.facts
        self.engine = BatchEngine(loaded, kv_bytes_max, kept_bytes_max, tier)
        times = SteadyTimes(chunk_tokens_max=chunk_tokens_max)
        self.scheduler = Scheduler(
            slots if loaded.facts.batches else 1,
            times,
            reuse=loaded.facts.reuse,
            share_tokens=loaded.facts.shares_from,
            prefills_last=loaded.head is not None,
        )
        self.progress: list[Progress] = []
        self.manifest: list[Seq[ManifestRow]] = []
        log = get("test")
        channel: Any = self.channel  # stands in for a dealer
        hello = Hello(EPOCH, "0", loaded.facts, PLENTY, slots, 1.0, 1.0)
        outbox = Outbox(channel, EPOCH)
        sources = MemorySources(lambda: MemoryReading(0, 0, 0, 0), lambda: PLENTY, _give_nothing_back)
        watch = HeldMemory(Bounds(PLENTY, PLENTY), sources, self.engine, 0, clock=self.clock, log=log)
        parts = Parts(
            inbox=Inbox(channel, EPOCH, log),
            outbox=outbox,
            scheduler=self.scheduler,
            engine=self.engine,
            times=times,
            running=Running(self.manifest.append),
            memory=watch,
            reporter=Reporter(hello, outbox, self.progress.append, watch),
            first_runs=FirstRuns(0.0),
            grammars=grammars or tiny_desk(),
        )
        self.loop = Loop(hello, parts, clock=self.clock)
        self.answers: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[RowLogprobs]] = {}
        self.ends: dict[str, Finished | Failed] = {}
        self.held: dict[str, Submit] = {}
        self.channel.say(Ping(EPOCH, 1))

    def submit(
        self,
        name: str,
        prompt: Seq[int],
        max_tokens: int,
        *,
        emitted: Seq[int] = (),
        stop_ids: Seq[int] = (),
        sampling: Sampling = GREEDY,
        attempt: int = 1,
        rank: int = 0,
        salt: str = "",
    ) -> None:
        submit = Submit(
            epoch=EPOCH,
            sequence=name,
            attempt=attempt,
            prompt_ids=tuple(prompt),
            emitted_ids=tuple(emitted),
            max_tokens=max_tokens,
            stop_ids=tuple(stop_ids),
            sampling=sampling,
            rank=rank,
            quantum_ms=self.quantum_ms,
            salt=salt,
        )
        self.answers[name] = list(emitted)
        self.logprobs.setdefault(name, [])
        self.ends.pop(name, None)
        self.held[name] = submit
        self.channel.say(submit)

    def cancel(self, name: str) -> None:
        self.held.pop(name, None)
        self.channel.say(Cancel(EPOCH, name))

    def drop(self, name: str) -> Submit | None:
        """Cancel a sequence, and return it as it can be submitted again; None if it has ended."""
        held = self.held.get(name)
        if held is not None:
            self.cancel(name)
        return held

    def resume(self, dropped: Submit) -> None:
        """Submit again what was dropped, with the tokens that it had emitted."""
        self.submit(
            dropped.sequence,
            dropped.prompt_ids,
            dropped.max_tokens,
            emitted=tuple(self.answers[dropped.sequence]),
            stop_ids=dropped.stop_ids,
            sampling=dropped.sampling,
            attempt=dropped.attempt + 1,
            rank=dropped.rank,
            salt=dropped.salt,
        )

    def turn(self) -> None:
        """Turn the loop once, and check that memory is within what admission counts with."""
        predicted = self.predicted_bytes
        told = len(self.channel.sent)
        self.loop.turn()
        limit = max(predicted, self.kv_bytes_max)
        assert self.engine.kv_bytes <= limit, f"{self.engine.kv_bytes} bytes of {limit}"
        for message in self.channel.sent[told:]:
            self._hear(message)

    @property
    def predicted_bytes(self) -> int:
        return self.facts.batch_bytes([len(held.prompt_ids) + held.max_tokens for held in self.held.values()])

    def run(self) -> None:
        """Turn until everything has ended; nothing may be left then."""
        for _ in range(_TURNS_MAX):
            self.turn()
            if not (self.channel.incoming or self.scheduler.busy or self.engine.under_way):
                break
        assert self.scheduler.names == ()
        assert self.engine.under_way == 0
        assert self.engine.kv_bytes == 0

    def answer(self, prompt: Seq[int], max_tokens: int, **details: Any) -> list[int]:
        """Run one sequence by itself and return its tokens."""
        self.submit("one", prompt, max_tokens, **details)
        self.run()
        return self.answers["one"]

    def _hear(self, message: Message) -> None:
        if isinstance(message, Step):
            for row in message.rows:
                if row.sequence in self.held:
                    assert row.index == len(self.answers[row.sequence])
                    self.answers[row.sequence].append(row.token)
            for each in message.logprobs:
                if message.rows[each.place].sequence in self.held:
                    self.logprobs[message.rows[each.place].sequence].append(each)
        elif isinstance(message, Finished | Failed) and message.sequence in self.held:
            assert message.sequence not in self.ends, "ended twice"
            self.ends[message.sequence] = message
            del self.held[message.sequence]


def _give_nothing_back(*, collect: bool) -> None:
    raise AssertionError("memory is never short on a workbench")
