"""The caches of a family that doesn't batch: at most one row, in the model's own caches."""

from collections.abc import Collection, Mapping
from typing import Any

from worker.engine.grouping import Row
from worker.engine.row_caches import TOKENS_STEP, Base, Prefilled, arrays_in, grow_by
from worker.engine.slabs import RowSource


class SoloRow:
    """One row or none. No room is kept for later, and what a step did can't be taken back."""

    can_roll_back = False

    def __init__(self) -> None:
        self.layers: list[Any] = []
        self.rows: tuple[Row, ...] = ()
        self.bytes_max = 0
        self._length = 0

    def change(self, leaving: Collection[Row], joining: dict[Row, Prefilled], elsewhere_bytes: int) -> None:  # noqa: ARG002 (RowCaches' signature)
        rows = tuple(row for row in (*self.rows, *joining) if row not in leaving)
        assert len(rows) <= 1, "one row at a time"
        if not rows:
            self.release()
        for row, prefilled in joining.items():
            self.rows, self.layers, self._length = (row,), prefilled.caches, prefilled.length

    def put_behind(self, bases: Mapping[Row, Base], elsewhere_bytes: int) -> None:  # noqa: ARG002 (likewise)
        raise AssertionError("nobody is beside it to share anything with")

    def base_tokens(self, row: Row) -> int:  # noqa: ARG002 (RowCaches' signature)
        return 0

    def length(self, row: Row) -> int:  # noqa: ARG002 (likewise)
        return self._length

    def source(self, row: Row) -> RowSource:  # noqa: ARG002 (likewise)
        raise AssertionError("nothing of it is kept")

    def bases_moved(self) -> None:
        """There are none."""

    def make_room(self, elsewhere_bytes: int) -> None:
        """Nothing is wasted."""

    def begin_step(self, elsewhere_bytes: int) -> None:  # noqa: ARG002 (RowCaches' signature)
        """Let caches that are full grow to the next multiple of a step."""
        grow_by(self.layers, TOKENS_STEP - self._length % TOKENS_STEP)

    def end_step(self) -> None:
        self._length += 1

    def roll_back(self) -> None:
        raise AssertionError("state that isn't cut can't be rolled back")

    def release(self) -> None:
        self.layers, self.rows, self._length = [], (), 0

    @property
    def nbytes(self) -> int:
        return sum(int(cache.nbytes) for cache in self.layers)

    @property
    def groups(self) -> int:
        """It is alone."""
        return len(self.rows)

    @property
    def arrays(self) -> int:
        return arrays_in(self.layers)
