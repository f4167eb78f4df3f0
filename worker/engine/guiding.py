"""Rows whose answers have grammars: what was read moves their guides on, and they say what is masked next."""

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

import mlx.core as mx
import numpy as np

from worker.grammar import Guide, GuideSteps
from worker.sequence import Sequence as Row

_THREADS_MAX: Final = 8


class Guiding:
    """Moves the guides of one engine's rows. It takes no threads before a row has one."""

    @cached_property
    def _steps(self) -> GuideSteps:
        return GuideSteps(max(1, min(_THREADS_MAX, (os.cpu_count() or 1) // 2)))

    def advance(self, rows: Sequence[Row], tokens: Sequence[int]) -> None:
        """Take a step's tokens, one a row."""
        taken = [(row.guide, token) for row, token in zip(rows, tokens, strict=True) if row.guide is not None]
        if taken:
            self._steps.advance(taken)


def has_guide_among(rows: Iterable[Row], others: Sequence[Row]) -> bool:
    """Whether one of these rows has a guide and is among the others, too."""
    return any(row.guide is not None and row in others for row in rows)


def masks_of(rows: Sequence[Row], places: Sequence[int]) -> mx.array | None:
    """Return what the guides of the rows at these places allow, uint32 (places, words); None for no place."""
    if not places:
        return None
    return mx.array(np.stack([_guide(rows[place]).words for place in places]))


def _guide(row: Row) -> Guide:
    assert row.guide is not None, "its grammar isn't compiled"
    return row.guide
