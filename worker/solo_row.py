"""The caches of a family that doesn't batch: at most one row, in the model's own caches."""

from typing import Any

from worker.cache_kinds import TOKENS_STEP, grow_by
from worker.padded import Prefilled


class SoloRow:
    """One row or none. State that isn't cut can't be rolled back. No room is kept for later."""

    can_roll_back = False

    def __init__(self) -> None:
        self.layers: list[Any] = []
        self.lengths: list[int] = []
        self.bytes_max = 0

    def join(self, prefilled: Prefilled, length: int) -> None:
        assert not self.lengths, "one row at a time"
        self.layers, self.lengths = prefilled.caches, [length]

    def leave(self, row: int) -> None:
        assert row == 0
        self.release()

    def begin_step(self, elsewhere_bytes: int) -> None:  # noqa: ARG002 (RowCaches' signature)
        """Let caches that are full grow to the next multiple of a step."""
        grow_by(self.layers, TOKENS_STEP - self.lengths[0] % TOKENS_STEP)

    def end_step(self) -> None:
        self.lengths = [self.lengths[0] + 1]

    def roll_back(self) -> None:
        raise AssertionError("state that isn't cut can't be rolled back")

    def release(self) -> None:
        self.layers, self.lengths = [], []

    @property
    def nbytes(self) -> int:
        return sum(int(cache.nbytes) for cache in self.layers)
