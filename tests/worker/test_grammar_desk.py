"""Grammars are compiled beside the loop: nobody else waits, and what goes wrong is one answer's trouble."""

from dataclasses import replace
from pathlib import Path

import pytest

from shared.messages import Cancel, Failed, Step, Submit
from shared.sampling import Sampling
from tests.worker.tiny_grammars import STOPS, AtOnce, WhenTold, ids_of, tiny_desk, tiny_tokens
from tests.worker.turned_loop import EPOCH, Turned, submit
from worker.grammar import GrammarTokens, Guide
from worker.grammar_desk import GrammarDesk
from worker.sequence import Sequence

GRAMMAR = Sampling(grammar='start: "ab" "x"?')


def sequence_of(grammar: str, said: str = "") -> Sequence:
    given = replace(
        submit("a", max_tokens=9),
        emitted_ids=tuple(ids_of(said)),
        stop_ids=STOPS,
        sampling=Sampling(grammar=grammar),
    )
    return Sequence.of(given, 0.0)


def made(desk: GrammarDesk, sequence: Sequence) -> Guide | str:
    desk.ask(sequence)
    [(whose, guide)] = desk.made()
    assert whose is sequence
    return guide


def test_a_guide_stands_behind_what_was_said_before() -> None:
    guide = made(tiny_desk(), sequence_of(GRAMMAR.grammar, "ab"))
    assert isinstance(guide, Guide)
    assert not guide.ended
    guide = made(tiny_desk(), sequence_of(GRAMMAR.grammar, "abx"))
    assert isinstance(guide, Guide)
    assert guide.ended


def test_each_guide_is_handed_out_once_when_it_is_made() -> None:
    thread = WhenTold()
    desk = tiny_desk(thread)
    desk.ask(sequence_of(GRAMMAR.grammar))
    assert desk.is_asked
    assert desk.made() == []
    thread.run()
    assert len(desk.made()) == 1
    assert desk.made() == []
    assert not desk.is_asked


def test_a_grammar_that_came_before_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_ = GrammarTokens.compile

    def counted(tokens: GrammarTokens, grammar: str) -> object:
        compiled.append(grammar)
        return compile_(tokens, grammar)

    monkeypatch.setattr(GrammarTokens, "compile", counted)
    desk = tiny_desk()
    guides = [made(desk, sequence_of(GRAMMAR.grammar, said)) for said in ("ab", "", "ab")]
    assert compiled == [GRAMMAR.grammar]
    assert all(isinstance(guide, Guide) for guide in guides)
    for number in range(20):
        made(desk, sequence_of(f'start: "a" /x{{{number}}}/'))
    made(desk, sequence_of(GRAMMAR.grammar))
    assert compiled.count(GRAMMAR.grammar) == 2


def test_a_model_without_a_tokenizer_for_grammars_says_so_each_time(tmp_path: Path) -> None:
    desk = GrammarDesk(lambda: GrammarTokens.read(tmp_path / "tokenizer.json", 300), AtOnce())
    for _ in range(2):
        guide = made(desk, sequence_of(GRAMMAR.grammar))
        assert isinstance(guide, str)
        assert "no grammar can be had" in guide


def test_the_tokenizer_is_read_once() -> None:
    reads = 0

    def read() -> GrammarTokens:
        nonlocal reads
        reads += 1
        return tiny_tokens()

    desk = GrammarDesk(read)
    desk.prepare()
    desk.prepare()
    desk.ask(sequence_of(GRAMMAR.grammar))
    while not (found := desk.made()):
        pass
    assert isinstance(found[0][1], Guide)
    assert reads == 1


def test_an_error_that_nobody_foresaw_is_told_of_as_well() -> None:
    def read() -> GrammarTokens:
        raise RuntimeError("surprise")

    desk = GrammarDesk(read)
    desk.ask(sequence_of(GRAMMAR.grammar))
    while not (found := desk.made()):
        pass
    assert found[0][1] == "the grammar can't be used: RuntimeError('surprise')"


# --- in the loop --------------------------------------------------------------------------------------------


class World(Turned):
    """A loop whose grammars are compiled when a test says so."""

    def __init__(self) -> None:
        self.thread = WhenTold()
        super().__init__(slots=2, grammars=tiny_desk(self.thread))
        self.ping()
        self.thread.run()  # the tokenizer, read while nothing was to be done
        self.channel.sent.clear()

    def said(self) -> set[str]:
        return {row.sequence for step in self.channel.of(Step) for row in step.rows}


def constrained(name: str) -> Submit:
    return replace(submit(name, max_tokens=9), sampling=GRAMMAR)


def test_others_go_on_while_a_grammar_is_compiled_and_take_the_slots() -> None:
    world = World()
    world.turn(constrained("slow"), submit("b", max_tokens=90), submit("c", max_tokens=90), times=4)
    assert world.said() == {"b", "c"}
    assert set(world.scheduler.names) == {"slow", "b", "c"}
    assert not world.scheduler.will_prefill
    world.turn(Cancel(EPOCH, "b"), times=2)
    world.thread.run()
    world.turn(times=3)
    assert "slow" in world.said()


def test_a_loop_that_only_waits_for_a_grammar_sleeps_a_moment_at_a_time() -> None:
    world = World()
    world.channel.waited_s.clear()
    world.turn(constrained("slow"), times=3)
    assert world.channel.waited_s == [0.002] * 3
    assert world.scheduler.names == ("slow",)


def test_a_sequence_that_is_cancelled_while_its_grammar_is_compiled_is_forgotten() -> None:
    world = World()
    world.turn(constrained("slow"))
    world.turn(Cancel(EPOCH, "slow"))
    world.thread.run()
    world.turn(times=3)
    assert world.said() == set()
    assert world.scheduler.names == ()
    assert world.channel.of(Failed) == []


def test_a_newer_attempt_has_a_guide_of_its_own() -> None:
    world = World()
    world.turn(constrained("a"))
    world.turn(replace(constrained("a"), attempt=2))
    world.thread.run()
    world.turn(times=3)
    assert {row.attempt for step in world.channel.of(Step) for row in step.rows} == {2}
