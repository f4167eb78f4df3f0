"""One model with both sides on it, and what each work sets against what."""

from typing import Final

from ops.engine import mlx_lm_side, ours
from ops.engine.contest import Values, contest
from ops.engine.lines import OURS, OURS_8_BIT, Line, lines_of
from ops.engine.side import Contestant
from ops.engine.subject import Subject, twin
from ops.engine.works import Scale, Setting
from ops.load.progress import Progress
from shared.errors import ModelError
from shared.lane_settings import INTERACTIVE
from worker import memory
from worker.engine.model import LoadedModel, warm_up

_KV_BITS: Final = 8


class Bench:
    """One model, and both sides on it. Raises ModelError if its context is too short for the scale.

    The engine changes the modules of a model it warms up, so each way of ours has modules of its own, on the
    same weights; mlx-lm's are as it made them.
    """

    def __init__(
        self, subject: Subject, device: memory.DeviceReport, scale: Scale, progress: Progress
    ) -> None:
        if scale.context_tokens > subject.folder.context_tokens:
            raise ModelError(
                f"{subject.folder.name} has a context of {subject.folder.context_tokens} tokens, and this "
                f"scale needs {scale.context_tokens}"
            )
        self._subject = subject
        self._device = device
        self._progress = progress
        self.scale = scale
        self._loaded: dict[int, LoadedModel] = {}
        self.setting = Setting(scale, subject.folder.vocabulary, INTERACTIVE.prefill_quantum_ms)

    def values(self, work: str, repeats: int) -> Values:
        """Measure one work; raises ModelError where the engine can't do it with this model."""
        contestants = (
            [self.ours(_KV_BITS, OURS_8_BIT), self.ours()] if work == "kv8" else [self.ours(), self.theirs()]
        )
        return contest(work, contestants, self.setting, repeats=repeats, progress=self._progress)

    def lines(self, work: str, values: Values) -> list[Line]:
        return lines_of(work, values, self.setting.quantum_ms)

    def ours(self, kv_bits: int = 0, name: str = OURS) -> Contestant:
        loaded = self._warm(kv_bits)
        slots = max(self.scale.rows, self.scale.streams + 1)
        return ours.contestant(name, loaded, self._device, slots=slots, quantum_ms=self.setting.quantum_ms)

    def theirs(self) -> Contestant:
        return mlx_lm_side.contestant(self._subject.model, self._warm(0).facts)

    def _warm(self, kv_bits: int) -> LoadedModel:
        if kv_bits not in self._loaded:
            with self._progress.phase(f"warming up, {kv_bits or 'no'} bits for KV"):
                model = twin(self._subject.model)
                loaded = warm_up(model, self._subject.folder, None, lambda: None, kv_bits=kv_bits)
            if not loaded.facts.batches:
                raise ModelError(f"{self._subject.folder.name} doesn't batch: {loaded.facts.why_not}")
            self._loaded[kv_bits] = loaded
        return self._loaded[kv_bits]
