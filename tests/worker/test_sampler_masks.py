"""Rows with masks draw as if what isn't allowed had no probability, in every way there is to draw."""

from dataclasses import replace
from typing import Any, Final

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.sampling import Sampling
from tests.worker.exact_sampling import log_softmax
from tests.worker.sampled_rows import Batch, batches
from worker.engine.history import Ids
from worker.engine.row_kinds import sampler_bytes
from worker.engine.sampler import BatchSampler, Draw
from worker.grammar import bits_of

KEY: Final = (1, 2)
GRAMMAR: Final = 'start: "a"'


def masked(row: Sampling) -> Sampling:
    return replace(row, grammar=GRAMMAR)


def packed(allowed: Any) -> mx.array:
    """Return masks, uint32, of bools (rows, vocabulary)."""
    count = allowed.shape[1]
    return mx.array(np.stack([bits_of(np.nonzero(row)[0].tolist(), count) for row in allowed]))


def draw(batch: Batch, allowed: dict[int, Any]) -> Draw:
    """Draw, and draw again what isn't covered, with these masks at these places."""
    sampler = BatchSampler(batch.rows, batch.vocabulary)
    logits, before = mx.array(batch.logits), sampler.start(batch.texts)
    masks = packed(np.stack([allowed[place] for place in sampler.masked])) if sampler.masked else None
    drawn = sampler.draw(logits, batch.keys, before, masks)
    if drawn.covered is None:
        return drawn
    return sampler.draw_again(logits, batch.keys, drawn, before, masks)


@st.composite
def masks_for(draw: st.DrawFn, batch: Batch) -> dict[int, Any]:
    """Return which tokens are allowed in some of the rows; one that has a probability always is."""
    places = draw(st.sets(st.integers(0, len(batch.rows) - 1)))
    numbers = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    share = draw(st.sampled_from((0.0, 0.02, 0.5, 0.98)))
    allowed = {place: numbers.random(batch.vocabulary) < share for place in places}
    for place, row in allowed.items():
        row[int(np.argmax(batch.logits[place]))] = True
    return allowed


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_masked_row_is_drawn_as_one_whose_other_tokens_have_no_probability(data: st.DataObject) -> None:
    batch = data.draw(batches(rows_max=8))
    allowed = data.draw(masks_for(batch))
    logits = np.array(batch.logits)
    for place, row in allowed.items():
        logits[place, ~row] = -np.inf
    rows = [masked(row) if place in allowed else row for place, row in enumerate(batch.rows)]
    expected = Batch(logits, batch.rows, batch.keys, batch.texts).draw()
    drawn = draw(replace(batch, rows=rows), allowed)
    assert drawn.tokens.tolist() == expected.tokens.tolist()
    for place, row in allowed.items():
        assert row[drawn.tokens.tolist()[place]]


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_log_probabilities_are_the_models_own_whatever_is_allowed(data: st.DataObject) -> None:
    batch = data.draw(batches(rows_max=6))
    allowed = data.draw(masks_for(batch))
    rows = [
        masked(replace(row, top_logprobs=2)) if place in allowed else row
        for place, row in enumerate(batch.rows)
    ]
    tokens, logprobs = draw(replace(batch, rows=rows), allowed).read()
    for each in logprobs:
        if each.place in allowed:
            own = log_softmax(batch.logits[each.place])
            assert each.logprob == pytest.approx(own[tokens[each.place]], abs=1e-4)
            assert each.top_logprobs[0] == pytest.approx(own.max(), abs=1e-4)


@pytest.mark.parametrize(
    "row", [Sampling(temperature=0.0), Sampling(), Sampling(top_p=0.5), Sampling(top_k=3)], ids=str
)
def test_where_the_model_rules_out_all_that_is_allowed_one_of_it_is_drawn_still(row: Sampling) -> None:
    logits = np.full((1, 70), -np.inf, np.float32)
    logits[0, 3] = 1.0
    allowed = np.zeros(70, bool)
    allowed[[40, 69]] = True
    sampler = BatchSampler([masked(row)], 70)
    assert sampler.draw(mx.array(logits), [KEY], masks=packed(allowed[None])).tokens.item() in (40, 69)


def test_rows_beside_masked_ones_get_the_very_tokens_they_get_without_them() -> None:
    logits = mx.array(np.random.default_rng(0).standard_normal((3, 900)).astype(np.float32))
    rows = [Sampling(), Sampling(top_p=0.9), Sampling(temperature=0.0)]
    beside = BatchSampler([rows[0], masked(rows[1]), rows[2]], 900)
    free = BatchSampler(rows, 900).draw(logits, [KEY] * 3).tokens.tolist()
    drawn = beside.draw(logits, [KEY] * 3, masks=packed(np.arange(900)[None] == 7)).tokens.tolist()
    assert drawn == [free[0], 7, free[2]]
    assert beside.masked == (1,)
    assert BatchSampler(rows, 900).masked == ()


def test_a_masked_row_without_its_mask_is_not_drawn() -> None:
    with pytest.raises(AssertionError, match="masks"):
        BatchSampler([masked(Sampling())], 50).draw(mx.zeros((1, 50)), [KEY])


@pytest.mark.parametrize("way", [Sampling(temperature=0.0), Sampling(), Sampling(top_p=0.999)], ids=str)
@pytest.mark.parametrize("changed", [{}, {"repetition_penalty": 1.1, "top_logprobs": 3}], ids=str)
def test_a_masked_draw_takes_no_more_memory_than_is_said(way: Sampling, changed: dict[str, float]) -> None:
    rows, vocabulary = [masked(replace(way, **changed))] * 8, 20_000
    batch = Batch(np.zeros((8, vocabulary), np.float32), rows, [KEY] * 8, [])
    sampler = BatchSampler(rows, vocabulary)
    logits = mx.zeros((8, vocabulary), dtype=mx.bfloat16)
    masks = packed(np.arange(vocabulary)[None].repeat(8, 0) % 2 == 0)
    mx.eval(logits, masks)
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    before = sampler.start([Ids((1, 2, 3), 1)] * 8)
    drawn = sampler.draw(logits, batch.keys, before, masks)
    if drawn.covered is not None:
        drawn = sampler.draw_again(logits, batch.keys, drawn, before, masks)
    drawn.read()
    assert mx.get_peak_memory() - held <= sampler_bytes(rows, vocabulary)
