"""Which blocks of prompts a worker keeps, in memory or on disk, as the proxy is told of them. Pure."""

from collections.abc import Iterable
from typing import Protocol

from shared.prefix_chain import name_of


class Keeper(Protocol):
    """Somebody who keeps whole blocks, and knows which came and went since it was asked last."""

    def keys(self) -> list[bytes]: ...
    def take_news(self) -> tuple[list[bytes], list[bytes]]: ...


class PrefixNews:
    """Of several keepers' news those that the proxy has an interest in: kept by anybody, or by nobody."""

    def __init__(self, *keepers: Keeper | None) -> None:
        self._keepers = [keeper for keeper in keepers if keeper is not None]
        self._kept_by: dict[bytes, set[int]] = {}

    def take(self) -> tuple[list[int], list[int]]:
        """Return the names of blocks that are kept now and weren't, and of those that were and aren't."""
        touched: dict[bytes, bool] = {}
        for number, keeper in enumerate(self._keepers):
            added, gone = keeper.take_news()
            self._note(touched, added)
            self._note(touched, gone)
            for key in added:
                self._kept_by.setdefault(key, set()).add(number)
            for key in gone:
                self._kept_by.get(key, set()).discard(number)
        for key in touched:
            if not self._kept_by.get(key):
                self._kept_by.pop(key, None)
        new = [name_of(key) for key, was in touched.items() if key in self._kept_by and not was]
        old = [name_of(key) for key, was in touched.items() if key not in self._kept_by and was]
        return new, old

    def names(self) -> list[int]:
        """Return the names of all blocks that are kept."""
        return [name_of(key) for key in set().union(*(each.keys() for each in self._keepers))]

    def _note(self, touched: dict[bytes, bool], keys: Iterable[bytes]) -> None:
        """Remember of each key whether it was kept before any of this."""
        for key in keys:
            touched.setdefault(key, bool(self._kept_by.get(key)))
