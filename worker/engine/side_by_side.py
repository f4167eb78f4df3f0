"""How a model's rows are kept, attended to and prefilled side by side: tried once, then remembered."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from shared.model_facts import Reuse
from worker.engine.beginnings_trial import BeginningsTrial
from worker.engine.hooks import Way
from worker.engine.output_head import OutputHead, output_head, put_back
from worker.engine.row_batch import Layout
from worker.engine.trial import Together, Trial
from worker.engine.working_set import WorkingSet
from worker.findings import Findings, FindingsFile

# Free memory that is said to be as much as it was.
_AS_MUCH: Final = 0.9


@dataclass(frozen=True, slots=True)
class SideBySide:
    """What was found out, or why one row runs at a time. Its way and its head are in the model's place."""

    layout: Layout | None = None
    way: Way | None = None
    together: Together = Together.NEVER
    head: OutputHead | None = None
    why_not: str = ""
    reuse: Reuse = "none"
    why_not_shared: str = "one row runs at a time"

    @property
    def shares(self) -> bool:
        return not self.why_not_shared

    @classmethod
    def found(cls, layout: Layout | str, trial: Callable[[Layout], Trial], known: Findings | None) -> Self:
        """Find it out, or put in place what is known. `layout` is how rows would be kept, or why not."""
        if isinstance(layout, str):
            return cls(why_not=layout)
        remembered = None if known is None else cls._put_back(layout, trial(layout), known)
        return remembered or cls._tried(layout, trial)

    @classmethod
    def _put_back(cls, layout: Layout, trial: Trial, known: Findings) -> Self | None:
        """Put the way in place that was found then; None if it won't go."""
        if known.way not in Way.__members__ or known.together not in Together.__members__:
            return None
        way, together = Way[known.way], Together[known.together]
        if not trial.put_back(way):
            return None
        layout = dataclasses.replace(layout, by_rows=way is Way.BY_ROWS)
        head = put_back(trial.model, trial.vocabulary) if known.prefills_last else None
        return cls(layout, way, together, head, reuse=known.reuse, why_not_shared=known.why_not_shared)

    @classmethod
    def _tried(cls, layout: Layout, trial: Callable[[Layout], Trial]) -> Self:
        way = trial(layout).way()
        if way is None:
            return cls(why_not="rows side by side give other logits than each row alone")
        layout = dataclasses.replace(layout, by_rows=way is Way.BY_ROWS)
        together = trial(layout).together()
        beginnings = BeginningsTrial(trial(layout), way)
        reuse = beginnings.reuse()
        why_not = beginnings.why_not_shared() if reuse != "none" else "nothing of a prompt can be used again"
        head = output_head(trial(layout), together)
        return cls(layout, way, together, head, reuse=reuse, why_not_shared=why_not)


@dataclass(frozen=True, slots=True)
class Remembered:
    """What an earlier life has found out about a model, by the name that it has there; None for nothing."""

    file: FindingsFile
    model: str
    findings: Findings | None

    @classmethod
    def of(cls, file: FindingsFile, model: str) -> Self:
        return cls(file, model, file.read(model))

    def working_set(self, context_tokens: int, free_bytes: int) -> WorkingSet | None:
        """Return what forward passes take, as it was measured for contexts up to the same length.

        Not what was measured with less room than there is now: few probes say little.
        """
        known = self.findings
        if known is None or known.context_tokens != context_tokens:
            return None
        return known.working_set if known.free_bytes >= _AS_MUCH * free_bytes else None

    def keep(self, found: SideBySide, context_tokens: int, free_bytes: int, working_set: WorkingSet) -> None:
        """Remember it for the next life. What one row at a time does is found out quickly."""
        known = self.findings
        if found.way is None:
            return
        if known is not None and working_set is known.working_set:
            free_bytes = known.free_bytes  # it was measured then
        new = Findings(
            model=self.model,
            way=found.way.name,
            together=found.together.name,
            reuse=found.reuse,
            why_not_shared=found.why_not_shared,
            prefills_last=found.head is not None,
            context_tokens=context_tokens,
            free_bytes=free_bytes,
            working_set=working_set,
        )
        if new != known:
            self.file.write(new)
