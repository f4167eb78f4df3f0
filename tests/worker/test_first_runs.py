"""Patience with what was never run before: told in Progress, so nobody takes a compiler for a hang."""

from collections.abc import Sequence as Seq

import pytest

from shared.messages import Submit
from shared.sampling import Sampling
from tests.worker.turned_loop import Turned, submit
from worker.first_runs import FIRST_RUN_MS, FirstRuns
from worker.plan import Chunk, Plan
from worker.sequence import Sequence

KNOWN_MS = 20.0


class Runs:
    """Plans one after the other, each in a turn of its own."""

    def __init__(self, first_run_ms: float = FIRST_RUN_MS) -> None:
        self.runs = FirstRuns(first_run_ms)

    def expects(self, *, chunks: Seq[Chunk] = (), rows: Seq[Sequence] = ()) -> float:
        self.runs.begin_turn()
        return self.runs.expected_ms(Plan((), tuple(chunks), tuple(rows), KNOWN_MS))


def sequence(prompt: int, sampling: Sampling | None = None, launched: int = 1) -> Sequence:
    message = Submit(1, "a", 1, (1,) * prompt, (), 10_000, (), sampling or Sampling(), 0, 100.0)
    made = Sequence.of(message, 0.0)
    made.launched = launched
    return made


def chunk(tokens: int, start: int = 0) -> Chunk:
    return Chunk(sequence(start + tokens + 1), start, tokens)


@pytest.fixture
def runs() -> Runs:
    return Runs()


def test_a_shape_gets_patience_the_first_time_alone(runs: Runs) -> None:
    assert runs.expects(chunks=[chunk(100)]) == FIRST_RUN_MS
    assert runs.expects(chunks=[chunk(101)]) == KNOWN_MS


@pytest.mark.parametrize("later", [[chunk(1000)], [chunk(100, start=900)], [chunk(100)] * 4])
def test_a_longer_piece_a_deeper_one_and_several_together_are_other_shapes(
    runs: Runs, later: list[Chunk]
) -> None:
    runs.expects(chunks=[chunk(100)])
    assert runs.expects(chunks=later) == FIRST_RUN_MS


def test_a_wider_batch_a_longer_one_and_another_way_to_draw_are_other_shapes(runs: Runs) -> None:
    for rows in (
        [sequence(10)],
        [sequence(10)] * 2,
        [sequence(10, launched=8)],
        [sequence(10, Sampling(temperature=0.0))],
        [sequence(10, Sampling(top_p=0.9))],
        [sequence(10, Sampling(top_k=5))],
    ):
        assert runs.expects(rows=rows) == FIRST_RUN_MS
        assert runs.expects(rows=rows) == KNOWN_MS


def test_a_resumed_answer_is_as_long_as_it_was() -> None:
    message = Submit(1, "a", 2, (1,) * 10, (7,) * 5, 50, (), Sampling(), 0, 100.0)
    resumed = Sequence.of(message, 0.0)
    assert resumed.context == 15
    resumed.launched += 1
    assert resumed.context == 16


def test_what_takes_longer_by_itself_is_told_so() -> None:
    assert Runs(first_run_ms=1.0).expects(chunks=[chunk(100)]) == KNOWN_MS


def test_where_nothing_is_compiled_there_is_no_patience() -> None:
    assert Runs(first_run_ms=0.0).expects(chunks=[chunk(100)], rows=[sequence(10)]) == KNOWN_MS


def test_the_rest_of_a_turn_doesnt_lose_its_patience(runs: Runs) -> None:
    rows = (sequence(10),)
    runs.expects(rows=rows)
    runs.runs.begin_turn()
    runs.runs.expected_ms(Plan((), (chunk(100),), rows, KNOWN_MS))
    assert runs.runs.expected_ms(Plan((), (), rows, KNOWN_MS)) == FIRST_RUN_MS


def test_the_loop_tells_it_until_the_step_is_read() -> None:
    turned = Turned(first_run_ms=FIRST_RUN_MS)
    turned.ping()
    turned.turn(submit("a", (1,) * 9, max_tokens=20), times=4)
    assert [report.expected_ms >= FIRST_RUN_MS for report in turned.reports[1:]] == [True, True, False, False]
