"""Sampling parameters have bounds; a token's noise depends on (seed, choice, position) and nothing else."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.limits import GRAMMAR_CHARS_MAX, SEED_MAX, SEED_MIN, TEMPERATURE_MAX, VOCABULARY_MAX
from shared.sampling import Sampling, noise_key

SEEDS = st.integers(SEED_MIN, SEED_MAX)
PLACES = st.integers(0, (1 << 32) - 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", TEMPERATURE_MAX + 0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", -1),
        ("top_k", VOCABULARY_MAX + 1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", math.nan),
        ("seed", SEED_MIN - 1),
        ("seed", SEED_MAX + 1),
        ("choice", -1),
        ("choice", 1 << 32),
    ],
)
def test_a_parameter_out_of_bounds_is_refused(field, value):
    with pytest.raises(ValueError, match=rf"{field}|finite"):
        Sampling(**{field: value})


@pytest.mark.parametrize("grammar", ["x" * (GRAMMAR_CHARS_MAX + 1), 'start: "\ud800"'])
def test_a_grammar_that_is_too_long_or_no_text_is_refused(grammar):
    with pytest.raises(ValueError, match="grammar"):
        Sampling(grammar=grammar)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"temperature": TEMPERATURE_MAX},
        {"top_p": 1.0},
        {"top_p": 1e-9},
        {"top_k": VOCABULARY_MAX},
        {"min_p": 1.0},
        {"seed": SEED_MIN},
        {"seed": SEED_MAX},
        {"choice": (1 << 32) - 1},
        {"grammar": "ü" * GRAMMAR_CHARS_MAX},
    ],
)
def test_the_bounds_themselves_are_allowed(fields):
    sampling = Sampling(**fields)
    assert {name: getattr(sampling, name) for name in fields} == fields


@pytest.mark.parametrize(("temperature", "greedy"), [(0.0, True), (1e-6, True), (1e-5, False), (1.0, False)])
def test_so_cold_that_dividing_by_it_is_no_use_is_greedy(temperature, greedy):
    assert Sampling(temperature=temperature).greedy is greedy


@given(SEEDS, PLACES, PLACES)
def test_the_key_is_two_words_of_32_bits(seed, choice, position):
    key = noise_key(seed, choice, position)
    assert len(key) == 2
    assert all(type(word) is int and 0 <= word < 1 << 32 for word in key)


def test_the_key_does_not_depend_on_what_was_asked_before():
    places = [(seed, choice, position) for seed in range(3) for choice in range(3) for position in range(50)]
    forwards = {place: noise_key(*place) for place in places}
    backwards = {place: noise_key(*place) for place in reversed(places)}
    assert forwards == backwards
    assert len(set(forwards.values())) == len(places)


@pytest.mark.parametrize(
    ("one", "other"),
    [((1, 0, 2), (2, 0, 1)), ((1, 2, 0), (2, 1, 0)), ((0, 1, 2), (0, 2, 1)), ((-1, 0, 0), (1, 0, 0))],
)
def test_places_that_resemble_each_other_have_nothing_in_common(one, other):
    assert not set(noise_key(*one)) & set(noise_key(*other))


@pytest.mark.parametrize("word", [0, 1])
@pytest.mark.parametrize(
    "places",
    [
        [(7, 0, position) for position in range(10_000)],
        [(seed, 0, 0) for seed in range(10_000)],
        [(7, choice, 5) for choice in range(10_000)],
    ],
    ids=["positions", "seeds", "choices"],
)
def test_the_words_are_spread_evenly_along_each_argument(places, word):
    """The mean of 10,000 even draws has a standard deviation of 0.0029; a tenth of them has one of 30."""
    draws = [noise_key(*place)[word] / (1 << 32) for place in places]
    assert sum(draws) / len(draws) == pytest.approx(0.5, abs=0.015)
    for tenth in range(10):
        assert 850 < sum(tenth <= 10 * draw < tenth + 1 for draw in draws) < 1150


def test_the_keys_are_those_of_every_version_before():
    """A seeded answer, and one that is resumed by a newer worker, must meet the noise it began with."""
    keys = [noise_key(1, 0, 0), noise_key(1, 0, 1), noise_key(-7, 3, 12345)]
    assert keys == [(2560610193, 1450673914), (2099159554, 2453741934), (2665013500, 3228083114)]
