"""What a model's facts say that rows take: room comes in steps, windows end, and more never takes less."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.limits import CONTEXT_TOKENS_MAX
from shared.model_facts import room_tokens
from tests.shared.wire_samples import FACTS

PAD = 256
PLAIN = dataclasses.replace(
    FACTS, kv_bytes_per_token=10, kv_pad_tokens=PAD, window_tokens=0, window_bytes_per_token=0
)
SOLO = dataclasses.replace(
    PLAIN, window_tokens=300, window_bytes_per_token=7, fixed_bytes_per_row=5, batches=False
)

costs = st.integers(0, 1 << 20)
pads = st.integers(0, 10).map(lambda power: 1 << power)
lengths_of_any_kind = st.lists(st.integers(0, 10_000), max_size=20)
# Where the steps grow lie the mistakes: around powers of two.
tokens_of_any_kind = st.one_of(
    st.integers(0, CONTEXT_TOKENS_MAX),
    st.builds(lambda power, off: max(0, (1 << power) + off), st.integers(0, 20), st.integers(-3, 3)),
)
facts_of_any_kind = st.builds(
    dataclasses.replace,
    st.just(FACTS),
    kv_bytes_per_token=costs,
    kv_pad_tokens=pads,
    window_tokens=st.integers(0, 4096),
    window_bytes_per_token=costs,
    fixed_bytes_per_row=costs,
    batches=st.booleans(),
)


# --- room ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "room"),
    [
        (0, 256),
        (255, 256),
        (256, 512),
        (16_382, 16_384),
        (16_383, 16_384),
        (16_384, 16_896),
        (32_767, 32_768),
        (32_768, 33_792),
        (100_000, 100_352),
    ],
)
def test_room_comes_in_steps_that_grow_with_the_length(tokens, room):
    """Of 256 tokens up to 16384, then of 512, from 32768 on of 1024, and so on."""
    assert room_tokens(tokens, 256) == room


@given(tokens_of_any_kind, pads)
def test_there_is_room_for_one_token_more_and_little_beyond_that(tokens, pad):
    """Less than a step of the padding lies idle, or than a 32nd of what is held."""
    room = room_tokens(tokens, pad)
    assert room >= tokens + 1
    assert room % pad == 0
    assert room - (tokens + 1) < max(pad, (tokens + 1) / 32)


@given(tokens_of_any_kind, st.integers(0, 5000), pads)
def test_a_longer_row_has_no_less_room(tokens, longer, pad):
    assert room_tokens(tokens, pad) <= room_tokens(tokens + longer, pad)


@given(tokens_of_any_kind, pads)
def test_room_stays_until_it_is_full_and_then_grows_by_a_64th_at_least(tokens, pad):
    """So a row that grows is copied as often for each doubling, however long it is."""
    room = room_tokens(tokens, pad)
    assert room_tokens(room - 1, pad) == room
    assert room_tokens(room, pad) - room >= max(pad, room / 64)


def test_a_row_that_grows_to_the_longest_context_is_copied_some_hundred_times():
    copies, room = 0, room_tokens(0, PAD)
    while room < CONTEXT_TOKENS_MAX:
        copies, room = copies + 1, room_tokens(room, PAD)
    assert copies <= 8192 // PAD + 32 * (CONTEXT_TOKENS_MAX // 8192).bit_length()


# --- bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "room"), [(0, PAD), (1, PAD), (255, PAD), (256, 2 * PAD), (600, 3 * PAD)])
def test_a_row_takes_whole_steps_and_has_room_for_its_next_token(tokens, room):
    assert PLAIN.row_bytes(tokens) == 10 * room


@pytest.mark.parametrize(("tokens", "window"), [(0, PAD), (255, PAD), (256, 300), (299, 300), (9000, 300)])
def test_a_window_takes_no_more_than_its_own_tokens(tokens, window):
    room = -(-(tokens + 1) // PAD) * PAD
    assert SOLO.row_bytes(tokens) == 10 * room + 7 * window + 5


def test_state_that_does_not_grow_is_all_that_a_row_of_it_takes():
    state = dataclasses.replace(SOLO, kv_bytes_per_token=0, window_tokens=0, window_bytes_per_token=0)
    assert [state.row_bytes(tokens) for tokens in (0, 1, 100_000)] == [5, 5, 5]


@given(facts_of_any_kind, tokens_of_any_kind, st.integers(0, 5000))
def test_a_longer_row_never_takes_less(facts, tokens, longer):
    assert facts.row_bytes(tokens) <= facts.row_bytes(tokens + longer)


@given(facts_of_any_kind, tokens_of_any_kind)
def test_a_row_takes_what_its_tokens_take_and_little_more(facts, tokens):
    """Each layer's tokens and the next one; beyond that, of the room's rounding alone."""
    each = facts.kv_bytes_per_token + facts.window_bytes_per_token
    window = min(tokens + 1, facts.window_tokens) * facts.window_bytes_per_token
    needed = (tokens + 1) * facts.kv_bytes_per_token + window + facts.fixed_bytes_per_row
    idle_tokens = max(facts.kv_pad_tokens, (tokens + 1) / 32)
    assert needed <= facts.row_bytes(tokens) <= needed + idle_tokens * each


@given(facts_of_any_kind, lengths_of_any_kind)
def test_rows_together_take_what_each_takes_or_the_largest_where_one_runs_at_a_time(facts, lengths):
    each = [facts.row_bytes(tokens) for tokens in lengths]
    assert facts.batch_bytes(lengths) == (sum(each) if facts.batches else max(each, default=0))


def test_a_long_row_makes_no_short_one_dearer():
    assert PLAIN.batch_bytes([100, 100, 9000]) == 2 * PLAIN.row_bytes(100) + PLAIN.row_bytes(9000)
    assert SOLO.batch_bytes([300, 20, 800]) == SOLO.row_bytes(800)


@given(facts_of_any_kind, lengths_of_any_kind, st.integers(0, 10_000), st.integers(0, 5000), st.randoms())
def test_one_row_more_or_a_longer_one_never_takes_less(facts, lengths, length, longer, numbers):
    """And in which order they stand means nothing."""
    more = [*lengths, length]
    shuffled = numbers.sample(more, len(more))
    assert facts.batch_bytes(lengths) <= facts.batch_bytes(more)
    assert facts.batch_bytes(more) <= facts.batch_bytes([*lengths, length + longer])
    assert facts.batch_bytes(more) == facts.batch_bytes(shuffled)


# --- what can't be ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context_tokens", 0),
        ("vocabulary", 0),
        ("kv_pad_tokens", 0),
        ("window_tokens", -1),
        ("kv_bits", -1),
        ("kv_bits", 9),
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
