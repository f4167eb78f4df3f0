"""Biases and penalties against the rules said again token by token, in every company."""

from dataclasses import replace
from typing import Any, Final

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.limits import LOGIT_BIASES_MAX
from shared.sampling import LogitBias, Sampling, noise_key
from tests.worker.exact_sampling import changed, drawn, is_close_call
from tests.worker.sampled_rows import Batch, batches, exactly, parts
from worker.engine.history import NO_HISTORY, Ids
from worker.engine.penalties import Changes
from worker.engine.row_kinds import history_bytes, sampler_bytes
from worker.engine.sampler import BatchSampler

KEY: Final = noise_key(1, 0, 0)
GREEDY: Final = Sampling(temperature=0.0)


def changed_rows(batch: Batch) -> Any:
    """Return what each row is drawn from, by the rules."""
    rows = zip(batch.logits, batch.rows, batch.texts, strict=True)
    return np.stack([changed(logits, row, *parts(text)) for logits, row, text in rows])


@settings(max_examples=60, deadline=None)
@given(batch=batches())
def test_logits_are_changed_as_the_rules_say_to_the_last_bit(batch: Batch) -> None:
    changes = Changes(batch.rows, batch.vocabulary)
    before = changes.historian.carried(NO_HISTORY, batch.texts)
    applied = changes.applied(mx.array(batch.logits), before)
    wanted = changed_rows(batch)
    asking = [i for i, row in enumerate(batch.rows) if row.logit_bias or row.has_penalties]
    assert sorted(changes.places) == asking
    for place, logits in zip(changes.places, [] if applied is None else np.array(applied), strict=True):
        np.testing.assert_array_equal(logits, wanted[place])


@settings(max_examples=80, deadline=None)
@given(batch=batches())
def test_every_row_draws_what_the_rules_say_of_its_changed_logits(batch: Batch) -> None:
    tokens = batch.draw().tokens.tolist()
    assert len(tokens) == len(batch.rows)
    for logits, row, key, token in zip(changed_rows(batch), batch.rows, batch.keys, tokens, strict=True):
        if row.greedy or not is_close_call(logits, row):
            assert token in drawn(logits, row, key)


@settings(max_examples=50, deadline=None)
@given(batch=batches(rows_max=8), data=st.data())
def test_a_rows_token_and_logprobs_depend_on_nothing_beside_it(batch: Batch, data: st.DataObject) -> None:
    """Neither on rows of any kind nor on its place among them."""
    tokens, logprobs = batch.draw().read()
    by_place = {each.place: replace(each, place=0) for each in logprobs}
    order = data.draw(st.permutations(range(len(tokens))))
    mixed, mixed_logprobs = batch.only(order).draw().read()
    assert mixed == [tokens[place] for place in order]
    assert {order[each.place]: replace(each, place=0) for each in mixed_logprobs} == by_place
    for place, token in enumerate(tokens):
        alone, own = batch.only([place]).draw().read()
        assert alone == [token]
        assert own == ((by_place[place],) if place in by_place else ())


PARAMETERS: Final = (
    {"repetition_penalty": 1.3},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.7},
    {"frequency_penalty": -0.7},
    {"logit_bias": (LogitBias(3, 4.0), LogitBias(11, -4.0))},
)
WAYS: Final = (GREEDY, Sampling(), Sampling(top_p=0.8), Sampling(top_k=5), Sampling(top_k=600))


@pytest.mark.parametrize("parameter", PARAMETERS, ids=str)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_each_parameter_alone_works_with_each_way_to_draw(way: Sampling, parameter: dict[str, Any]) -> None:
    """Over sixteen rows, of which some draw another token than they would without it."""
    numbers = np.random.default_rng(5)
    logits = numbers.standard_normal((16, 900)).astype(np.float32)
    logits[:, :20] += 4
    row = replace(way, **parameter)
    texts = [Ids(tuple(numbers.integers(0, 20, 30).tolist()), 20) for _ in range(16)]
    batch = Batch(logits, [row] * 16, [noise_key(3, 0, i) for i in range(16)], texts)
    tokens = batch.draw().tokens.tolist()
    for wanted, key, token in zip(changed_rows(batch), batch.keys, tokens, strict=True):
        assert (not row.greedy and is_close_call(wanted, row)) or token in drawn(wanted, row, key)
    assert tokens != Batch(logits, [way] * 16, batch.keys, texts).draw().tokens.tolist()


@settings(max_examples=40, deadline=None)
@given(batch=batches(rows_max=4), data=st.data())
def test_a_token_with_the_highest_bias_wins_and_one_with_the_lowest_never_does(
    batch: Batch, data: st.DataObject
) -> None:
    assume(batch.vocabulary > 2)
    logits = np.clip(np.nan_to_num(batch.logits, neginf=-20.0), -20, 20)
    lifted, sunk = data.draw(
        st.lists(st.integers(0, batch.vocabulary - 1), min_size=2, max_size=2, unique=True)
    )
    won = [replace(row, logit_bias=(LogitBias(lifted, 100.0),)) for row in batch.rows]
    won = [replace(row, repetition_penalty=1.0, frequency_penalty=0.0) for row in won]
    assert set(replace(batch, logits=logits, rows=won).draw().tokens.tolist()) == {lifted}
    lost = [replace(row, logit_bias=(LogitBias(sunk, -100.0),)) for row in batch.rows]
    lost = [replace(row, repetition_penalty=1.0, frequency_penalty=0.0) for row in lost]
    assert sunk not in replace(batch, logits=logits, rows=lost).draw().tokens.tolist()


def applied_to(logits: list[float], row: Sampling, text: Ids) -> list[float]:
    changes = Changes([row], len(logits))
    before = BatchSampler([row], len(logits)).start([text])
    applied = changes.applied(mx.array([logits]), before)
    assert applied is not None
    return [float(number) for number in applied[0].tolist()]


def test_repetition_divides_a_positive_logit_and_multiplies_another_one() -> None:
    row = Sampling(repetition_penalty=2.0)
    logits = applied_to([4.0, -4.0, 0.0, 4.0, -4.0], row, Ids((0, 1, 1, 2), 1))
    assert logits == [2.0, -8.0, 0.0, 4.0, -4.0]


def test_presence_counts_a_token_of_the_answer_once_and_frequency_each_time() -> None:
    text = Ids((0, 0, 0, 1, 2, 2, 2), 4)
    assert applied_to([8.0, 8.0, 8.0], Sampling(presence_penalty=1.0), text) == [8.0, 7.0, 7.0]
    assert applied_to([8.0, 8.0, 8.0], Sampling(frequency_penalty=1.0), text) == [8.0, 7.0, 5.0]
    both = Sampling(presence_penalty=-0.5, frequency_penalty=1.0)
    assert applied_to([8.0, 8.0, 8.0], both, text) == [8.0, 7.5, 5.5]


def test_biases_come_before_repetition_and_presence_after_it() -> None:
    row = Sampling(repetition_penalty=2.0, presence_penalty=1.0, logit_bias=(LogitBias(0, 5.0),))
    assert applied_to([-1.0, 3.0], row, Ids((1, 0), 1)) == [1.0, 1.5]


def test_a_greedy_row_takes_the_most_likely_token_after_its_penalties() -> None:
    logits = mx.array([[3.0, 2.9, 0.0]] * 2)
    rows = [GREEDY, replace(GREEDY, frequency_penalty=1.0)]
    sampler = BatchSampler(rows, 3)
    assert not sampler.needs_noise
    before, tokens = sampler.start([Ids((2,), 0)] * 2), []
    for _ in range(4):
        draw = sampler.draw(logits, [(0, 0)] * 2, before)
        before = draw.history
        tokens.append(draw.tokens.tolist())
    assert tokens == [[0, 0], [0, 1], [0, 0], [0, 1]]


def test_a_bias_beyond_the_vocabulary_changes_nothing() -> None:
    row = replace(GREEDY, logit_bias=(LogitBias(7, 100.0), LogitBias(1, 1.0)))
    assert applied_to([0.0, 0.0, 0.0], row, Ids((0,), 0)) == [0.0, 1.0, 0.0]
    only = replace(GREEDY, logit_bias=(LogitBias(3, 100.0),))
    assert applied_to([0.0, 1.0, 0.0], only, Ids((0,), 0)) == [0.0, 1.0, 0.0]


def test_a_bias_beyond_the_vocabulary_does_not_reach_the_next_row() -> None:
    rows = [replace(GREEDY, logit_bias=(LogitBias(token, 100.0), LogitBias(1, 1.0))) for token in (3, 4)]
    applied = Changes(rows, 3).applied(mx.zeros((2, 3)), NO_HISTORY)
    assert applied is not None
    assert applied.tolist() == [[0.0, 1.0, 0.0]] * 2


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_logits_of_half_precision_are_changed_in_single_precision(dtype: mx.Dtype) -> None:
    logits = (4 * mx.random.normal((3, 700))).astype(dtype)
    rows = [
        Sampling(repetition_penalty=1.1, logit_bias=(LogitBias(5, 0.001),)),
        Sampling(temperature=0.0, frequency_penalty=0.013),
        Sampling(top_p=0.99, presence_penalty=0.1, top_logprobs=3),
    ]
    sampler = BatchSampler(rows, 700)
    before = sampler.start([Ids(tuple(range(100)), 50)] * 3)
    single = logits.astype(mx.float32)
    assert (
        exactly(sampler, logits, [KEY] * 3, before).read()
        == exactly(sampler, single, [KEY] * 3, before).read()
    )
    wanted = changed(np.array(single)[0], rows[0], range(50), range(50, 100))
    assert exactly(sampler, logits, [KEY] * 3, before).tokens.tolist()[0] in drawn(wanted, rows[0], KEY)


FLAT: Final = np.linspace(0, 0.1, 2000, dtype=np.float32)


@pytest.mark.parametrize("seed", range(8))
def test_a_row_that_is_drawn_again_keeps_its_bias_and_penalties(seed: int) -> None:
    """Without them it would often draw a token that they make as good as impossible."""
    sunk = tuple(LogitBias(token, -100.0) for token in range(1000, 2000))
    row = Sampling(
        top_p=0.99, logit_bias=sunk[:LOGIT_BIASES_MAX], presence_penalty=2.0, repetition_penalty=2.0
    )
    text = Ids(tuple(range(1500, 2000)), 500)
    sampler = BatchSampler([row, Sampling(), row], 2000)
    logits, noise = mx.array(np.stack([FLAT] * 3)), [noise_key(seed, i, 0) for i in range(3)]
    before = sampler.start([text] * 3)
    draw = sampler.draw(logits, noise, before)
    assert draw.covered is not None
    assert draw.covered.tolist() == [False, True, False]
    again = sampler.draw_again(logits, noise, draw, before)
    assert again.covered is None
    tokens = again.tokens.tolist()
    assert tokens[1] == draw.tokens.tolist()[1]
    for place in (0, 2):
        wanted = changed(FLAT, row, (), text.ids)
        assert tokens[place] in drawn(wanted, row, noise[place])


def test_rows_without_penalties_keep_no_history() -> None:
    rows = [Sampling(), GREEDY, Sampling(logit_bias=(LogitBias(1, 1.0),))]
    sampler = BatchSampler(rows, 50)
    draw = sampler.draw(mx.zeros((3, 50)), [KEY] * 3)
    assert draw.history.arrays == []
    assert draw.history.nbytes == 0


def test_a_history_of_other_rows_is_refused() -> None:
    row = Sampling(frequency_penalty=1.0)
    with pytest.raises(AssertionError, match="other rows"):
        BatchSampler([row], 50).draw(mx.zeros((1, 50)), [KEY])
    with pytest.raises(AssertionError, match="other rows"):
        BatchSampler([Sampling(), row], 50).draw(
            mx.zeros((2, 50)), [KEY] * 2, BatchSampler([row, Sampling()], 50).start([Ids((1,), 0)] * 2)
        )


# --- memory -----------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(batch=batches(rows_max=6))
def test_a_history_takes_what_is_said_of_it(batch: Batch) -> None:
    history = BatchSampler(batch.rows, batch.vocabulary).start(batch.texts)
    assert history.nbytes == sum(history_bytes(row, batch.vocabulary) for row in batch.rows)


ALL: Final = Sampling(
    repetition_penalty=1.1, presence_penalty=0.5, logit_bias=(LogitBias(1, 1.0),), top_logprobs=20
)


@pytest.mark.parametrize("way", [*WAYS, Sampling(top_p=0.999)], ids=str)
@pytest.mark.parametrize("asks", [True, False])
def test_a_draw_takes_no_more_memory_than_is_said(way: Sampling, asks: bool) -> None:
    """Drawn again as well; the logits given are not its own."""
    row = replace(ALL, temperature=way.temperature, top_p=way.top_p, top_k=way.top_k) if asks else way
    rows, vocabulary = [row] * 8, 20_000
    sampler = BatchSampler(rows, vocabulary)
    logits = mx.zeros((8, vocabulary), dtype=mx.bfloat16)
    mx.eval(logits)
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    before = sampler.start([Ids((1, 2, 3), 1)] * 8)
    mx.eval(before.arrays)
    exactly(sampler, logits, [KEY] * 8, before).read()
    taken = mx.get_peak_memory() - held
    assert 8 * vocabulary * 3 < taken <= sampler_bytes(rows, vocabulary)
