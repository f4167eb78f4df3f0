"""What trials and probes have found out about a model, remembered for a worker's next life."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from shared.model_facts import Reuse
from worker.engine.working_set import WorkingSet

_BYTES_MAX: Final = 16_384


@dataclass(frozen=True, slots=True)
class Findings:
    """Of one model with caches of one precision, `model`.

    `way` and `together` are names of `worker.engine.trial`'s: how attention is done, and which prompts are
    prefilled as one batch. `prefills_last` says whether prefill brings the first token of an answer, and
    `working_set` what forward passes take behind contexts of up to `context_tokens`, measured with
    `free_bytes` to do so. The others are ModelFacts' fields.
    """

    model: str
    way: str
    together: str
    reuse: Reuse
    why_not_shared: str
    prefills_last: bool
    context_tokens: int
    free_bytes: int
    working_set: WorkingSet


class FindingsFile:
    """Holds the newest findings. Without a path nothing is remembered."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    def read(self, model: str) -> Findings | None:
        """Return what is known of a model; None if that is nothing, or can't be read."""
        if self._path is None:
            return None
        try:
            with self._path.open("rb") as file:
                found = TypeAdapter(Findings).validate_json(file.read(_BYTES_MAX))
        except (OSError, ValidationError):
            return None  # then it is tried again
        return found if found.model == model else None

    def write(self, findings: Findings) -> None:
        """Remember, if that is possible: without it, a start takes longer and is as good."""
        if self._path is None:
            return
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            new.write_bytes(TypeAdapter(Findings).dump_json(findings))
            new.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):  # the folder itself may be gone
                new.unlink()
