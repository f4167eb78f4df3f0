"""What the manifest says at each point of a turn: the rows that run there, each with its next token."""

from collections.abc import Sequence as Seq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages import Cancel, ManifestRow, Park, Submit
from shared.sampling import Sampling
from tests.worker.turned_loop import EPOCH, QUANTUM_MS, FalseEngine, Turned, met_loop, submit
from worker.engine.batch_engine import PrefillResult, StepResult
from worker.plan import Chunk
from worker.sequence import Sequence


@pytest.fixture
def met() -> Turned:
    return met_loop()


def decodes(name: str, index: int, attempt: int = 1) -> ManifestRow:
    return ManifestRow(name, attempt, index, prefilling=False)


def prefills(name: str, index: int = 0, attempt: int = 1) -> ManifestRow:
    return ManifestRow(name, attempt, index, prefilling=True)


def die(met: Turned, fails_in: str, *messages: Submit | Cancel | Park) -> list[ManifestRow]:
    """Turn until the engine fails in this call; return what the manifest says then."""
    met.engine.fails_in, met.engine.problem = fails_in, RuntimeError("the device is gone")
    with pytest.raises(RuntimeError, match="the device is gone"):
        met.turn(*messages, times=20)
    return met.manifest[-1]


def test_a_prefill_that_dies_names_the_prompts_it_was_about(met: Turned) -> None:
    assert die(met, "prefill", submit("a", range(30)), submit("b", range(5))) == [
        prefills("b"),
        prefills("a"),
    ]


def test_a_later_piece_that_dies_names_its_prompt_alone(met: Turned) -> None:
    met.turn(submit("a", max_tokens=1), submit("long", (1,) * 90))
    assert die(met, "prefill") == [prefills("long")]


def test_a_resumed_prompt_that_dies_says_which_token_was_to_come(met: Turned) -> None:
    again = Submit(EPOCH, "a", 3, (1,) * 20, (2,) * 7, 9, (), Sampling(), 0, QUANTUM_MS)
    assert die(met, "prefill", again) == [prefills("a", index=7, attempt=3)]


def test_a_launch_that_dies_names_its_rows(met: Turned) -> None:
    assert die(met, "launch", submit("a"), submit("b")) == [decodes("a", 0), decodes("b", 0)]


def test_a_launch_that_dies_with_a_step_under_way_names_each_rows_newest_token(met: Turned) -> None:
    met.turn(submit("a", max_tokens=1), submit("b", max_tokens=9))
    assert met.engine.under_way == 1
    assert die(met, "launch") == [decodes("a", 0), decodes("b", 1)]


def test_a_read_that_dies_names_the_rows_of_the_step_behind_it_as_well(met: Turned) -> None:
    met.turn(submit("a", max_tokens=9), times=3)
    assert die(met, "read", submit("b", max_tokens=9)) == [decodes("a", 2)]
    met.engine.problem = None
    met.turn(times=2)
    assert die(met, "read") == [decodes("a", 5), decodes("b", 2)]


def test_a_row_that_has_ended_is_not_named_while_its_neighbours_last_step_is_waited_for(met: Turned) -> None:
    met.turn(submit("a", max_tokens=1), submit("b", max_tokens=2), times=2)
    assert die(met, "read") == [decodes("b", 1)]


def test_a_cancelled_row_stays_named_until_its_step_was_read(met: Turned) -> None:
    met.turn(submit("a", max_tokens=50), submit("b", max_tokens=50), times=3)
    assert die(met, "read", Cancel(EPOCH, "a")) == [decodes("a", 2), decodes("b", 3)]
    met.engine.problem = None
    met.turn(times=2)
    assert met.manifest[-1] == [decodes("b", 5)]


def test_a_death_while_rows_are_let_go_of_is_nobodys(met: Turned) -> None:
    assert die(met, "drop", submit("a", max_tokens=2)) == []


def test_an_idle_worker_has_an_empty_manifest_and_does_not_write_it_again(met: Turned) -> None:
    met.turn(submit("a", max_tokens=2), times=9)
    assert met.manifest[-1] == []
    written = len(met.manifest)
    met.turn(times=9)
    assert len(met.manifest) == written


def test_a_prompt_is_named_once_however_many_pieces_it_takes(met: Turned) -> None:
    met.turn(submit("a", (1,) * 90), times=2)
    assert met.manifest == [[prefills("a")]]


class Comparing(FalseEngine):
    """Compares the manifest with what it runs, in each call."""

    turned: Turned

    def compare(self, *running: tuple[str, int], prefilling: bool = False) -> None:
        rows = self.turned.manifest[-1]
        assert {(row.sequence, row.attempt) for row in rows} == set(running)
        assert len(rows) == len(set(running))
        assert {row.prefilling for row in rows} <= {prefilling}

    def prefill(self, chunks: Seq[Chunk]) -> PrefillResult:
        assert not self.steps
        self.compare(*(named(chunk.sequence) for chunk in chunks), prefilling=True)
        return super().prefill(chunks)

    def launch(self, rows: Seq[Sequence]) -> None:
        super().launch(rows)
        self.compare(*self.all_rows())
        indices = {(row.sequence, row.attempt): row.index for row in self.turned.manifest[-1]}
        assert all(indices[named(row)] == row.launched - 1 for row in rows)

    def read(self) -> StepResult:
        self.compare(*self.all_rows())
        return super().read()

    def all_rows(self) -> set[tuple[str, int]]:
        return {named(row) for step in self.steps for row in step}


def named(sequence: Sequence) -> tuple[str, int]:
    return sequence.name, sequence.attempt


deeds = st.one_of(
    st.builds(
        submit,
        st.sampled_from("abcde"),
        st.integers(1, 90).map(lambda length: (1,) * length),
        max_tokens=st.integers(1, 6),
    ),
    st.builds(Cancel, st.just(EPOCH), st.sampled_from("abcde")),
    st.builds(Park, st.just(EPOCH), st.sampled_from("abcde")),
    st.none(),
)


@settings(deadline=None)
@given(
    turns=st.lists(st.lists(deeds, max_size=3), max_size=25),
    slots=st.integers(1, 4),
    prefills_last=st.booleans(),
)
def test_whatever_comes_and_goes_the_manifest_names_what_runs(
    turns: list[list[Submit | Cancel | Park | None]], slots: int, prefills_last: bool
) -> None:
    engine = Comparing()
    turned = engine.turned = Turned(slots, engine=engine, prefills_last=prefills_last)
    turned.ping()
    for number, messages in enumerate(turns):
        for message in messages:
            if isinstance(message, Submit):
                turned.channel.say(attempted(message, number + 1))
            elif message is not None:
                turned.channel.say(message)
        turned.turn()
    turned.turn(times=60)
    assert (turned.manifest or [[]])[-1] == []


def attempted(message: Submit, attempt: int) -> Submit:
    return Submit(
        EPOCH,
        message.sequence,
        attempt,
        message.prompt_ids,
        (),
        message.max_tokens,
        (),
        Sampling(),
        0,
        QUANTUM_MS,
    )
