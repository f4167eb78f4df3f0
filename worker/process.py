"""The process that runs MLX: loads the model, says Hello, and turns its loop until it dies.

One thread loads, steps and frees (MLX's streams belong to a thread). Any exception out of the loop ends the
process: a dead thread under a live process is the worst failure there is.
"""

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from shared import lifeline, logs
from shared.channel import DealerChannel
from shared.clock import SystemClock
from shared.config import WorkerSettings
from shared.errors import ModelError
from shared.limits import GIB, MIB
from shared.messages import Hello, Phase, Progress
from shared.model_folder import TOKENIZER_FILE, ModelFolder
from shared.readings import MemoryReading
from worker import memory
from worker.engine import canary
from worker.engine.batch_engine import BatchEngine
from worker.engine.model import LoadedModel, load
from worker.engine.stored_arrays import FORMAT, weights_digest
from worker.findings import FindingsFile
from worker.first_runs import FIRST_RUN_MS, FirstRuns
from worker.foreign_signals import ForeignSignals, ensure_blocked
from worker.grammar import GrammarTokens
from worker.grammar_desk import GrammarDesk
from worker.held_memory import HeldMemory, MemorySources
from worker.inbox import Inbox
from worker.launch import EXIT_CANNOT_LOAD, EXIT_LOOP_EXCEPTION, EXIT_PLANNED, LaunchSpec, identity
from worker.loop import Loop, Parts
from worker.manifest import ManifestWriter
from worker.memory_guard import Bounds
from worker.outbox import Outbox
from worker.plan import ChunkBound, StepTimes
from worker.planned_end import PlannedEnd
from worker.prefix_disk.tier import DiskTier
from worker.progress_pipe import ProgressWriter
from worker.reporter import Reporter
from worker.running import Running
from worker.scheduler import Scheduler

_NO_READING: Final = MemoryReading(0, 0, 0, 0)
# What the last tokens get to leave the process in.
_LINGER_MS: Final = 300
# Of the machine's memory: when less is available to anybody, KV caches shrink.
_RESERVE_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class _Ready:
    """A model that is loaded, the memory it may use, and what a first run of something may take.

    Of the budget for KV caches `kept_bytes` may be beginnings of prompts that nobody uses at present.
    """

    loaded: LoadedModel
    budget: memory.Budget
    bounds: Bounds
    chunk_bound: ChunkBound
    first_run_ms: float
    kept_bytes: int


def main() -> NoReturn:
    """Run one life; end the process with a status that says why."""
    ensure_blocked()
    end = PlannedEnd(lambda: os._exit(EXIT_PLANNED))
    ForeignSignals(end.ask)
    spec = LaunchSpec.from_json(sys.argv[1])
    lifeline.watch(spec.lifeline_fd, lifeline.exit_now)
    logs.configure(spec.log, "worker")
    logs.about_epoch(spec.epoch)
    log = logs.get("worker").bind(epoch=spec.epoch)
    report = ProgressWriter(spec.progress_fd).write
    try:
        ready = _load(spec, report)
    except ModelError as problem:
        _say(f"the model can't be served: {problem}\n")
        _exit(EXIT_CANNOT_LOAD)
    if ready.budget.warning:
        log.warning("memory is tight", problem=ready.budget.warning)
    try:
        _Service(spec, ready, report, log).run(end)
    except Exception as error:
        log.exception("the loop failed; this process is finished")
        # In one line that isn't JSON, whatever the log's format: the supervisor reads the cause from it.
        _say(f"{type(error).__name__}: {error}\n")
        _exit(EXIT_LOOP_EXCEPTION)
    _exit(EXIT_PLANNED)


def _load(spec: LaunchSpec, report: Callable[[Progress], None]) -> _Ready:
    device = memory.device_report()
    memory.bound_buffer_cache(device)
    folder = ModelFolder.read(Path(spec.folder), spec.name)
    loading = _LoadingProgress(spec.epoch, report)
    loading.step()
    settings = spec.settings
    limit_bytes = memory.limit_bytes(device, settings.memory_fraction)
    loaded = load(
        folder,
        settings.context_tokens,
        loading.step,
        settings.kv_bits,
        limit_bytes=limit_bytes,
        share_tokens=settings.prefix_share_tokens if settings.cache_memory_mb != 0 else 0,
        findings=FindingsFile(Path(spec.findings_file)),
    )
    weights_bytes = loaded.facts.weights_bytes
    reserve = loaded.reserve(settings.slots, max(0, limit_bytes - weights_bytes))
    budget = memory.budget(
        device, settings.memory_fraction, settings.kv_budget_mb, weights_bytes, reserve.nbytes
    )
    if budget.kv_bytes < loaded.facts.batch_bytes([1]):
        raise _no_room(loaded, settings, device, f"{folder.path} doesn't fit in memory: {budget.warning}")
    bounds = Bounds(
        limit_bytes=limit_bytes,
        budget_bytes=budget.kv_bytes,
        reserve_bytes=int(_RESERVE_SHARE * memory.system_bytes()) if device.shares_memory else 0,
        arrays_max=device.resource_limit,
        shares_memory=device.shares_memory,
    )
    first_run_ms = FIRST_RUN_MS if device.is_gpu else 0.0
    kept_bytes = memory.kept_bytes(budget, settings.cache_memory_mb)
    return _Ready(loaded, budget, bounds, reserve.bound, first_run_ms, kept_bytes)


def _no_room(
    loaded: LoadedModel, settings: WorkerSettings, device: memory.DeviceReport, problem: str
) -> Exception:
    """Return how to end: what other processes hold for now is no reason to give a model up."""
    whole, fraction, weights_bytes = device.alone, settings.memory_fraction, loaded.facts.weights_bytes
    reserve = loaded.reserve(settings.slots, max(0, memory.limit_bytes(whole, fraction) - weights_bytes))
    alone = memory.budget(whole, fraction, settings.kv_budget_mb, weights_bytes, reserve.nbytes)
    if alone.kv_bytes < loaded.facts.batch_bytes([1]):
        return ModelError(problem)
    taken_mb = (whole.usable_bytes - device.usable_bytes) // MIB
    return MemoryError(f"{problem}; other processes hold {taken_mb} MiB of it")


class _LoadingProgress:
    """Tells the supervisor that loading moves, each time a part of it is done."""

    def __init__(self, epoch: int, report: Callable[[Progress], None]) -> None:
        self._epoch = epoch
        self._report = report
        self._step = 0

    def step(self) -> None:
        self._step += 1
        phase: Phase = "loading"
        self._report(Progress(self._epoch, self._step, phase, 0.0, 0, (), 0, 0, 0, 0, False, _NO_READING))


class _Service:
    """Everything that serves a loaded model, put together; an error in any of it ends the process."""

    def __init__(
        self, spec: LaunchSpec, ready: _Ready, report: Callable[[Progress], None], log: logs.Logger
    ) -> None:
        loaded = ready.loaded
        self._log = log
        self._name = spec.name
        self._way = loaded.way.value if loaded.way is not None else None
        self._hello = Hello(
            spec.epoch,
            spec.worker,
            loaded.facts,
            ready.budget.kv_bytes,
            spec.settings.slots if loaded.facts.batches else 1,
            loaded.prefill_ms_per_token,
            loaded.decode_ms_per_step,
        )
        self._tier = _disk_tier(spec, loaded, log)
        engine = _proved_engine(ready, self._tier)
        self._channel = DealerChannel(spec.endpoint, identity(spec.worker, spec.epoch))
        outbox = Outbox(self._channel, spec.epoch)
        clock = SystemClock()
        sources = MemorySources(memory.reading, memory.available_bytes, memory.give_back)
        held = HeldMemory(ready.bounds, sources, engine, loaded.arrays, clock=clock, log=log)
        times = _times(loaded)
        parts = Parts(
            inbox=Inbox(self._channel, spec.epoch, log),
            outbox=outbox,
            scheduler=Scheduler(
                self._hello.slots,
                times,
                ready.chunk_bound,
                reuse=loaded.facts.reuse,
                share_tokens=spec.settings.prefix_share_tokens,
                prefills_last=loaded.head is not None,
            ),
            engine=engine,
            times=times,
            running=Running(ManifestWriter(spec.manifest_fd).write),
            memory=held,
            reporter=Reporter(self._hello, outbox, report, held),
            first_runs=FirstRuns(ready.first_run_ms),
            grammars=_grammars(Path(spec.folder), loaded.facts.vocabulary),
        )
        self._loop = Loop(self._hello, parts, clock=clock)

    def run(self, end: PlannedEnd) -> None:
        """Say Hello and answer until the end is asked for; what is sent by then still leaves."""
        facts = self._hello.facts
        self._log.info(
            "ready",
            model=self._name,
            family=facts.family,
            slots=self._hello.slots,
            caches=facts.caches,
            kv_bits=facts.kv_bits or None,
            kv_budget_mb=self._hello.budget_bytes >> 20,
            kv_bytes_per_token=facts.kv_bytes_per_token,
            side_by_side_by=self._way,
            reuses_prompts=facts.reuse,
            shares_from_tokens=facts.shares_from or None,
            not_shared_because=facts.why_not_shared or None,
            one_row_because=facts.why_not or None,
        )
        end.serve()
        self._loop.run(lambda: end.asked)
        self._channel.close(_LINGER_MS)
        if self._tier is not None:
            self._tier.close()
        self._log.info("ended as asked")


def _grammars(folder: Path, vocabulary: int) -> GrammarDesk:
    return GrammarDesk(lambda: GrammarTokens.read(folder / TOKENIZER_FILE, vocabulary))


def _disk_tier(spec: LaunchSpec, loaded: LoadedModel, log: logs.Logger) -> DiskTier | None:
    """Return the place on disk for beginnings of this model's prompts, if there is to be one."""
    settings = spec.settings
    if not settings.prefix_disk_gb:
        return None
    if loaded.facts.reuse == "none":
        log.warning("nothing of prompts is kept on disk", because=loaded.facts.why_not_shared)
        return None
    tier = DiskTier(
        Path(spec.prefix_folder),
        f"{loaded.facts.fingerprint}-{loaded.facts.kv_bits}-{FORMAT}-{weights_digest(loaded.model)}",
        bytes_max=int(settings.prefix_disk_gb * GIB),
        writes_bytes_a_day=int(settings.prefix_disk_writes_gb * GIB),
        clock=SystemClock(),
        now=time.time,
        log=log,
    )
    tier.start()
    return tier


def _proved_engine(ready: _Ready, tier: DiskTier | None) -> BatchEngine:
    """Return an engine that has made a token; what it needed for that is free again."""
    engine = BatchEngine(ready.loaded, ready.budget.kv_bytes, ready.kept_bytes, tier)
    engine.chunk_bound = ready.chunk_bound
    canary.prove(engine, ready.loaded.facts.vocabulary)
    gc.collect()
    gc.freeze()
    return engine


def _times(loaded: LoadedModel) -> StepTimes:
    """Start from what the warm-up measured."""
    decode_ms = loaded.decode_ms_per_step
    return StepTimes(loaded.prefill_ms_per_token, decode_ms, prefill_fixed_ms=decode_ms)


def _say(words: str) -> None:
    """Write to stderr. A full disk costs the words, and doesn't change how the process ends."""
    with contextlib.suppress(OSError):
        sys.stderr.write(words)
        sys.stderr.flush()


def _exit(status: int) -> NoReturn:
    """End at once: MLX's threads may be in no state to be joined."""
    _say("")
    os._exit(status)


if __name__ == "__main__":
    main()
