"""The process that runs MLX: loads the model, says Hello, and turns its loop until it dies.

One thread loads, steps and frees (MLX's streams belong to a thread). Any exception out of the loop ends the
process: a dead thread under a live process is the worst failure there is.
"""

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from shared import lifeline, logs
from shared.channel import DealerChannel
from shared.clock import SystemClock
from shared.errors import ModelError
from shared.messages import Hello, MemoryReading, Phase, Progress
from shared.model_folder import ModelFolder
from worker import memory
from worker.batch_engine import BatchEngine, RowCaches
from worker.inbox import Inbox
from worker.launch import EXIT_CANNOT_LOAD, EXIT_LOOP_EXCEPTION, LaunchSpec, identity
from worker.loop import Loop
from worker.model import LoadedModel, load
from worker.outbox import Outbox
from worker.padded import PaddedBatch
from worker.plan import StepTimes
from worker.progress_pipe import ProgressWriter
from worker.scheduler import Scheduler
from worker.solo_row import SoloRow

_NO_READING = MemoryReading(0, 0, 0, 0)


def main() -> NoReturn:
    """Run one life; end the process with a status that says why."""
    spec = LaunchSpec.from_json(sys.argv[1])
    lifeline.watch(spec.lifeline_fd, lifeline.exit_now)
    logs.configure(spec.log)
    log = logs.get("worker").bind(epoch=spec.epoch)
    report = ProgressWriter(spec.progress_fd).write
    try:
        loaded, budget = _load(spec, report)
    except ModelError as problem:
        sys.stderr.write(f"the model can't be served: {problem}\n")
        _exit(EXIT_CANNOT_LOAD)
    if budget.warning:
        log.warning("memory is tight", problem=budget.warning)
    try:
        _serve(spec, loaded, budget, report, log)
    except Exception:
        log.exception("the loop failed; this process is finished")
        _exit(EXIT_LOOP_EXCEPTION)


def _load(spec: LaunchSpec, report: Callable[[Progress], None]) -> tuple[LoadedModel, memory.Budget]:
    device = memory.device_report()
    memory.bound_buffer_cache(device)
    folder = ModelFolder.read(Path(spec.folder), spec.name)
    loading = _LoadingProgress(spec.epoch, report)
    loading.step()
    loaded = load(folder, spec.settings.context_tokens, loading.step)
    settings = spec.settings
    budget = memory.budget(
        device,
        settings.memory_fraction,
        settings.kv_budget_mb,
        loaded.facts.weights_bytes,
        loaded.prefill_bytes,
    )
    if budget.kv_bytes < loaded.facts.batch_bytes([1]):
        raise ModelError(f"{folder.path} doesn't fit in memory: {budget.warning}")
    return loaded, budget


class _LoadingProgress:
    """Tells the supervisor that loading moves, each time a part of it is done."""

    def __init__(self, epoch: int, report: Callable[[Progress], None]) -> None:
        self._epoch = epoch
        self._report = report
        self._step = 0

    def step(self) -> None:
        self._step += 1
        phase: Phase = "loading"
        self._report(Progress(self._epoch, self._step, phase, 0.0, 0, (), 0, _NO_READING))


def _serve(
    spec: LaunchSpec,
    loaded: LoadedModel,
    budget: memory.Budget,
    report: Callable[[Progress], None],
    log: logs.Logger,
) -> NoReturn:
    slots = spec.settings.slots if loaded.facts.batches else 1
    times = StepTimes(
        loaded.prefill_ms_per_token, loaded.decode_ms_per_step, prefill_fixed_ms=loaded.decode_ms_per_step
    )
    channel = DealerChannel(spec.endpoint, identity(spec.worker, spec.epoch))
    hello = Hello(
        spec.epoch,
        spec.worker,
        loaded.facts,
        budget.kv_bytes,
        slots,
        loaded.prefill_ms_per_token,
        loaded.decode_ms_per_step,
    )
    loop = Loop(
        hello,
        loaded.facts.context_tokens,
        (
            Inbox(channel, spec.epoch, log),
            Outbox(channel, spec.epoch),
            Scheduler(slots, times),
            BatchEngine(loaded, _row_caches(loaded, budget)),
            times,
        ),
        report,
        memory.reading,
        clock=SystemClock(),
    )
    log.info(
        "ready",
        model=spec.name,
        family=loaded.facts.family,
        slots=slots,
        kv_budget_mb=budget.kv_bytes >> 20,
        kv_bytes_per_token=loaded.facts.kv_bytes_per_token,
        one_row_because=loaded.facts.why_not or None,
    )
    gc.collect()
    gc.freeze()
    loop.run()


def _row_caches(loaded: LoadedModel, budget: memory.Budget) -> RowCaches:
    return SoloRow() if loaded.shapes is None else PaddedBatch(loaded.shapes, budget.kv_bytes)


def _exit(status: int) -> NoReturn:
    """End at once: MLX's threads may be in no state to be joined."""
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
