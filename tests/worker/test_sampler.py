"""The sampler against the rules said again in double precision, and rows that must not feel each other."""

from typing import Any, Final

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.sampling import Sampling, noise_key
from tests.worker.exact_sampling import NoiseKey, drawn, gumbel, is_close_call, kept_probabilities, key_with
from tests.worker.sampled_rows import exactly, keys
from worker.engine.noise import exponential
from worker.engine.row_kinds import BROAD, NARROW, kind_of
from worker.engine.sampler import BatchSampler, Draw

HASH_MAX: Final = (1 << 32) - 1

KEY: Final = noise_key(1, 0, 0)

samplings = st.builds(
    Sampling,
    temperature=st.one_of(st.just(0.0), st.just(1e-4), st.floats(0.01, 2.0), st.just(2.0)),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    top_k=st.one_of(st.just(0), st.integers(1, 40), st.integers(1, 3000)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
)


@st.composite
def rows(draw: st.DrawFn) -> tuple[Any, list[Sampling], list[NoiseKey]]:
    """Return logits (rows, vocabulary), some of them minus infinity, and each row's parameters and key."""
    count = draw(st.integers(1, 6))
    vocabulary = draw(st.integers(50, 3000))
    numbers = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    logits = numbers.standard_normal((count, vocabulary)) * numbers.choice((0.01, 1.0, 4.0, 20.0), (count, 1))
    logits[numbers.random(logits.shape) < draw(st.sampled_from((0.0, 0.3)))] = -np.inf
    logits[:, draw(st.integers(0, vocabulary - 1))] = numbers.standard_normal()
    parameters = draw(st.lists(samplings, min_size=count, max_size=count))
    noise = draw(st.lists(keys, min_size=count, max_size=count))
    return logits.astype(np.float32), parameters, noise


def tokens_of(logits: Any, parameters: list[Sampling], noise: list[NoiseKey]) -> list[int]:
    draw = exactly(BatchSampler(parameters, logits.shape[-1]), mx.array(logits), noise)
    return draw.read()[0]


@settings(max_examples=200, deadline=None)
@given(batch=rows())
def test_every_row_draws_what_the_rules_say(batch: tuple[Any, list[Sampling], list[NoiseKey]]) -> None:
    logits, parameters, noise = batch
    tokens = tokens_of(logits, parameters, noise)
    for row, token in enumerate(tokens):
        if not parameters[row].greedy:
            assume(not is_close_call(logits[row], parameters[row]))
        assert token in drawn(logits[row], parameters[row], noise[row])


@settings(max_examples=100, deadline=None)
@given(batch=rows(), data=st.data())
def test_a_token_depends_on_its_own_row_alone(
    batch: tuple[Any, list[Sampling], list[NoiseKey]], data: st.DataObject
) -> None:
    """Neither on the rows beside it nor on its place among them."""
    logits, parameters, noise = batch
    tokens = tokens_of(logits, parameters, noise)
    order = data.draw(st.permutations(range(len(tokens))))
    mixed = tokens_of(logits[order], [parameters[i] for i in order], [noise[i] for i in order])
    assert mixed == [tokens[i] for i in order]
    alone = [tokens_of(logits[i : i + 1], [parameters[i]], [noise[i]])[0] for i in range(len(tokens))]
    assert alone == tokens


@settings(max_examples=100, deadline=None)
@given(batch=rows(), data=st.data())
def test_a_token_without_probability_is_never_drawn(
    batch: tuple[Any, list[Sampling], list[NoiseKey]], data: st.DataObject
) -> None:
    """Not even where the noise favours it most, or favours least those that may be drawn."""
    logits, parameters, _ = batch
    token = data.draw(st.integers(0, logits.shape[1] - 1))
    for hashed in (0, HASH_MAX):
        noise = [key_with(token, hashed)] * len(parameters)
        for row, sampled in enumerate(tokens_of(logits, parameters, noise)):
            assert np.isfinite(logits[row, sampled])


@pytest.mark.parametrize(
    ("sampling", "kind"),
    [
        (Sampling(temperature=0.0, top_k=5), "greedy"),
        (Sampling(min_p=0.1), "plain"),
        (Sampling(top_k=20_000), "plain"),
        (Sampling(top_p=0.9), "narrow"),
        (Sampling(top_k=NARROW), "narrow"),
        (Sampling(top_k=NARROW + 1), "broad"),
        (Sampling(top_k=NARROW + 1, top_p=0.5), "broad"),
        (Sampling(top_k=BROAD + 1), "wide"),
        (Sampling(top_k=20_000, top_p=0.5), "narrow"),
    ],
)
def test_only_rows_that_ask_for_sorting_pay_for_it(sampling: Sampling, kind: str) -> None:
    assert kind_of(sampling, 20_000) == kind


def test_rows_of_all_kinds_draw_in_one_call() -> None:
    logits = np.random.default_rng(1).standard_normal((5, 2000)).astype(np.float32)
    parameters = [
        Sampling(top_k=900),
        Sampling(temperature=0.0),
        Sampling(top_p=0.3),
        Sampling(temperature=0.5),
        Sampling(top_k=3, temperature=2.0),
    ]
    noise = [noise_key(5, 0, position) for position in range(5)]
    tokens = tokens_of(logits, parameters, noise)
    assert [{token} for token in tokens] == [drawn(logits[i], parameters[i], noise[i]) for i in range(5)]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.9, top_k=40, top_p=0.95, min_p=0.02),
        Sampling(temperature=1.5),
        Sampling(temperature=0.6, top_p=0.8),
    ],
    ids=str,
)
def test_draws_follow_the_distribution(sampling: Sampling) -> None:
    """Over many positions each token comes as often as its probability says, within five deviations."""
    count = 20_000
    logits = np.random.default_rng(2).standard_normal(60).astype(np.float32)
    noise = [noise_key(7, 0, position) for position in range(count)]
    tokens = tokens_of(np.tile(logits, (count, 1)), [sampling] * count, noise)
    shares = np.bincount(tokens, minlength=60) / count
    expected = kept_probabilities(logits, sampling)
    assert (shares[expected == 0] == 0).all()
    assert (np.abs(shares - expected) <= 5 * np.sqrt(expected * (1 - expected) / count)).all()


def test_noise_is_what_the_hash_says_to_single_precision() -> None:
    """From the largest, where a series stands in for the logarithm, to the smallest."""
    hashes = [0, 1, 1 << 10, 1 << 20, 85_899_345, 85_899_346, 1 << 31, HASH_MAX - 4096]
    favoured = [key_with(40, hashed) for hashed in hashes]
    ids = mx.arange(2000, dtype=mx.uint32)[None]
    ours = -np.log(np.array(exponential(ids, mx.array(favoured, dtype=mx.uint32))))
    exact = np.stack([gumbel(2000, key) for key in favoured])
    assert ours[0, 40] > 22
    assert np.abs(ours - exact)[exact > -2].max() < 2e-5


def test_one_positions_draw_says_nothing_about_the_next_ones() -> None:
    """Pairs of neighbours, over two equally likely tokens, are as frequent as chance makes them."""
    count = 20_000
    noise = [noise_key(7, 0, position) for position in range(count)]
    tokens = np.array(tokens_of(np.zeros((count, 2), dtype=np.float32), [Sampling()] * count, noise))
    pairs = np.bincount(2 * tokens[:-1] + tokens[1:], minlength=4) / (count - 1)
    assert np.abs(pairs - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / count)


# --- what a narrow sort doesn't cover ---------------------------------------------------------------------

FLAT: Final = np.zeros((1, 2000), dtype=np.float32) + np.linspace(0, 0.1, 2000, dtype=np.float32)
PEAKED: Final = np.concatenate([np.full((1, 1), 30.0), np.zeros((1, 1999))], axis=1).astype(np.float32)


def covered(logits: Any, parameters: list[Sampling]) -> list[bool]:
    draw = BatchSampler(parameters, logits.shape[-1]).draw(mx.array(logits), [KEY] * len(parameters))
    return [True] * len(parameters) if draw.covered is None else draw.covered.tolist()


def test_a_row_whose_top_p_reaches_beyond_the_narrow_sort_is_flagged() -> None:
    logits = np.concatenate([FLAT, PEAKED, FLAT, FLAT])
    parameters = [Sampling(top_p=0.99), Sampling(top_p=0.99), Sampling(temperature=0.0), Sampling()]
    assert covered(logits, parameters) == [False, True, True, True]


@pytest.mark.parametrize("top_k", [0, 2000, 100_000])
def test_a_top_k_that_limits_nothing_covers_nothing(top_k: int) -> None:
    assert covered(FLAT, [Sampling(top_p=0.99, top_k=top_k)]) == [False]


@settings(max_examples=50, deadline=None)
@given(key=keys, top_p=st.floats(0.3, 0.999), min_p=st.sampled_from((0.0, 0.95)))
def test_a_flagged_row_is_drawn_again_exactly(key: NoiseKey, top_p: float, min_p: float) -> None:
    sampling = Sampling(top_p=top_p, min_p=min_p)
    assume(not is_close_call(FLAT[0], sampling))
    assert covered(FLAT, [sampling]) == [False]
    [token] = tokens_of(FLAT, [sampling], [key])
    assert token in drawn(FLAT[0], sampling, key)


def test_drawing_again_leaves_the_other_rows_tokens() -> None:
    sampler = BatchSampler([Sampling(top_p=0.99), Sampling(temperature=0.0), Sampling(top_p=0.5)], 2000)
    logits = mx.array(np.concatenate([FLAT, FLAT, PEAKED]))
    marked = Draw(mx.array([-1, -2, -3], dtype=mx.int32), mx.array([False, True, True]))
    tokens = sampler.draw_again(logits, [KEY] * 3, marked).tokens.tolist()
    assert tokens[1:] == [-2, -3]
    assert tokens[0] in drawn(FLAT[0], Sampling(top_p=0.99), KEY)


@pytest.mark.parametrize("top_k", [1, 100, NARROW, NARROW + 1, 1999])
def test_a_row_with_top_k_is_always_covered(top_k: int) -> None:
    parameters = [Sampling(top_k=top_k, top_p=0.999), Sampling(top_p=0.999)]
    assert covered(np.concatenate([FLAT, FLAT]), parameters) == [True, False]


def test_a_small_vocabulary_is_always_covered() -> None:
    assert covered(FLAT[:, :NARROW], [Sampling(top_p=0.999)]) == [True]


# --- extremes ---------------------------------------------------------------------------------------------

EXTREMES: Final = (
    Sampling(temperature=1e-4),
    Sampling(temperature=2.0),
    Sampling(temperature=2.0, top_p=0.9),
    Sampling(top_k=1),
    Sampling(top_p=1e-6),
    Sampling(min_p=1.0),
    Sampling(top_k=600, top_p=0.9, min_p=0.5),
)


@pytest.mark.parametrize("sampling", EXTREMES, ids=str)
@pytest.mark.parametrize("hashed", [0, 1 << 31, HASH_MAX])
def test_one_token_with_all_the_mass_is_drawn_whatever_the_noise(sampling: Sampling, hashed: int) -> None:
    logits = np.full((1, 900), -np.inf, dtype=np.float32)
    logits[0, 700] = -3.0
    assert tokens_of(logits, [sampling], [key_with(700, hashed)]) == [700]


@pytest.mark.parametrize("sampling", [Sampling(top_k=1), Sampling(top_p=1e-6), Sampling(min_p=1.0)], ids=str)
@pytest.mark.parametrize("hashed", [0, 1 << 31, HASH_MAX])
def test_parameters_that_leave_one_token_are_greedy(sampling: Sampling, hashed: int) -> None:
    logits = np.random.default_rng(3).standard_normal((1, 1200)).astype(np.float32)
    likeliest = int(logits.argmax())
    assert tokens_of(logits, [sampling], [key_with(likeliest, hashed)]) == [likeliest]


@pytest.mark.parametrize("hashed", [HASH_MAX, HASH_MAX - 127, HASH_MAX - 128, HASH_MAX - 200])
def test_the_least_favourable_noise_still_leaves_an_overwhelming_token_its_draw(hashed: int) -> None:
    """The noise is at least -log(33 log 2), about -3.1: it can't overturn odds of e to the 60."""
    logits = np.zeros((1, 100), dtype=np.float32)
    logits[0, 70] = 60.0
    assert tokens_of(logits, [Sampling()], [key_with(70, hashed)]) == [70]


def test_the_most_favourable_noise_draws_a_token_of_little_probability() -> None:
    logits = np.zeros((1, 3000), dtype=np.float32)
    logits[0, 0] = 10.0
    assert tokens_of(logits, [Sampling()], [key_with(1234, 0)]) == [1234]


def test_logits_of_half_precision_are_drawn_in_single_precision() -> None:
    logits = mx.random.normal((1, 500)).astype(mx.bfloat16)
    sampling = Sampling(temperature=0.8, top_p=0.95)
    [token] = exactly(BatchSampler([sampling], 500), logits, [KEY]).tokens.tolist()
    assert token in drawn(np.array(logits.astype(mx.float32))[0], sampling, KEY)
