"""What a decode step reads once for several rows: the beginnings that they share, and beginnings of those.

Rows that begin alike are told by their blocks, which are the same objects up to where the rows part. So the
bases of all rows make a tree; each stretch of it between two partings is a segment, read once for all rows
behind it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from shared.limits import PREFIX_BLOCK_TOKENS
from worker.engine.joined_attention import Shared
from worker.engine.kinds import KeysValues
from worker.engine.row_caches import Base
from worker.engine.slabs import cut, together
from worker.prefixes.blocks import Run


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens that stand in `runs`, which these rows have in common.

    `rows` are their places, int32, and `places` gives each row of all its place among them, or -1; both are
    None where it is all rows.
    """

    runs: tuple[Run, ...]
    rows: mx.array | None
    places: mx.array | None

    def read(self, leaf: int, kind: KeysValues) -> Iterator[Shared]:
        """Yield each run's keys and values of one kind."""
        for run in self.runs:
            yield Shared(*kind.decode(together([run], leaf)), self.rows, self.places)


class SharedReading:
    """All segments of the batch's first `rows` rows, which begin with these bases; None has none."""

    def __init__(self, bases: Sequence[Base | None]) -> None:
        self.rows = len(bases)
        behind = [(place, base) for place, base in enumerate(bases) if base is not None]
        self.segments = [_segment(places, runs, self.rows) for places, runs in _stretches(behind, 0)]

    def read(self, leaf: int, kind: KeysValues) -> list[Shared]:
        """Return keys and values of one kind, run by run."""
        return [run for each in self.segments for run in each.read(leaf, kind)]


def _stretches(rows: list[tuple[int, Base]], begins: int) -> Iterator[tuple[list[int], list[Run]]]:
    """Yield the places of rows and what they have in common, from the token at `begins` on."""
    branches: dict[int, list[tuple[int, Base]]] = {}
    for place, base in rows:
        if base.tokens > begins:
            block = base.blocks[begins // PREFIX_BLOCK_TOKENS]
            branches.setdefault(id(block), []).append((place, base))
    for branch in branches.values():
        ends = _common([base for _, base in branch], begins // PREFIX_BLOCK_TOKENS)
        yield [place for place, _ in branch], cut(branch[0][1].runs(), begins, ends)
        yield from _stretches(branch, ends)


def _common(bases: list[Base], depth: int) -> int:
    """Return up to which token all of these are the same; their blocks at `depth` are."""
    first, most = bases[0].blocks, min(base.tokens for base in bases)
    end = first[depth].end
    while end < most and all(base.blocks[depth + 1] is first[depth + 1] for base in bases):
        depth += 1
        end = first[depth].end
    return int(min(end, most))


def _segment(places: list[int], runs: list[Run], count: int) -> Segment:
    if len(places) == count:
        return Segment(tuple(runs), None, None)
    among = {place: number for number, place in enumerate(places)}
    laid_out = [among.get(place, -1) for place in range(count)]
    return Segment(tuple(runs), mx.array(places, dtype=mx.int32), mx.array(laid_out, dtype=mx.int32))
