"""Prompts that begin alike: one goes ahead, and the others begin when it has got to where they part."""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.limits import PREFIX_BLOCK_TOKENS
from shared.messages import Submit
from shared.model_facts import Reuse
from shared.sampling import Sampling
from worker.plan import Plan, StepTimes
from worker.prefix_waits import common_tokens
from worker.scheduler import Scheduler
from worker.sequence import Phase, Sequence

SHARE_TOKENS = 256
END = 1
COMMON = (5,) * 512


def sequence(
    name: str, ids: Iterable[int], rank: int = 0, salt: str = "", *, quantum_ms: float = 100.0
) -> Sequence:
    submit = Submit(
        1, name, 1, tuple(ids), (), 10_000, (END,), Sampling(), rank, quantum_ms=quantum_ms, salt=salt
    )
    return Sequence.of(submit, 0.0)


def naive_common(one: Sequence, other: Sequence) -> int:
    """Return the tokens that two prompts of any salts both prefill first, counted one by one."""
    pairs = zip(one.ids[:-1], other.ids[:-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


class Bench:
    """A scheduler whose engine keeps what rows have computed while they are there."""

    def __init__(self, reuse: Reuse = "any", share_tokens: int = SHARE_TOKENS, slots: int = 9) -> None:
        self.plans = Scheduler(slots, StepTimes(1.0, 5.0), reuse=reuse, share_tokens=share_tokens)
        self.all: list[Sequence] = []
        self.computed: Counter[bytes] = Counter()

    def submit(self, *sequences: Sequence) -> None:
        for each in sequences:
            self.all.append(each)
            self.plans.submit(each)

    def turn(self) -> Plan:
        """Let whoever may begin behind what others have, by whole blocks, and carry out a plan."""
        for newcomer in self.plans.beginning():
            newcomer.begin(self.kept(newcomer))
        plan = self.plans.plan(0.0)
        for chunk in plan.chunks:
            first, past = (
                place // PREFIX_BLOCK_TOKENS for place in (chunk.start, chunk.start + chunk.tokens)
            )
            self.computed.update(chunk.sequence.keys[first:past])
        return plan

    def kept(self, newcomer: Sequence) -> int:
        there = (
            min(common_tokens(newcomer, other), other.prefilled)
            for other in self.all
            if other.begun and other.salt == newcomer.salt and other.phase is not Phase.GONE
        )
        return max(there, default=0) // PREFIX_BLOCK_TOKENS * PREFIX_BLOCK_TOKENS

    def begun(self) -> list[str]:
        return [each.name for each in self.all if each.begun]


@pytest.fixture
def bench() -> Bench:
    return Bench()


# --- who waits --------------------------------------------------------------------------------------------


def test_the_second_of_two_that_begin_alike_begins_exactly_when_the_first_has_got_there(bench: Bench) -> None:
    first, second = sequence("first", (*COMMON, *[6] * 200)), sequence("second", (*COMMON, *[7] * 200))
    bench.submit(first, second)
    while first.prefilled < len(COMMON):
        bench.turn()
        assert bench.begun() == ["first"]
    bench.turn()
    assert bench.begun() == ["first", "second"]
    assert second.cached == len(COMMON)


def test_ten_that_ask_the_same_compute_it_once(bench: Bench) -> None:
    bench.submit(*(sequence(str(number), (*COMMON, number)) for number in range(2, 11)))
    while any(each.phase is not Phase.DECODE for each in bench.all):
        bench.turn()
    assert bench.computed == Counter(bench.all[0].keys)
    assert [each.cached for each in bench.all] == [0] + [len(COMMON)] * 8


def test_two_equal_prompts_wait_only_for_what_both_of_them_prefill(bench: Bench) -> None:
    """The last token is nobody's to prefill, and its block is whole for neither."""
    first, second = sequence("first", COMMON), sequence("second", COMMON)
    bench.submit(first, second)
    while not second.begun:
        bench.turn()
    assert second.cached == len(COMMON) - PREFIX_BLOCK_TOKENS


def test_of_a_chain_of_beginnings_each_waits_for_the_one_before() -> None:
    bench = Bench(slots=3)
    ids = tuple(range(2, 1002))
    bench.submit(*(sequence(name, ids[:end]) for name, end in (("a", 300), ("b", 600), ("c", 1000))))
    order = [begun for _ in range(40) if (begun := tuple(bench.turn() and bench.begun()))]
    assert [*dict.fromkeys(order)] == [("a",), ("a", "b"), ("a", "b", "c")]
    assert [each.cached for each in bench.all] == [0, 256, 576]


def test_the_first_in_order_begins_and_that_is_the_higher_lane(bench: Bench) -> None:
    bench.submit(sequence("low", COMMON, rank=1), sequence("high", COMMON, rank=0))
    bench.turn()
    assert bench.begun() == ["high"]


def test_nobody_waits_for_a_lower_lane(bench: Bench) -> None:
    bench.submit(sequence("low", COMMON, rank=1))
    bench.turn()
    bench.submit(sequence("high", COMMON, rank=0), sequence("as low", COMMON, rank=1))
    bench.turn()
    assert bench.begun() == ["low", "high"]


@pytest.mark.parametrize("goes", ["cancel", "park"])
def test_when_the_one_ahead_goes_the_next_one_goes_ahead(bench: Bench, goes: str) -> None:
    bench.submit(*(sequence(name, COMMON) for name in "abc"))
    bench.turn()
    getattr(bench.plans, goes)("a")
    bench.turn()
    assert bench.begun() == ["a", "b"]


def test_one_that_waits_can_go_too(bench: Bench) -> None:
    bench.submit(*(sequence(name, COMMON) for name in "ab"))
    bench.turn()
    bench.plans.cancel("b")
    assert bench.turn().dropped == (bench.all[1],)
    assert bench.plans.names == ("a",)


def test_callers_who_must_not_learn_of_each_other_do_not_wait_either(bench: Bench) -> None:
    bench.submit(
        sequence("a", COMMON, salt="one"), sequence("b", COMMON, salt="other"), sequence("c", COMMON)
    )
    bench.turn()
    assert bench.begun() == ["a", "b", "c"]


@pytest.mark.parametrize(("common", "waits"), [(255, False), (256, True), (319, True)])
def test_what_is_less_than_rows_would_share_is_not_waited_for(bench: Bench, common: int, waits: bool) -> None:
    bench.submit(*(sequence(name, (*[5] * common, *[tail] * 300)) for name, tail in (("a", 6), ("b", 7))))
    bench.turn()
    assert bench.begun() == (["a"] if waits else ["a", "b"])


def test_what_a_row_that_decodes_has_already_is_not_waited_for(bench: Bench) -> None:
    bench.submit(sequence("row", (*COMMON, 9)))
    while bench.all[0].phase is not Phase.DECODE:
        bench.turn()
    bench.submit(sequence("a", (*COMMON, *[6] * 300)), sequence("b", (*COMMON, *[7] * 300)))
    bench.turn()
    assert bench.begun() == ["row", "a", "b"]


def test_who_can_begin_farther_than_another_one_is_does_not_wait_for_that() -> None:
    """The lower lane was ahead, and the higher one that passed it is no reason to wait behind it."""
    bench = Bench()
    long = (*COMMON, *[6] * 500)
    bench.submit(sequence("low", long, rank=1))
    bench.turn()
    bench.submit(sequence("high", COMMON))
    while bench.all[1].phase is not Phase.DECODE:
        bench.turn()
    assert bench.all[0].prefilled < 448, "else this shows nothing"
    bench.submit(sequence("behind", long, rank=1))
    bench.turn()
    assert bench.all[2].begun
    assert bench.all[2].cached == 448


@pytest.mark.parametrize(("reuse", "share_tokens"), [("none", SHARE_TOKENS), ("any", 0)])
def test_where_nothing_is_used_again_nobody_waits(reuse: Reuse, share_tokens: int) -> None:
    bench = Bench(reuse, share_tokens)
    bench.submit(*(sequence(name, COMMON) for name in "abc"))
    bench.turn()
    assert bench.begun() == ["a", "b", "c"]


def test_one_that_cannot_begin_yet_keeps_nobody_waiting_and_is_asked_again() -> None:
    bench = Bench()
    bench.submit(sequence("a", COMMON), sequence("b", COMMON), sequence("one token", (5,)))
    assert [each.name for each in bench.plans.beginning()] == ["a", "b", "one token"]
    assert bench.plans.plan(0.0).idle
    assert bench.plans.will_prefill
    assert [each.name for each in bench.plans.beginning()] == ["a", "b", "one token"]


def test_of_those_that_could_not_begin_yet_the_higher_lane_begins_first_though_it_came_later() -> None:
    bench = Bench()
    bench.submit(sequence("low", COMMON, rank=1))
    assert [each.name for each in bench.plans.beginning()] == ["low"]
    bench.submit(sequence("high", COMMON))
    bench.turn()
    assert bench.begun() == ["high"]


def test_what_is_all_there_decodes_without_a_chunk() -> None:
    plans = Scheduler(2, StepTimes(1.0, 5.0), reuse="any", share_tokens=SHARE_TOKENS)
    a = sequence("a", COMMON)
    plans.submit(a)
    for each in plans.beginning():
        each.begin(len(COMMON) - 1)
    plan = plans.plan(0.0)
    assert (plan.chunks, plan.rows, a.phase) == ((), (a,), Phase.DECODE)


# --- where only whole states can be used --------------------------------------------------------------------


def chat(system: int, question: int, tail: int) -> list[int]:
    return [*[5] * (system - 1), END, *[tail] * question]


def test_a_state_is_waited_for_to_the_token() -> None:
    bench = Bench("checkpoints")
    first, second = sequence("a", chat(300, 200, 6)), sequence("b", chat(300, 200, 7))
    bench.submit(first, second)
    while first.prefilled < 300:
        assert bench.begun() in ([], ["a"])
        bench.turn()
    assert first.prefilled == 300
    bench.turn()
    assert bench.begun() == ["a", "b"]


@pytest.mark.parametrize("system", [200, 400], ids=["too short", "nowhere"])
def test_without_a_state_worth_it_nobody_waits(system: int) -> None:
    """The system prompt ends too early, or behind where the two part; they have 300 tokens in common."""
    bench = Bench("checkpoints")
    ids = chat(system, 300, 6)
    other = [*ids[:300], 8, *ids[301:]]
    bench.submit(sequence("a", ids), sequence("b", other))
    bench.turn()
    assert bench.begun() == ["a", "b"]


# --- laws -------------------------------------------------------------------------------------------------

pieces = st.lists(st.tuples(st.integers(0, 1), st.sampled_from([64, 96, 128])), min_size=1, max_size=5)


def prompt(parts: Seq[tuple[int, int]]) -> list[int]:
    """Return pieces of a token each: so that few pieces make prompts that branch."""
    return [*[5] * 64, *[6 + token for token, length in parts for _ in range(length)], 9]


@settings(deadline=None, max_examples=80)
@given(one=pieces, other=pieces, salts=st.tuples(st.sampled_from("xy"), st.sampled_from("xy")))
def test_tokens_in_common_are_those_that_are_equal_from_the_beginning_on(
    one: list[tuple[int, int]], other: list[tuple[int, int]], salts: tuple[str, str]
) -> None:
    a, b = sequence("a", prompt(one), salt=salts[0]), sequence("b", prompt(other), salt=salts[1])
    expected = naive_common(a, b) // PREFIX_BLOCK_TOKENS * PREFIX_BLOCK_TOKENS
    assert common_tokens(a, b) == common_tokens(b, a) == (expected if salts[0] == salts[1] else 0)


@settings(deadline=None, max_examples=60)
@given(prompts=st.lists(st.tuples(pieces, st.integers(0, 3)), min_size=1, max_size=8))
def test_no_block_is_computed_twice_while_whoever_computed_it_is_there(
    prompts: list[tuple[list[tuple[int, int]], int]],
) -> None:
    """Of one lane, whatever comes when."""
    bench = Bench(share_tokens=PREFIX_BLOCK_TOKENS)
    for number, (parts, turns_before) in enumerate(prompts):
        for _ in range(turns_before):
            bench.turn()
        bench.submit(sequence(str(number), prompt(parts), quantum_ms=70.0))
    for _ in range(1000):
        if all(each.phase is Phase.DECODE for each in bench.all):
            break
        bench.turn()
    assert all(each.phase is Phase.DECODE for each in bench.all)
    assert set(bench.computed.values()) == {1}


events = st.one_of(
    st.tuples(st.just("submit"), pieces, st.integers(0, 2), st.sampled_from(["", "s"])),
    st.tuples(st.just("go"), st.integers(0, 30)),
    st.tuples(st.just("turn")),
    st.tuples(st.just("turn")),
)


@settings(deadline=None, max_examples=80)
@given(happens=st.lists(events, max_size=40), reuse=st.sampled_from(["any", "checkpoints"]))
def test_whoever_waits_has_somebody_of_no_lower_lane_ahead_and_nobody_waits_for_ever(
    happens: list[tuple[object, ...]], reuse: Reuse
) -> None:
    bench = Bench(reuse, share_tokens=128, slots=5)
    for number, event in enumerate(happens):
        match event:
            case ("submit", parts, rank, salt):
                bench.submit(sequence(str(number), prompt(parts), rank, salt))  # type: ignore[arg-type]  # drawn so
            case ("go", which) if bench.plans.names:
                bench.plans.cancel(bench.plans.names[which % len(bench.plans.names)])  # type: ignore[operator]  # drawn so
            case _:
                turn_and_check(bench)
    for _ in range(500):
        if not bench.plans.names:
            break
        turn_and_check(bench)
        for each in [each for each in bench.all if each.phase is Phase.DECODE][:1]:
            bench.plans.cancel(each.name)
    assert bench.plans.names == (), "somebody waits for ever"


def turn_and_check(bench: Bench) -> None:
    plan = bench.turn()
    prefills = [each for each in bench.all if each.phase is Phase.PREFILL]
    for held in [each for each in prefills if not each.begun]:
        # As they were when it was decided; a chunk of this turn may have brought them there since.
        ahead = {chunk.sequence: chunk.start for chunk in plan.chunks} | {
            each: each.prefilled
            for each in prefills
            if each.begun and each not in [chunk.sequence for chunk in plan.chunks]
        }
        assert any(
            each.salt == held.salt
            and each.rank <= held.rank
            and there < naive_common(each, held)
            and naive_common(each, held) >= 128
            for each, there in ahead.items()
        ), "it waits for nobody"
    assert plan.chunks or not prefills, "nobody prefills"
