"""What is learned from measured times, and how chunks are sized and grouped by it."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages import Submit
from shared.sampling import Sampling
from worker.plan import CHUNK_TOKENS_MAX, UNBOUNDED, Chunk, ChunkBound, Plan, StepTimes, similar_lengths
from worker.sequence import Sequence

SMALL_CHUNK = 16


def chunk(tokens: int, start: int = 0, prompt: int | None = None) -> Chunk:
    ids = tuple(range(tokens + 1 if prompt is None else prompt))
    return Chunk(Sequence.of(Submit(1, "a", 1, ids, (), 4, (), Sampling(), 0, 250.0), now=0.0), start, tokens)


def times() -> StepTimes:
    return StepTimes(prefill_ms_per_token=1.0, decode_ms_per_step=10.0)


def test_before_anything_was_measured_the_warm_up_is_believed() -> None:
    assert times().decode_ms(3) == 10.0
    assert times().decode_ms(0) == 0.0
    assert times().prefill_ms(100, 5000) == 100.0


def decoded_often(learned: StepTimes, rows: int, elapsed_ms: float) -> None:
    for _ in range(60):
        learned.decoded(rows, elapsed_ms)


def prefilled_often(learned: StepTimes, chunks: tuple[Chunk, ...], elapsed_ms: float) -> None:
    for _ in range(60):
        learned.prefilled(chunks, elapsed_ms)


def test_a_decode_step_is_learned_for_its_number_of_rows_and_the_nearest_one_is_used() -> None:
    learned = times()
    decoded_often(learned, 2, 20.0)
    decoded_often(learned, 8, 80.0)
    seen = [round(learned.decode_ms(rows)) for rows in (1, 2, 4, 7, 8, 100)]
    assert seen == [20, 20, 20, 80, 80, 80]


def test_measured_times_move_slowly_towards_what_is_measured() -> None:
    learned = times()
    learned.decoded(1, 14.0)
    assert learned.decode_ms(1) == 11.0


def test_one_stall_counts_for_at_most_double_and_one_glitch_for_half() -> None:
    """A machine that slept, or a clock read too late, is not the new speed."""
    learned = times()
    learned.decoded(1, 1e6)
    assert learned.decode_ms(1) == 12.5
    learned = times()
    learned.prefilled((chunk(100),), 0.0)
    assert learned.prefill_ms(1, 100) == 0.875


def test_prefill_is_learned_by_context_and_an_unseen_one_takes_the_nearest_smaller() -> None:
    learned = times()
    prefilled_often(learned, (chunk(60), chunk(40)), 200.0)
    prefilled_often(learned, (chunk(100, start=4000, prompt=9000),), 700.0)
    rates = [round(learned.prefill_ms(1, context), 3) for context in (10, 60, 2000, 4095, 4096, 1 << 20)]
    assert rates == [1.0, 2.0, 2.0, 2.0, 7.0, 7.0]


def test_a_chunk_is_at_least_a_small_one_however_slow_prefill_is() -> None:
    assert StepTimes(1e6, 1.0).tokens_for(10.0, 0) == SMALL_CHUNK
    assert times().tokens_for(0.001, 0) == SMALL_CHUNK


def test_a_first_chunk_is_sized_by_what_first_chunks_took() -> None:
    """Not for ever by the warm-up, which saw 64 tokens."""
    learned = times()
    prefilled_often(learned, (chunk(250),), 1000.0)
    assert learned.tokens_for(250.0, 0) == 127
    prefilled_often(learned, (chunk(127),), 508.0)
    assert learned.tokens_for(250.0, 0) == 63
    prefilled_often(learned, (chunk(63),), 252.0)
    assert learned.tokens_for(250.0, 0) == 62


@settings(max_examples=150, deadline=None)
@given(
    measured=st.lists(
        st.tuples(st.integers(0, 60_000), st.integers(1, 4000), st.floats(0.1, 5000.0)), max_size=8
    ),
    budget_ms=st.floats(0.01, 5000.0),
    context=st.integers(0, 100_000),
)
def test_a_chunk_costs_no_more_than_its_time_or_is_a_small_one(
    measured: list[tuple[int, int, float]], budget_ms: float, context: int
) -> None:
    learned = times()
    for start, tokens, elapsed_ms in measured:
        learned.prefilled((chunk(tokens, start, prompt=start + tokens + 1),), elapsed_ms)
    tokens = learned.tokens_for(budget_ms, context)
    assert tokens >= SMALL_CHUNK
    if tokens > SMALL_CHUNK:
        assert learned.prefill_ms(tokens, context + tokens) <= budget_ms * (1 + 1e-9)


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 3000), max_size=30), tokens_max=st.integers(1, 9000), exact=st.booleans()
)
def test_chunks_are_grouped_by_length_within_a_bound_and_none_is_lost(
    lengths: list[int], tokens_max: int, exact: bool
) -> None:
    chunks = [chunk(length) for length in lengths]
    groups = similar_lengths(chunks, tokens_max, exact=exact)
    assert sorted(map(id, chunks)) == sorted(id(each) for group in groups for each in group)
    spread = 1.0 if exact else 1.25
    for group in groups:
        longest = max(each.tokens for each in group)
        assert longest <= spread * min(each.tokens for each in group)
        assert len(group) == 1 or len(group) * longest <= tokens_max
    for this, following in pairwise(groups):
        fits = (len(this) + 1) * following[0].tokens <= tokens_max
        assert following[0].tokens > spread * this[0].tokens or not fits, "two groups that could be one"


def test_unbounded_chunks_are_as_long_as_any() -> None:
    assert UNBOUNDED.tokens_for(0) == UNBOUNDED.tokens_for(10**6) == UNBOUNDED.together == CHUNK_TOKENS_MAX


def test_between_two_contexts_the_longer_ones_bound_holds() -> None:
    bound = ChunkBound((0, 100, 1000), (900, 300, 20))
    assert [bound.tokens_for(context) for context in (0, 1, 100, 101, 1000, 1001)] == [
        900,
        300,
        300,
        20,
        20,
        20,
    ]
    assert bound.together == 900


def test_a_chunk_knows_its_ids_and_whether_it_is_all_of_the_prefill() -> None:
    assert chunk(4).ids == (0, 1, 2, 3)
    assert chunk(2, start=1, prompt=6).ids == (1, 2)
    assert chunk(4).is_whole_prefill
    assert not chunk(3, start=0, prompt=6).is_whole_prefill
    assert not chunk(3, start=2, prompt=6).is_whole_prefill


def test_behind_what_was_there_already_all_that_is_left_is_the_whole_prefill() -> None:
    piece = chunk(3, start=2, prompt=6)
    piece.sequence.begin(2)
    assert piece.is_whole_prefill
    assert not Chunk(piece.sequence, 2, 2).is_whole_prefill
    assert not Chunk(piece.sequence, 0, 5).is_whole_prefill


@pytest.mark.parametrize(("chunks", "idle"), [((), True), ((chunk(3),), False)])
def test_a_plan_without_chunks_and_rows_is_idle(chunks: tuple[Chunk, ...], idle: bool) -> None:
    assert Plan((), chunks, (), 0.0).idle is idle
    assert not Plan((), chunks, (chunk(1).sequence,), 0.0).idle


def test_a_turns_fixed_cost_is_not_taken_for_its_tokens() -> None:
    learned = StepTimes(prefill_ms_per_token=1.0, decode_ms_per_step=10.0, prefill_fixed_ms=50.0)
    prefilled_often(learned, (chunk(100),), 250.0)
    assert round(learned.prefill_ms(1, 100), 3) == 2.0


def test_turns_faster_than_their_fixed_cost_never_make_tokens_free() -> None:
    """A chunk sized by a price near zero would be endless, and look like a hang."""
    learned = StepTimes(prefill_ms_per_token=1.0, decode_ms_per_step=10.0, prefill_fixed_ms=50.0)
    prefilled_often(learned, (chunk(40),), 30.0)
    assert learned.prefill_ms(1, 40) == 0.125
    prefilled_often(learned, (chunk(3),), 1e6)
    assert learned.prefill_ms(1, 3) == 1.0
