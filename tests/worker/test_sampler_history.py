"""Histories carried step by step, through redraws, leaving and joining, are those rebuilt from ids."""

from dataclasses import dataclass, field
from typing import Any, Final

import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.sampling import Sampling, noise_key
from tests.worker.sampled_rows import texts
from worker.engine.history import NO_HISTORY, History, Ids
from worker.engine.sampler import BatchSampler, Draw

VOCABULARY: Final = 600  # more than a narrow sort, so that flat rows are drawn again

SAMPLINGS: Final = (
    Sampling(),
    Sampling(temperature=0.0, repetition_penalty=1.2),
    Sampling(top_p=0.999, frequency_penalty=0.5),
    Sampling(top_p=0.999, presence_penalty=-0.5, repetition_penalty=0.9),
    Sampling(top_k=20, presence_penalty=1.0, frequency_penalty=-0.3, repetition_penalty=1.5),
)


def marks(history: History) -> list[Any]:
    """Return everything in a history, with whose it is."""
    return [
        (each.places, None if each.marks is None else np.array(each.marks).tolist())
        for each in (history.seen, history.counts)
    ]


@dataclass(eq=False)
class Row:
    """A row as the host knows it, with every token read."""

    sampling: Sampling
    ids: list[int]
    answered: int

    @property
    def text(self) -> Ids:
        return Ids(tuple(self.ids), self.answered)

    def said(self, token: int) -> None:
        self.ids.append(token)
        self.answered += 1


@dataclass
class Steps:
    """Runs steps as the engine does: a step is launched before the one before it is read."""

    rows: list[Row] = field(default_factory=list)
    sampler: BatchSampler = field(default_factory=lambda: BatchSampler([], VOCABULARY))
    history: History = NO_HISTORY
    count: int = 0
    redraws: int = 0

    def become(self, rows: list[Row]) -> None:
        """Change the membership; a row that stays takes its history with it."""
        sources = [self.rows.index(row) if row in self.rows else row.text for row in rows]
        self.sampler = BatchSampler([row.sampling for row in rows], VOCABULARY)
        self.history = self.sampler.carry(self.history, sources)
        self.rows = rows

    def step(self, logits: mx.array) -> None:
        """Draw; run the step ahead and throw it away where a token didn't hold."""
        noise = [noise_key(self.count, place, 0) for place in range(len(self.rows))]
        before, self.count = self.history, self.count + 1
        draw = self.sampler.draw(logits, noise, before)
        ahead = self.sampler.draw(logits, noise, draw.history)
        mx.eval(draw.arrays, ahead.arrays)
        if draw.covered is not None and not all(draw.covered.tolist()):
            draw, self.redraws = self.sampler.draw_again(logits, noise, draw, before), self.redraws + 1
        for row, token in zip(self.rows, draw.read()[0], strict=True):
            row.said(token)
        self.history = draw.history

    def rebuilt(self) -> History:
        return self.sampler.start([row.text for row in self.rows])


@st.composite
def new_rows(draw: st.DrawFn) -> Row:
    text = draw(texts(VOCABULARY))
    return Row(draw(st.sampled_from(SAMPLINGS)), list(text.ids), text.answered)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_carried_history_is_the_one_rebuilt_from_ids(data: st.DataObject) -> None:
    steps = Steps()
    for _ in range(data.draw(st.integers(1, 4))):
        stay = data.draw(st.lists(st.sampled_from(steps.rows), unique=True)) if steps.rows else []
        joining = data.draw(st.lists(new_rows(), min_size=0 if stay else 1, max_size=4))
        steps.become(data.draw(st.permutations([*stay, *joining])))
        assert marks(steps.history) == marks(steps.rebuilt())
        for _ in range(data.draw(st.integers(1, 3))):
            flat = data.draw(st.sampled_from((0.01, 5.0)))
            numbers = np.random.default_rng(steps.count)
            logits = flat * numbers.standard_normal((len(steps.rows), VOCABULARY))
            steps.step(mx.array(logits.astype(np.float32)))
            assert marks(steps.history) == marks(steps.rebuilt())


def test_a_row_that_was_parked_and_comes_back_draws_what_it_would_have_drawn() -> None:
    """Its history is rebuilt from the ids that were sent; nothing on the device is left of it."""
    rows = [Row(sampling, [1, 2, 3], 0) for sampling in SAMPLINGS]
    stayed, parked = Steps(), Steps()
    stayed.become(rows)
    parked.become([Row(row.sampling, list(row.ids), 0) for row in rows])
    logits = mx.array(np.random.default_rng(1).standard_normal((5, VOCABULARY)).astype(np.float32))
    for _ in range(4):
        stayed.step(logits)
        parked.step(logits)
        parked.become([Row(row.sampling, list(row.ids), row.answered) for row in parked.rows])
    assert stayed.redraws > 0
    assert [row.ids for row in parked.rows] == [row.ids for row in stayed.rows]


def test_a_draw_leaves_the_history_it_was_given_as_it_was() -> None:
    """So that a step that is rolled back can be run again."""
    row = Sampling(repetition_penalty=1.5, frequency_penalty=0.4)
    sampler = BatchSampler([row] * 3, VOCABULARY)
    before = sampler.start([Ids((1, 2, 2), 1)] * 3)
    was = marks(before)
    logits = mx.random.normal((3, VOCABULARY))
    once = sampler.draw(logits, [(1, 2)] * 3, before)
    mx.eval(once.arrays)
    assert marks(before) == was
    assert marks(once.history) != was
    again = sampler.draw(logits, [(1, 2)] * 3, before)
    assert (again.tokens.tolist(), marks(again.history)) == (once.tokens.tolist(), marks(once.history))


def test_drawing_again_counts_the_exact_token_and_not_the_one_that_did_not_hold() -> None:
    row = Sampling(top_p=0.999, frequency_penalty=1.0, repetition_penalty=1.1)
    sampler = BatchSampler([row, row], VOCABULARY)
    before = sampler.start([Ids((5,), 0)] * 2)
    logits = mx.zeros((2, VOCABULARY))
    wrong = mx.array([599, 598], dtype=mx.int32)
    held = Draw(wrong, mx.array([False, True]), sampler.draw(logits, [(1, 2)] * 2, before).history)
    again = sampler.draw_again(logits, [(1, 2)] * 2, held, before)
    [exact, kept] = again.tokens.tolist()
    assert kept == 598
    assert exact != 599
    counts = again.history.counts.marks
    assert counts is not None
    assert np.argwhere(np.array(counts)).tolist() == [[0, exact], [1, 598]]
    seen = again.history.seen.marks
    assert seen is not None
    assert {tuple(place) for place in np.argwhere(np.array(seen)).tolist()} == {
        (0, 5),
        (0, exact),
        (1, 5),
        (1, 598),
    }


def test_drawing_again_where_all_is_covered_changes_nothing() -> None:
    sampler = BatchSampler([Sampling(top_p=0.5, frequency_penalty=1.0)], VOCABULARY)
    before = sampler.start([Ids((5,), 0)])
    draw = sampler.draw(mx.array([[50.0] + [0.0] * (VOCABULARY - 1)]), [(1, 2)], before)
    assert draw.covered is not None
    assert draw.covered.tolist() == [True]
    again = sampler.draw_again(mx.zeros((1, VOCABULARY)), [(1, 2)], draw, before)
    assert (again.tokens.tolist(), again.covered) == ([0], None)
    assert marks(again.history) == marks(draw.history)


def test_only_the_answer_is_counted_and_all_of_the_text_is_seen() -> None:
    row = Sampling(repetition_penalty=1.5, frequency_penalty=0.4)
    history = BatchSampler([Sampling(), row, row], 6).start(
        [Ids((0,), 0), Ids((1, 1, 2, 1, 1), 2), Ids((3,), 0)]
    )
    assert marks(history) == [
        ((1, 2), [[False, True, True, False, False, False], [False, False, False, True, False, False]]),
        ((1, 2), [[0, 2, 0, 0, 0, 0], [0] * 6]),
    ]


def test_an_id_beyond_the_vocabulary_is_counted_nowhere() -> None:
    row = Sampling(repetition_penalty=1.5, frequency_penalty=0.4)
    history = BatchSampler([row, row], 3).start([Ids((9, 1, 3, 1), 3), Ids((0,), 0)])
    assert marks(history) == [
        ((0, 1), [[False, True, False], [True, False, False]]),
        ((0, 1), [[0, 2, 0], [0, 0, 0]]),
    ]


def test_nobody_is_left() -> None:
    row = Sampling(repetition_penalty=1.5, frequency_penalty=0.4)
    history = BatchSampler([row], 3).start([Ids((0, 1), 1)])
    assert marks(BatchSampler([Sampling()], 3).carry(history, [Ids((1,), 0)])) == marks(NO_HISTORY)
