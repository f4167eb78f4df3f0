"""Our side: scheduler and engine, turned as the worker's loop turns them, without its sockets."""

import math
import time
from collections.abc import Sequence as Seq

import mlx.core as mx

from ops.engine.side import Contestant, Request, Token
from shared.messages import Submit
from worker import memory
from worker.engine.batch_engine import BatchEngine, StepResult
from worker.engine.model import LoadedModel
from worker.grammar import Guide
from worker.grammar_desk import GrammarDesk
from worker.plan import StepTimes
from worker.scheduler import Emitted, Scheduler
from worker.sequence import Sequence

_SHARE_OF_MEMORY = 0.8  # as the worker's settings have it
_COMPILING_WAIT_S = 0.001


class Ours:
    """One engine and its scheduler. MLX's buffer cache is bounded while it lives, as in a worker.

    Of beginnings of prompts up to `kept_share` of the bytes for KV caches is kept, and no more than
    `kept_bytes_max`; one of `share_tokens` or more is waited for. `said` are each row's tokens; `cached` is
    how many of its prompt's were there. `grammars` compiles the rows' grammars, if any has one.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        times: StepTimes,
        device: memory.DeviceReport,
        *,
        slots: int,
        quantum_ms: float,
        share_tokens: int = 0,
        kept_share: float = 0.0,
        kept_bytes_max: float = math.inf,
        grammars: GrammarDesk | None = None,
    ) -> None:
        self.said: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self._buffer_cache_before = mx.set_cache_limit(0)
        memory.bound_buffer_cache(device)
        weights_bytes = loaded.facts.weights_bytes
        free_bytes = memory.limit_bytes(device, _SHARE_OF_MEMORY) - weights_bytes
        reserve = loaded.reserve(slots, max(0, free_bytes))
        budget = memory.budget(device, _SHARE_OF_MEMORY, None, weights_bytes, reserve.nbytes)
        self._times = times
        self._quantum_ms = quantum_ms
        self._grammars = grammars
        self._scheduler = Scheduler(
            slots,
            times,
            reserve.bound,
            reuse=loaded.facts.reuse,
            share_tokens=share_tokens,
            prefills_last=loaded.head is not None,
        )
        kept_bytes = int(min(kept_share * budget.kv_bytes, kept_bytes_max))
        self._engine = BatchEngine(loaded, budget.kv_bytes, kept_bytes)
        self._engine.chunk_bound = reserve.bound

    def add(self, requests: Seq[Request]) -> None:
        for request in requests:
            submit = Submit(
                epoch=0,
                sequence=request.name,
                attempt=1,
                prompt_ids=request.ids,
                emitted_ids=(),
                max_tokens=request.tokens_max,
                stop_ids=(),
                sampling=request.sampling,
                rank=0,
                quantum_ms=self._quantum_ms,
            )
            sequence = Sequence.of(submit, time.perf_counter())
            self._scheduler.submit(sequence)
            if sequence.awaits_guide:
                self._guide(sequence)

    def _guide(self, sequence: Sequence) -> None:
        """Wait until its grammar is compiled, which is no part of what is measured."""
        assert self._grammars is not None, "grammars need a desk"
        self._grammars.ask(sequence)
        while not (made := self._grammars.made()):
            time.sleep(_COMPILING_WAIT_S)
        [(_, guide)] = made
        assert isinstance(guide, Guide), guide
        self._scheduler.guide(sequence, guide)

    def turn(self) -> list[Token]:
        """Do what worker.loop.Loop.turn does: no token waits for a prefill, one step stays under way."""
        tokens: list[Token] = []
        if self._scheduler.will_prefill:
            tokens += self._read_all()
            self._begin()
        plan = self._scheduler.plan(time.perf_counter())
        self._engine.drop(plan.dropped)
        if plan.chunks:
            done = self._engine.prefill(plan.chunks)
            self._times.prefilled(plan.chunks, done.elapsed_ms)
            if done.firsts is not None:
                tokens += self._settle(done.firsts)
                self._engine.drop(self._scheduler.take_dropped())
        rows = self._scheduler.still_in(plan)
        if rows:
            self._engine.launch(rows)
        if self._engine.under_way > bool(rows):
            tokens += self._read()
        self._engine.tidy()
        self._engine.take_prefix_news()
        return tokens

    def _begin(self) -> None:
        self._engine.drop(self._scheduler.take_dropped())
        for sequence in self._scheduler.beginning():
            cached = self._engine.begin(sequence)
            assert cached is not None, "without a disk there is nothing to wait for"
            sequence.begin(cached)
            self.cached[sequence.name] = cached

    def _read_all(self) -> list[Token]:
        tokens: list[Token] = []
        while self._engine.under_way:
            tokens += self._read()
        return tokens

    def _read(self) -> list[Token]:
        result = self._engine.read()
        self._times.decoded(len(result.rows), result.elapsed_ms)
        return self._settle(result)

    def _settle(self, result: StepResult) -> list[Token]:
        now = time.perf_counter()
        outcomes = self._scheduler.settle(result.rows, result.tokens)
        emitted = [each for each in outcomes if isinstance(each, Emitted)]
        for each in emitted:
            self.said.setdefault(each.sequence.name, []).append(each.token)
        return [Token(each.sequence.name, now) for each in emitted]

    @property
    def kv_bytes(self) -> int:
        return self._engine.kv_bytes

    @property
    def evictions(self) -> int:
        """How many blocks were kept and are no more."""
        return self._engine.prefixes.evictions

    def close(self) -> None:
        self._scheduler.cancel_all()
        self._read_all()
        self._engine.drop(self._scheduler.plan(time.perf_counter()).dropped)
        self._engine.tidy()
        mx.set_cache_limit(self._buffer_cache_before)


def first_times(loaded: LoadedModel) -> StepTimes:
    """Return what the warm-up measured. Kept from run to run: a worker has learned by its first day."""
    decode_ms = loaded.decode_ms_per_step
    return StepTimes(loaded.prefill_ms_per_token, decode_ms, prefill_fixed_ms=decode_ms)


def contestant(
    name: str, loaded: LoadedModel, device: memory.DeviceReport, *, slots: int, quantum_ms: float
) -> Contestant:
    """Return a side whose measured step times outlive a run. Nothing of it is used again by another row."""
    times = first_times(loaded)

    def begin() -> Ours:
        return Ours(loaded, times, device, slots=slots, quantum_ms=quantum_ms)

    return Contestant(name, loaded.facts, begin)
