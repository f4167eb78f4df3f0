"""Runs sides in turn on one work, again and again: what else the machine does meets all of them."""

import dataclasses
import gc
from collections.abc import Sequence
from typing import Final

import mlx.core as mx

from ops.engine.side import Contestant
from ops.engine.works import WORKS, Measured, Setting
from ops.load.progress import Progress

# A warm-up compiles and allocates, and its steps are not counted.
_WARM_STEPS: Final = 4

Values = dict[str, dict[str, list[float]]]


def contest(
    work: str, contestants: Sequence[Contestant], setting: Setting, *, repeats: int, progress: Progress
) -> Values:
    """Return by contestant and by what was measured one value a repeat; the order alternates."""
    values: Values = {each.name: {} for each in contestants}
    for number in range(repeats + 1):
        for each in contestants if number % 2 else reversed(contestants):
            told = f"run {number} of {repeats}" if number else "warm-up"
            with progress.phase(f"{work}, {each.name}: {told}"):
                measured = _run(work, each, setting if number else _brief(setting))
            if number:
                for measure, value in measured.items():
                    values[each.name].setdefault(measure, []).append(value)
    return values


def _brief(setting: Setting) -> Setting:
    scale = dataclasses.replace(setting.scale, steps=_WARM_STEPS, gaps=_WARM_STEPS)
    return dataclasses.replace(setting, scale=scale)


def _run(work: str, contestant: Contestant, setting: Setting) -> Measured:
    """Do a work once. `peak_bytes` is what was held at most beside what was held before: the weights."""
    gc.collect()
    mx.clear_cache()
    before_bytes = mx.get_active_memory()
    mx.reset_peak_memory()
    side = contestant.begin()
    try:
        measured = WORKS[work](side, contestant, setting)
        return {**measured, "peak_bytes": float(mx.get_peak_memory() - before_bytes)}
    finally:
        side.close()
