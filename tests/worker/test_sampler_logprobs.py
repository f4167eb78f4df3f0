"""Log probabilities: the model's own, of the rows that ask, as many as they asked for."""

from dataclasses import replace
from typing import Any, Final

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.limits import LOGPROB_MIN
from shared.messages import RowLogprobs
from shared.sampling import LogitBias, Sampling, noise_key
from tests.worker.exact_sampling import log_softmax
from tests.worker.sampled_rows import Batch, batches
from worker.engine.history import Ids
from worker.engine.logprobs import LogprobWishes, _clipped, most_likely
from worker.engine.sampler import BatchSampler

GREEDY: Final = Sampling(temperature=0.0)


def in_order(logits: Any) -> list[int]:
    """Return the ids of these logits, the highest first, and the lower id first of equal ones."""
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))


@settings(max_examples=80, deadline=None)
@given(batch=batches(rows_max=6))
def test_logprobs_are_the_models_own_whatever_was_changed(batch: Batch) -> None:
    tokens, found = batch.draw().read()
    by_place = {each.place: each for each in found}
    assert len(by_place) == len(found)
    assert set(by_place) == {place for place, row in enumerate(batch.rows) if row.wants_logprobs}
    for place, each in by_place.items():
        exact = np.maximum(log_softmax(batch.logits[place]), LOGPROB_MIN)
        asked = min(batch.rows[place].top_logprobs, batch.vocabulary)
        assert each.top_ids == tuple(in_order(batch.logits[place])[:asked])
        np.testing.assert_allclose(each.top_logprobs, exact[list(each.top_ids)], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(each.logprob, exact[tokens[place]], rtol=1e-5, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 32), width=st.integers(1, 40), dtype=st.sampled_from((mx.bfloat16, mx.float32))
)
def test_of_equal_logits_the_lower_ids_come_first(seed: int, width: int, dtype: mx.Dtype) -> None:
    """Also where the last of the most likely ones is equal to the first that is left out."""
    numbers = np.random.default_rng(seed)
    logits = numbers.choice((-np.inf, -1.0000001, -1.0, -0.0, 0.0, 1e-30, 1.5, 3e38), (3, 40))
    given_logits = mx.array(logits.astype(np.float32)).astype(dtype).astype(mx.float32)
    found = most_likely(given_logits, width).tolist()
    assert found == [in_order(row)[:width] for row in np.array(given_logits)]


def logprobs_of(logits: Any, rows: list[Sampling]) -> tuple[RowLogprobs, ...]:
    logits = mx.array(logits)
    sampler = BatchSampler(rows, logits.shape[-1])
    before = sampler.start([Ids((0,), 0)] * len(rows))
    return sampler.draw(logits, [noise_key(1, 0, 0)] * len(rows), before).read()[1]


def test_a_row_gets_as_many_alternatives_as_it_asked_for() -> None:
    logits = np.tile(np.arange(30, dtype=np.float32), (5, 1))
    asked = [-1, 3, 0, 20, 1]
    found = {
        each.place: each for each in logprobs_of(logits, [replace(GREEDY, top_logprobs=k) for k in asked])
    }
    assert {place: len(each.top_ids) for place, each in found.items()} == {1: 3, 2: 0, 3: 20, 4: 1}
    assert found[3].top_ids == tuple(range(29, 9, -1))
    assert found[1].top_logprobs == found[3].top_logprobs[:3]
    assert {each.logprob for each in found.values()} == {found[3].top_logprobs[0]}


def test_rows_that_do_not_ask_get_nothing() -> None:
    sampler = BatchSampler([Sampling(), GREEDY], 10)
    draw = sampler.draw(mx.zeros((2, 10)), [(1, 2)] * 2)
    assert draw.logprobs is None
    assert draw.read()[1] == ()


def test_a_small_vocabulary_gives_all_it_has() -> None:
    [found] = logprobs_of([[0.0, 2.0, 1.0]], [replace(GREEDY, top_logprobs=20)])
    assert found.top_ids == (1, 2, 0)


def test_biases_and_penalties_change_the_token_and_not_its_logprob() -> None:
    row = Sampling(temperature=0.0, logit_bias=(LogitBias(2, 100.0),), repetition_penalty=2.0, top_logprobs=1)
    [found] = logprobs_of([[1.0, 0.0, -3.0]], [row])
    exact = log_softmax(np.array([1.0, 0.0, -3.0]))
    assert found.logprob == pytest.approx(exact[2], rel=1e-6)
    assert (found.top_ids, found.top_logprobs) == ((0,), pytest.approx((exact[0],), rel=1e-6))


def test_a_probability_of_zero_is_clipped() -> None:
    row = replace(GREEDY, top_logprobs=3, logit_bias=(LogitBias(1, 100.0),))
    [found] = logprobs_of([[30_000.0, -np.inf, 0.0]], [row])
    assert (found.logprob, found.top_ids) == (0.0, (0, 2, 1))
    assert found.top_logprobs == (0.0, LOGPROB_MIN, LOGPROB_MIN)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_give_logprobs_that_can_be_sent(broken: float) -> None:
    [found] = logprobs_of([[broken] * 4], [replace(GREEDY, top_logprobs=2)])
    assert (found.logprob, found.top_logprobs) == (LOGPROB_MIN, (LOGPROB_MIN, LOGPROB_MIN))
    assert len(set(found.top_ids)) == 2


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), scale=st.floats(0.0, 40.0), lift=st.floats(-1e4, 1e4))
def test_no_logprob_is_above_zero(seed: int, scale: float, lift: float) -> None:
    logits = scale * np.random.default_rng(seed).standard_normal((2, 50)) + lift
    wishes = LogprobWishes.of([Sampling(top_logprobs=20), Sampling(top_logprobs=0)])
    assert wishes is not None
    found = wishes.granted(mx.array(logits.astype(np.float32)), mx.array(logits.argmax(axis=-1)))
    for each in found.read():
        assert LOGPROB_MIN <= each.logprob <= 0
        assert all(LOGPROB_MIN <= logprob <= 0 for logprob in each.top_logprobs)


def test_a_logprob_that_rounding_lifts_above_zero_is_zero() -> None:
    """No backend here rounds so; another one's logsumexp may."""
    assert _clipped(mx.array([1e-6, -1.0, -1e5])).tolist() == [0.0, -1.0, LOGPROB_MIN]


def test_a_row_that_is_drawn_again_gets_the_logprob_of_its_exact_token() -> None:
    flat = np.linspace(0, 0.5, 2000, dtype=np.float32)
    rows = [Sampling(top_p=0.99, top_logprobs=2), Sampling(temperature=0.0, top_logprobs=0)]
    sampler = BatchSampler(rows, 2000)
    logits, moved = mx.array(np.stack([flat, flat])), 0
    for seed in range(20):
        noise = [noise_key(seed, 0, 0)] * 2
        draw = sampler.draw(logits, noise)
        again = sampler.draw_again(logits, noise, draw)
        (tokens, found), (first, _) = again.read(), draw.read()
        moved += tokens[0] != first[0]
        by_place = {each.place: each for each in found}
        for place, token in enumerate(tokens):
            assert by_place[place].logprob == pytest.approx(log_softmax(flat)[token], rel=1e-5)
        assert by_place[0].top_ids == (1999, 1998)
    assert moved > 0


def test_everything_of_a_step_is_read_in_one_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens, whether they are covered, two kinds of marks, and three arrays of log probabilities."""
    row = Sampling(top_p=0.9, repetition_penalty=1.1, frequency_penalty=0.3, top_logprobs=4)
    sampler = BatchSampler([row, Sampling(top_logprobs=0)], 700)
    draw = sampler.draw(mx.zeros((2, 700)), [(1, 2)] * 2, sampler.start([Ids((1,), 0)] * 2))
    evaluated: list[int] = []
    evaluate = mx.eval
    monkeypatch.setattr(mx, "eval", lambda *arrays: evaluated.append(len(arrays)) or evaluate(*arrays))
    assert len(draw.arrays) == 7
    tokens, found = draw.read()
    assert len(tokens) == len(found) == 2
    assert evaluated == [1]
