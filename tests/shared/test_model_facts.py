"""What a model's facts say that rows take: windows end, batches are padded, and more never takes less."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shared.wire_samples import FACTS

PAD = 256
PLAIN = dataclasses.replace(
    FACTS, kv_bytes_per_token=10, kv_pad_tokens=PAD, kv_pad_rows=2, window_tokens=0, window_bytes_per_token=0
)
SOLO = dataclasses.replace(
    PLAIN, kv_pad_rows=1, window_tokens=300, window_bytes_per_token=7, fixed_bytes_per_row=5, batches=False
)

costs = st.integers(0, 1 << 20)
facts_of_any_kind = st.builds(
    dataclasses.replace,
    st.just(FACTS),
    kv_bytes_per_token=costs,
    kv_pad_tokens=st.integers(1, 1024),
    kv_pad_rows=st.integers(1, 8),
    window_tokens=st.integers(0, 4096),
    window_bytes_per_token=costs,
    fixed_bytes_per_row=costs,
    batches=st.booleans(),
)
lengths_of_any_kind = st.lists(st.integers(0, 10_000), max_size=20)


@pytest.mark.parametrize(
    ("tokens", "padded"), [(0, PAD), (1, PAD), (255, PAD), (256, 2 * PAD), (600, 3 * PAD)]
)
def test_a_row_takes_whole_steps_and_has_room_for_its_next_token(tokens, padded):
    assert PLAIN.row_bytes(tokens) == 10 * padded


@pytest.mark.parametrize(("tokens", "window"), [(0, PAD), (255, PAD), (256, 300), (299, 300), (9000, 300)])
def test_a_window_takes_no_more_than_its_own_tokens(tokens, window):
    padded = -(-(tokens + 1) // PAD) * PAD
    assert SOLO.row_bytes(tokens) == 10 * padded + 7 * window + 5


def test_state_that_does_not_grow_is_all_that_a_row_of_it_takes():
    state = dataclasses.replace(SOLO, kv_bytes_per_token=0, window_tokens=0, window_bytes_per_token=0)
    assert [state.row_bytes(tokens) for tokens in (0, 1, 100_000)] == [5, 5, 5]


@pytest.mark.parametrize(("rows", "places"), [(1, 2), (2, 2), (3, 4), (8, 8)])
def test_a_batch_is_padded_to_its_longest_row_and_has_room_for_one_more_beside_it(rows, places):
    lengths = [100] * (rows - 1) + [300]
    assert PLAIN.batch_bytes(lengths) == (places + 1) * PLAIN.row_bytes(300)


def test_where_one_row_runs_at_a_time_nothing_is_beside_it():
    assert SOLO.batch_bytes([300]) == SOLO.row_bytes(300)
    assert SOLO.batch_bytes([300, 20, 800]) == SOLO.row_bytes(800)


@given(facts_of_any_kind)
def test_no_rows_take_nothing(facts):
    assert facts.batch_bytes([]) == 0


@given(facts_of_any_kind, lengths_of_any_kind, st.integers(0, 10_000), st.integers(0, 5000), st.randoms())
def test_one_row_more_or_a_longer_one_never_takes_less(facts, lengths, length, longer, numbers):
    """And in which order they stand means nothing."""
    more = [*lengths, length]
    shuffled = numbers.sample(more, len(more))
    assert facts.batch_bytes(lengths) <= facts.batch_bytes(more)
    assert facts.batch_bytes(more) <= facts.batch_bytes([*lengths, length + longer])
    assert facts.batch_bytes(more) == facts.batch_bytes(shuffled)
    assert facts.row_bytes(length) <= facts.batch_bytes([length])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context_tokens", 0),
        ("vocabulary", 0),
        ("kv_pad_tokens", 0),
        ("kv_pad_rows", 0),
        ("window_tokens", -1),
        ("kv_bytes_per_token", -1),
        ("window_bytes_per_token", -1),
        ("fixed_bytes_per_row", -1),
        ("weights_bytes", -1),
    ],
)
def test_facts_that_cannot_be_are_not_made(name, value):
    with pytest.raises(ValueError, match=r"must|out of range"):
        dataclasses.replace(FACTS, **{name: value})


def test_facts_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FACTS.vocabulary = 1
