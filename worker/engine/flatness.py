"""Which rows are so flat that top_p reaches far: more is sorted for them, for a while. Pure."""

from collections.abc import Hashable, Iterable
from typing import Final

from worker.engine.row_kinds import FLATTEST

# A row that is found flat stays so for this many tokens; then less is tried again.
TOKENS: Final = 64


class Flatness:
    """Levels of rows, 0 to FLATTEST, each up to a token of its row."""

    def __init__(self) -> None:
        self._levels: dict[Hashable, tuple[int, int]] = {}

    def missed(self, row: Hashable, token: int) -> None:
        """Take note that not enough was sorted for a row at this token."""
        level, _ = self._levels.get(row, (0, 0))
        self._levels[row] = (min(FLATTEST, level + 1), token + TOKENS)

    def level(self, row: Hashable, token: int) -> int:
        """Return a row's level at this token; it falls by one after so many tokens."""
        level, until = self._levels.get(row, (0, 0))
        if level and token > until:
            level -= 1
            self._levels[row] = (level, token + TOKENS)
        return level

    def keep_only(self, rows: Iterable[Hashable]) -> None:
        """Forget all other rows."""
        kept = set(rows)
        self._levels = {row: each for row, each in self._levels.items() if row in kept and each[0]}
