"""Slabs and snapshots without arrays: they hold what each token's keys and values would follow from."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from shared.prefix_chain import root_key
from worker.prefixes.blocks import Block, Match, Run, runs_of
from worker.prefixes.store import PrefixStore

TOKEN_BYTES = 8
BLOCK_BYTES = 64 * TOKEN_BYTES


def prompt(*numbers: int) -> tuple[int, ...]:
    """Return a prompt with a block of 64 different tokens for each number."""
    return tuple(1000 * number + at for number in numbers for at in range(64))


def trace(ids: Sequence[int], salt: str = "") -> tuple[int, ...]:
    """Return for each token a number of all tokens up to it, and of the salt."""
    return tuple(accumulate(ids, lambda before, token: hash((before, token)), initial=hash(salt)))[1:]


@dataclass(eq=False)
class FalseSlab:
    traces: tuple[int, ...]
    spare_bytes: int = 0
    __hash__ = None  # type: ignore[assignment]  # a slab needn't be hashable

    @property
    def tokens(self) -> int:
        return len(self.traces)

    @property
    def nbytes(self) -> int:
        return self.tokens * TOKEN_BYTES + self.spare_bytes


@dataclass(eq=False)
class FalseSnapshot:
    traced: int
    nbytes: int


@dataclass
class Mover:
    """Moves runs of false slabs; `moves` are the tokens copied, and the tokens of the slab they were in."""

    spare_bytes: int = 0
    moves: list[tuple[int, int]] = field(default_factory=list)

    def __call__(self, runs: Sequence[Run]) -> FalseSlab:
        [old] = {id(run.slab): run.slab for run in runs}.values()
        starts = [run.start for run in runs]
        assert starts == sorted(starts)
        assert all(one.start + one.count < other.start for one, other in pairwise(runs))
        self.moves.append((sum(run.count for run in runs), old.tokens))
        return FalseSlab(read(runs), self.spare_bytes)


def read(runs: Sequence[Run]) -> tuple[int, ...]:
    """Return what stands in these runs."""
    for run in runs:
        assert 0 <= run.start < run.start + run.count <= run.slab.tokens
    return tuple(found for run in runs for found in run.slab.traces[run.start : run.start + run.count])


def root(salt: str) -> bytes:
    return root_key("false weights", 0, salt=salt)


def new_store(bytes_max: int = 1 << 40, mover: Mover | None = None) -> PrefixStore:
    return PrefixStore(root, mover or Mover(), bytes_max)


def put(store, ids, salt="", start=0, *, cuttable=True, spare_bytes=0) -> FalseSlab:
    """Insert `ids` from `start` on in one slab."""
    slab = FalseSlab(trace(ids, salt)[start:], spare_bytes)
    store.insert(ids, salt, start, slab, cuttable=cuttable)
    return slab


def mark(store, ids, salt="", nbytes=TOKEN_BYTES) -> FalseSnapshot:
    """Insert a snapshot of all of `ids`."""
    snapshot = FalseSnapshot(trace(ids, salt)[-1], nbytes)
    store.snapshot(ids, salt, len(ids), snapshot)
    return snapshot


def tokens_in(store, ids, salt="") -> int:
    """Return how many tokens can be used, having read them."""
    found = store.match(ids, salt, len(ids))
    assert_is_of(store, found, ids, salt)
    return found.tokens


def assert_is_of(store, found: Match, ids, salt="") -> None:
    """What is found are the keys and values of just these tokens, and the state behind them."""
    traced = trace(ids, salt)[: found.tokens]
    assert read(runs_of(found.blocks, found.tokens)) == traced
    if found.snapshot is not None:
        assert found.snapshot.traced == traced[-1]


def ids_of(block: Block) -> tuple[int, ...]:
    """Return all tokens from the prompt's first to the block's last."""
    return (*(ids_of(block.parent) if block.parent else ()), *block.ids)
