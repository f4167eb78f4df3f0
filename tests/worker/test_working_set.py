"""What a forward pass takes by probes of others, what is set aside for it, and how chunks are bounded."""

from collections.abc import Callable
from itertools import product
from typing import Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from worker.engine.working_set import Demand, Probe, Reserve, WorkingSet, bound, reserve
from worker.plan import CHUNK_TOKENS_MAX, CHUNK_TOKENS_MIN

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
SLOW: Final = ((16, 48), (0, 1024))
FAST: Final = ((16, 48, 128, 256, 768, 2048), (0, 1024, 4096))
Cost = Callable[[int, int], float]


def probed(cost: Cost, where: tuple[tuple[int, ...], tuple[int, ...]] = FAST) -> WorkingSet:
    tokens, contexts = where
    return WorkingSet.through(
        Probe(each, context, cost(each, context)) for each, context in product(tokens, contexts)
    )


def pairs(fixed: float, a: float, b: float, c: float = 0.0) -> Cost:
    """Return what a model takes that makes scores: bytes fixed, a token, a pair and a token attended to."""
    return lambda tokens, context: fixed + a * tokens + (c + b * tokens) * (context + tokens)


@settings(deadline=None)
@given(
    fixed=st.floats(0, 1e6),
    a=st.floats(0, 1e5),
    b=st.floats(0, 1e3),
    c=st.floats(0, 1e3),
    tokens=st.integers(CHUNK_TOKENS_MIN, CHUNK_TOKENS_MAX),
    context=st.integers(0, 60_000),
)
def test_where_scores_are_made_it_is_found_from_the_probes_of_a_fast_device(
    fixed: float, a: float, b: float, c: float, tokens: int, context: int
) -> None:
    """Between the least two it is what the line says: 256 pairs more at most."""
    cost = pairs(fixed, a, b, c)
    found, true = probed(cost).nbytes(tokens, context), cost(tokens, context)
    assert true * (1 - 1e-6) <= found <= true * (1 + 1e-6) + (256 * b if tokens < 48 else 0)


@settings(deadline=None)
@given(
    a=st.floats(0, 1e5),
    b=st.floats(0, 1e3),
    tokens=st.integers(CHUNK_TOKENS_MIN, CHUNK_TOKENS_MAX),
    context=st.integers(0, 1024),
)
def test_four_short_probes_are_enough_for_it_on_a_slow_one(
    a: float, b: float, tokens: int, context: int
) -> None:
    """What a long chunk takes among itself is seen in what a short one takes behind a context."""
    cost = pairs(0, a, b)
    found = probed(cost, SLOW).nbytes(tokens, context)
    assert cost(tokens, context) * (1 - 1e-9) <= found <= cost(tokens, context) * 1.02 + 48 * 48 * b


@settings(deadline=None)
@given(a=st.floats(1, 1e5), b=st.floats(0, 1e3), context=st.integers(1024, 60_000))
def test_beyond_the_only_context_that_was_probed_it_is_never_too_low(
    a: float, b: float, context: int
) -> None:
    cost = pairs(1000, a, b)
    assert probed(cost, SLOW).nbytes(16, context) >= cost(16, context) * (1 - 1e-9)


@settings(deadline=None)
@given(
    a=st.floats(0, 1e5),
    b=st.floats(0, 1e3),
    tokens=st.integers(1, CHUNK_TOKENS_MAX),
    context=st.integers(0, 60_000),
)
def test_what_is_known_of_no_context_covers_pairs_of_tokens_behind_one(
    a: float, b: float, tokens: int, context: int
) -> None:
    cost = pairs(0, a, b)
    found = probed(cost, (FAST[0], (0,))).nbytes(tokens, context)
    assert found >= cost(tokens, context) * (1 - 1e-9) - 1e-9


def test_a_state_that_is_made_by_pieces_isnt_taken_for_scores() -> None:
    def cost(tokens: int, _context: int) -> float:
        return tokens * min(tokens, 256) * 100.0

    found = probed(cost)
    assert found.nbytes(2048, 9000) == cost(2048, 0)
    assert cost(1500, 0) <= found.nbytes(1500, 9000) <= 1.05 * cost(1500, 0)


def test_no_context_counts_beyond_a_window() -> None:
    def cost(tokens: int, context: int) -> float:
        return tokens * (tokens + min(context, 512)) * 100.0

    found = probed(cost, ((16, 48, 256, 2048), (0, 512, 4096)))
    assert found.nbytes(256, 512) == found.nbytes(256, 60_000) == cost(256, 512)
    assert found.nbytes(256, 256) == pytest.approx(cost(256, 256))


def test_a_larger_moment_that_takes_over_is_never_cut_short() -> None:
    """The peak is in one layer's gates for short contexts, and in attention for long ones."""

    def cost(tokens: int, context: int) -> float:
        return max(30_000.0 * tokens, 20.0 * tokens * (tokens + context))

    found = probed(cost)
    for tokens, context in product((16, 40, 100, 300, 1000, 2048), (0, 300, 700, 1500, 3000, 30_000)):
        assert found.nbytes(tokens, context) >= 0.99 * cost(tokens, context)


def test_rows_that_could_not_be_probed_to_the_end_go_on_as_their_pairs_do() -> None:
    cost = pairs(100, 3000, 40)
    ragged = [
        Probe(tokens, context, cost(tokens, context))
        for context, most in ((0, 2048), (1024, 256), (4096, 48))
        for tokens in FAST[0]
        if tokens <= most
    ]
    for tokens, context in product((16, 200, 1000, 2048), (0, 500, 1024, 4096)):
        found = WorkingSet.through(ragged).nbytes(tokens, context)
        assert cost(tokens, context) * 0.999 <= found <= cost(tokens, context) * 1.03


noisy = st.lists(st.floats(0, 1e9), min_size=18, max_size=18)


def drawn(values: list[float], rows: int, columns: int) -> WorkingSet:
    places = list(product(FAST[1][:rows], FAST[0][:columns]))
    return WorkingSet.through(
        Probe(tokens, context, value)
        for (context, tokens), value in zip(places, values[: len(places)], strict=True)
    )


@settings(deadline=None, max_examples=300)
@given(
    values=noisy,
    rows=st.integers(1, 3),
    columns=st.integers(2, 6),
    tokens=st.integers(1, 3000),
    more_tokens=st.integers(0, 3000),
    context=st.integers(0, 30_000),
    more_context=st.integers(0, 30_000),
)
def test_whatever_was_measured_more_never_takes_less(
    values: list[float],
    rows: int,
    columns: int,
    tokens: int,
    more_tokens: int,
    context: int,
    more_context: int,
) -> None:
    found = drawn(values, rows, columns)
    less = found.nbytes(tokens, context)
    assert 0 <= less <= found.nbytes(tokens + more_tokens, context + more_context) * (1 + 1e-9)


# --- what is set aside --------------------------------------------------------------------------------------

SCORES: Final = probed(pairs(20 * KIB, 30 * KIB, 72))
demands = st.builds(
    Demand,
    slots=st.integers(1, 64),
    context_tokens=st.integers(64, 100_000),
    vocabulary=st.integers(1, 200_000),
    layer_share=st.floats(0, 1),
)


@settings(deadline=None)
@given(
    values=noisy,
    rows=st.integers(1, 3),
    columns=st.integers(2, 6),
    demand=demands,
    free_bytes=st.integers(0, 1 << 40),
    context=st.floats(0, 1),
)
def test_no_chunk_takes_more_than_is_set_aside(
    values: list[float], rows: int, columns: int, demand: Demand, free_bytes: int, context: float
) -> None:
    found = drawn(values, rows, columns)
    kept = reserve(found, demand, free_bytes)
    start = int(context * demand.context_tokens)
    tokens = kept.bound.tokens_for(start)
    assert CHUNK_TOKENS_MIN <= tokens <= CHUNK_TOKENS_MAX
    assert found.nbytes(tokens, start) <= kept.nbytes + 1


DEMAND: Final = Demand(slots=4, context_tokens=8192, vocabulary=1000, layer_share=0.0)


def test_a_long_chunk_behind_nothing_fits_where_there_is_memory() -> None:
    kept = reserve(SCORES, DEMAND, 100 * GIB)
    assert kept.bound.tokens_for(0) == kept.bound.together == CHUNK_TOKENS_MAX
    assert SCORES.nbytes(2048, 0) <= kept.nbytes <= 1.2 * SCORES.nbytes(2048, 0)
    assert 500 < kept.bound.tokens_for(8000) < 1000, "pairs bound it behind a context"


def test_where_there_is_little_chunks_are_shorter_and_caches_get_the_rest() -> None:
    kept = reserve(SCORES, DEMAND, 100 * MIB)
    assert kept.nbytes < 27 * MIB
    assert 300 < kept.bound.tokens_for(0) < 600
    assert 16 < kept.bound.tokens_for(8000) < 60


def test_the_shortest_chunk_behind_the_longest_context_has_memory_in_any_case() -> None:
    kept = reserve(SCORES, DEMAND, MIB)
    assert kept.nbytes >= SCORES.nbytes(16, 8192)
    assert kept.bound.tokens_for(8192) == CHUNK_TOKENS_MIN
    assert kept.bound.tokens_for(0) > CHUNK_TOKENS_MIN, "what is set aside is used"


def test_so_has_a_step_of_many_rows_with_long_contexts() -> None:
    many = Demand(slots=512, context_tokens=8192, vocabulary=1, layer_share=0.0)
    assert reserve(SCORES, many, 10 * GIB).nbytes >= SCORES.nbytes(512, 8192) > SCORES.nbytes(16, 8192)
    assert reserve(SCORES, many, 500 * MIB).nbytes < 0.3 * 500 * MIB, "they couldn't all be so long"


def test_so_have_the_logits_of_all_rows_while_tokens_are_drawn() -> None:
    """A full sort of float32 logits takes fifteen times what they take themselves."""
    wide = Demand(slots=64, context_tokens=8192, vocabulary=250_000, layer_share=0.0)
    assert reserve(SCORES, wide, 10 * GIB).nbytes >= 16 * 64 * 250_000 * 4


def test_so_has_one_layer_of_all_caches_while_groups_change() -> None:
    shared = Demand(slots=4, context_tokens=8192, vocabulary=1000, layer_share=0.25)
    kept = reserve(SCORES, shared, 10 * GIB)
    caches_bytes = 10 * GIB - kept.nbytes
    passes_bytes = reserve(SCORES, DEMAND, 10 * GIB).nbytes
    assert kept.nbytes == pytest.approx(passes_bytes + caches_bytes / 4, abs=16)


def test_the_bound_ends_with_the_context_and_holds_beyond() -> None:
    short = bound(SCORES, 100, 10 * MIB)
    assert short.contexts[-1] >= 100
    assert short.tokens_for(10**9) == short.longest[-1]


@settings(deadline=None)
@given(chunk_bytes=st.integers(0, GIB), context=st.integers(0, 8191))
def test_a_bound_is_as_long_as_its_bytes_allow_but_for_the_steps_of_contexts(
    chunk_bytes: int, context: int
) -> None:
    tokens = bound(SCORES, 8192, chunk_bytes).tokens_for(context)
    assume(tokens < CHUNK_TOKENS_MAX)
    assert 1.15 * SCORES.nbytes(tokens + 1, context + context // 8 + 16) > chunk_bytes


def test_a_reserve_is_whole_bytes() -> None:
    assert isinstance(reserve(SCORES, DEMAND, GIB), Reserve)
    assert isinstance(reserve(SCORES, DEMAND, GIB).nbytes, int)
