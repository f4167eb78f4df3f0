"""Logit biases and penalties: the rows that have any are gathered and changed; the others pay nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import mlx.core as mx

from shared.sampling import Sampling
from worker.engine.history import Historian, History
from worker.engine.row_kinds import counts, repeats
from worker.engine.row_picks import RowPick


@dataclass(frozen=True, slots=True)
class _Biases:
    """Every bias of every row, flat: the row's place among the changed ones, the id, and what to add."""

    rows: mx.array
    ids: mx.array
    values: mx.array

    @classmethod
    def of(cls, rows: Sequence[Sampling], vocabulary: int) -> Self | None:
        flat = [
            (row, each.token, each.bias)
            for row, sampling in enumerate(rows)
            for each in sampling.logit_bias
            if each.token < vocabulary  # a write beyond the array would harm others; there is no such token
        ]
        if not flat:
            return None
        places, ids, values = zip(*flat, strict=True)
        return cls(
            mx.array(places, dtype=mx.int32),
            mx.array(ids, dtype=mx.int32),
            mx.array(values, dtype=mx.float32),
        )


class Changes:
    """Biases and penalties of a batch. Changed rows are ordered so that each penalty's are neighbours."""

    def __init__(self, rows: Sequence[Sampling], vocabulary: int) -> None:
        changed = [place for place, row in enumerate(rows) if row.logit_bias or row.has_penalties]
        changed.sort(key=lambda place: _rank(rows[place]))
        samplings = [rows[place] for place in changed]
        self.places = tuple(changed)
        self._pick = RowPick.of(changed, len(rows))
        self._biases = _Biases.of(samplings, vocabulary)
        self._repeating = _span([repeats(row) for row in samplings])
        self._counting = _span([counts(row) for row in samplings])
        self._repetition = _column([row.repetition_penalty for row in samplings[self._repeating]])
        self._presence = _column([row.presence_penalty for row in samplings[self._counting]])
        self._frequency = _column([row.frequency_penalty for row in samplings[self._counting]])
        self.historian = Historian(
            RowPick.of(changed[self._repeating], len(rows)),
            RowPick.of(changed[self._counting], len(rows)),
            vocabulary,
        )

    def applied(self, logits: mx.array, history: History) -> mx.array | None:
        """Return the changed rows, in the order of `places`, of float32 logits (rows, vocabulary)."""
        if not self.places:
            return None
        assert self.historian.knows(history), "a history of other rows"
        changed = self._pick.from_(logits)
        if self._biases is not None:
            changed = changed.at[self._biases.rows, self._biases.ids].add(self._biases.values)
        if history.seen.marks is not None:
            repeating = self._repeated(changed[self._repeating], history.seen.marks)
            changed = _replaced(changed, self._repeating, repeating)
        if history.counts.marks is not None:
            counting = self._counted(changed[self._counting], history.counts.marks)
            changed = _replaced(changed, self._counting, counting)
        return changed

    def _repeated(self, logits: mx.array, seen: mx.array) -> mx.array:
        less = mx.where(logits > 0, logits / self._repetition, logits * self._repetition)
        return mx.where(seen, less, logits)

    def _counted(self, logits: mx.array, counts: mx.array) -> mx.array:
        return logits - (self._presence * mx.minimum(counts, 1.0) + self._frequency * counts)


def _rank(row: Sampling) -> int:
    """Biased rows, repeating ones, those that repeat and count, counting ones."""
    return {(False, False): 0, (True, False): 1, (True, True): 2, (False, True): 3}[repeats(row), counts(row)]


def _span(holds: list[bool]) -> slice:
    """Return where it holds, which must be one stretch; an empty slice where it never does."""
    if True not in holds:
        return slice(0, 0)
    start = holds.index(True)
    return slice(start, start + sum(holds))


def _column(values: list[float]) -> mx.array:
    return mx.array(values, dtype=mx.float32)[:, None]


def _replaced(rows: mx.array, span: slice, by: mx.array) -> mx.array:
    if by.shape == rows.shape:
        return by
    return mx.concatenate([rows[: span.start], by, rows[span.stop :]])
