"""Only what isn't cached is charged and estimated; what rows have in common lets more of them in."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.admission.outlook import answer_s
from tests.proxy.admission.small_core import HIGH, LOW, Desk, lane
from tests.proxy.admission.small_prompts import names_of, prompt, tokens_of

BLOCK = 64
SYSTEM = "system"
# Beginnings of few letters, that meet and part again; some have too little in common to share it.
WORDS = ["", "ab", "abcd", "abcde", "abcdef", "abcdeg", "abcdxy", "abxyzu", "abxyzuv"]


def desk_of(*lanes, slots=1, **changes):
    """Return a desk whose worker takes 1 ms for a token of prefill, and shares what is 256 tokens long."""
    desk = Desk(*lanes or (HIGH,))
    family = {"reuse": "any", "shares_from": 256, "kv_pad_tokens": BLOCK, "context_tokens": 1 << 16}
    desk.worker(slots=slots, **{**family, **changes})
    return desk


def counter(desk, key, lane="high"):
    return desk.lane(lane).counters.of(key)


def answer(desk, name):
    return desk.state.answers[name]


# --- charged ------------------------------------------------------------------------------------------------


def test_only_what_is_not_kept_is_prepaid():
    """Of 385 tokens 384 are kept: one is computed, and a step of 50 ms."""
    desk = desk_of()
    desk.core.keeps(names_of(SYSTEM), ())
    desk.arrive("a", key="a", **prompt(SYSTEM))
    assert desk.starts() == ["a"]
    assert counter(desk, "a") == pytest.approx(1 + 50)


def test_of_answers_that_start_together_one_pays_for_what_they_have_in_common():
    desk = desk_of(slots=3)
    for key in "abc":
        desk.arrive(key, key=key, **prompt(SYSTEM + key))
    assert desk.starts() == ["a", "b", "c"]
    assert [counter(desk, key) for key in "abc"] == pytest.approx([449 + 50, 65 + 50, 65 + 50])


@pytest.mark.parametrize(("found", "prepaid"), [(384, 1), (128, 257), (0, 385)])
def test_what_was_prepaid_is_set_right_by_what_the_worker_finds(found, prepaid):
    desk = desk_of()
    desk.core.keeps(names_of("sys"), ())
    desk.arrive("a", key="a", **prompt(SYSTEM))
    desk.starts()
    assert counter(desk, "a") == pytest.approx(385 - 192 + 50)
    desk.prefill("a", 0, ms=0.0, cached=found)
    assert counter(desk, "a") == pytest.approx(prepaid + 50)
    assert (answer(desk, "a").to_prefill, answer(desk, "a").prefilled) == (385 - found, found)


def test_what_was_found_is_told_once_and_what_is_computed_comes_on_top():
    desk = desk_of()
    desk.arrive("a", **prompt(SYSTEM))
    desk.starts()
    desk.prefill("a", 20, ms=20.0, cached=320)
    desk.prefill("a", 40, ms=40.0)
    assert answer(desk, "a").to_prefill == 385 - 320 - 60


def test_who_leaves_in_the_middle_has_paid_for_what_was_not_cached_only():
    desk = desk_of()
    desk.arrive("a", key="a", **prompt(SYSTEM))
    desk.arrive("stays", key="a", prompt_tokens=1)
    desk.starts()
    desk.prefill("a", 0, ms=0.0, cached=384)
    desk.end("a", completed=False)
    assert counter(desk, "a") == pytest.approx(1 + 50)


def test_the_time_that_cached_blocks_take_to_be_copied_is_the_keys_once():
    """After a death it is the house's."""
    desk = desk_of()
    desk.arrive("a", "stays", key="a", **prompt(SYSTEM))
    desk.starts()
    desk.prefill("a", 0, ms=3.0, cached=384)
    desk.prefill("a", 1, ms=4.0)
    desk.death()
    desk.worker(slots=1, reuse="any")
    desk.starts()
    desk.prefill("a", 0, ms=5.0, cached=384)
    desk.end("a")
    assert (counter(desk, "a"), desk.state.house_ms) == (pytest.approx(7.0), 5.0)


def test_what_was_cached_and_is_computed_after_a_death_is_the_houses():
    desk = desk_of()
    desk.arrive("a", "stays", key="a", **prompt(SYSTEM))
    desk.starts()
    desk.prefill("a", 1, ms=1.0, cached=384)
    desk.death()
    desk.worker(slots=1, reuse="any")
    desk.starts()
    desk.prefill("a", 385, ms=400.0)
    desk.end("a")
    assert (counter(desk, "a"), desk.state.house_ms) == (pytest.approx(1.0), 400.0)


def test_a_word_that_comes_during_a_park_charges_nothing_in_advance():
    desk = desk_of(HIGH, lane("low", parkable=True))
    desk.arrive("row", key="a", lane="low", **prompt(SYSTEM))
    desk.starts()
    desk.arrive("above")
    assert desk.decide(at=5.0) == ["park row", "start above"]
    desk.prefill("row", 0, ms=0.0, cached=64)
    assert counter(desk, "a", "low") == pytest.approx(0.0)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "sys", "system", "systemat", "sysab"]),  # what is asked
            st.integers(0, 8),  # blocks that the worker says it found
            st.lists(st.integers(1, 300), max_size=3),  # pieces of prefill
            st.integers(1, 3),  # tokens
            st.booleans(),  # whether its blocks are kept when it has left
        ),
        min_size=1,
        max_size=8,
    )
)
def test_a_key_is_charged_what_its_answers_took_whatever_was_thought_to_be_cached(answers):
    desk, taken_ms = desk_of(slots=2), 0.0
    desk.arrive("stays", key="a", prompt_tokens=1)
    desk.starts()
    taken_ms += counter(desk, "a")
    for number, (word, found, pieces, tokens, keeps) in enumerate(answers):
        name, cached = str(number), min(found, len(word)) * BLOCK
        desk.arrive(name, key="a", max_tokens=9, **prompt(word))
        assert desk.starts() == [name]
        desk.prefill(name, 0, ms=0.5, cached=cached)
        left = tokens_of(word) - cached
        for piece in pieces:
            desk.prefill(name, min(piece, left), ms=2.0 * min(piece, left))
            taken_ms += 2.0 * min(piece, left)
            left -= min(piece, left)
        desk.steps(tokens, name)
        taken_ms += 0.5 + 10.0 * tokens
        if keeps:
            desk.core.keeps(names_of(word), ())
        desk.end(name)
        assert counter(desk, "a") == pytest.approx(taken_ms)
        assert desk.state.house_ms == 0.0


# --- estimated ----------------------------------------------------------------------------------------------


def test_a_newcomer_waits_for_what_those_before_it_compute_and_not_for_what_is_kept():
    waits = []
    for kept in ("", SYSTEM):
        desk = desk_of()
        desk.core.keeps(names_of(kept), ())
        desk.arrive("runs", prompt_tokens=1, max_tokens=1)
        desk.starts()
        desk.prefill("runs", 1, ms=1.0)
        desk.arrive("before", **prompt(SYSTEM))
        waits.append(desk.wait_s())
    assert waits[0] - waits[1] == pytest.approx(0.384)


def test_of_prompts_that_wait_with_a_common_beginning_it_is_waited_for_once():
    desk = desk_of()
    desk.arrive("runs", prompt_tokens=1)
    desk.starts()
    for number in range(3):
        desk.arrive(f"system and {number}", **prompt(SYSTEM + str(number)))
    tokens = [449, 65, 65]
    assert (desk.lane("high").uncached_tokens, desk.lane("high").queued_tokens) == (sum(tokens), 3 * 449)
    for number in range(3):
        desk.end(f"system and {number}", completed=False)
    assert (desk.lane("high").uncached_tokens, desk.lane("high").queued_tokens) == (0, 0)
    desk.arrive("later", **prompt(SYSTEM))
    assert desk.lane("high").uncached_tokens == 385, "who has left computes nothing for it"


def test_a_usual_answer_computes_what_is_usually_not_cached():
    """It has 128 tokens, of 50 ms each."""
    desk = desk_of()
    desk.core.keeps(names_of(SYSTEM), ())
    desk.arrive(*"abc", **prompt(SYSTEM))
    assert answer_s(desk.state, desk.lane("high")) == pytest.approx(128 * 0.05 + 0.001)


def test_what_a_row_found_shortens_the_wait_for_it():
    waits = []
    for found in (0, 384):
        desk = desk_of()
        desk.arrive("row", max_tokens=1, **prompt(SYSTEM))
        desk.starts()
        desk.prefill("row", 0, ms=0.0, cached=found)
        waits.append(desk.wait_s())
    # Its own end is later by as much, and whoever comes next can't be prefilled before.
    assert waits[0] - waits[1] == pytest.approx(2 * 0.384)


def test_what_a_lost_worker_kept_is_not_reckoned_on():
    desk = desk_of()
    desk.core.keeps(names_of(SYSTEM), ())
    desk.death()
    desk.arrive("a", **prompt(SYSTEM))
    assert answer(desk, "a").cached == 0
    desk.worker(reuse="any")
    desk.core.keeps(names_of(SYSTEM), ())
    assert desk.starts() == ["a"]
    assert answer(desk, "a").cached == 384
    assert (desk.lane("high").uncached_tokens, desk.lane("high").queued_tokens) == (0, 0)


def test_what_an_interrupted_row_computed_is_not_there_for_others():
    desk = desk_of(slots=2)
    desk.arrive("a", "b", **prompt(SYSTEM))
    desk.arrive("c", **prompt(SYSTEM))
    assert desk.starts() == ["a", "b"]
    desk.core.interrupted(["a", "b"], 0.0)
    assert desk.starts() == ["a", "b"]
    assert [answer(desk, name).cached for name in "ab"] == [0, 384]
    desk.end("a", "b")
    assert desk.starts() == ["c"]
    assert answer(desk, "c").cached == 0


# --- reserved -----------------------------------------------------------------------------------------------


def budget_for(rows):
    """Return the bytes of SYSTEM held once, and for each row a block behind it."""
    return BLOCK * (len(SYSTEM) + rows)


def test_rows_of_one_prompt_start_where_copies_would_not_fit():
    desk = desk_of(slots=9, budget=budget_for(rows=4))
    desk.arrive(*"abcde", **prompt(SYSTEM))
    assert desk.starts() == ["a", "b", "c", "d"]
    assert desk.core.reserved_bytes == budget_for(rows=4)
    desk.end("a")
    assert desk.starts() == ["e"]
    desk.end(*"bcde")
    assert desk.core.reserved_bytes == 0


def test_rows_of_two_lanes_reserve_what_they_have_in_common_each():
    """In the worker a chat doesn't wait for a lower lane's prompt, so for a while both hold all of it."""
    desk = desk_of(HIGH, LOW, slots=4)
    desk.arrive("low", lane=LOW.name, **prompt(SYSTEM))
    desk.arrive("high", "alike", **prompt(SYSTEM))
    assert sorted(desk.starts()) == ["alike", "high", "low"]
    assert desk.core.reserved_bytes == budget_for(rows=1) + budget_for(rows=2)
    desk.end("low", "high", "alike")
    assert desk.core.reserved_bytes == 0


def test_the_block_that_ends_with_a_prompts_last_token_is_each_rows_own():
    desk = desk_of(slots=2)
    desk.arrive("a", "b", max_tokens=4, **prompt("abcde", more=0))
    desk.starts()
    assert desk.core.reserved_bytes == BLOCK * (4 + 2 * 2)
    desk.end("a", "b")
    desk.arrive("a", "b", max_tokens=4, **prompt("abcd", more=0))
    desk.starts()
    assert desk.core.reserved_bytes == BLOCK * 2 * 5


def test_one_that_shares_passes_a_first_that_does_not_fit():
    desk = desk_of(slots=9, budget=budget_for(rows=4))
    desk.arrive("row", **prompt(SYSTEM))
    desk.arrive("other", **prompt("x" * 4))
    desk.arrive("alike", **prompt(SYSTEM))
    assert desk.starts() == ["row", "alike"]


@pytest.mark.parametrize(
    ("word", "parked"), [(SYSTEM + "a", ["park low 1"]), ("x" * 7, ["park low 1", "park low 0"])]
)
def test_who_shares_needs_fewer_rows_parked_for_it(word, parked):
    """It takes 2 blocks beside what it shares with the first row, and 8 without; a row below frees 4."""
    desk = desk_of(HIGH, lane("low", parkable=True), slots=9, budget=BLOCK * (7 + 4 + 4))
    desk.arrive("row", **prompt(SYSTEM))
    desk.arrive("low 0", "low 1", lane="low", **prompt("yyy"))
    assert desk.starts() == ["row", "low 0", "low 1"]
    desk.arrive("new", **prompt(word))
    assert desk.decide(at=5.0) == [*parked, "start new"]


def test_a_newcomer_waits_for_fewer_bytes_when_it_shares():
    """Steps take 50 ms: the first row has 10 of its tokens to come, and then its bytes are free."""
    desk = desk_of(slots=9, budget=budget_for(rows=2))
    desk.arrive("row", max_tokens=10, **prompt(SYSTEM))
    desk.starts()
    desk.prefill("row", 385, ms=385.0)
    alike, other = desk.wait_s(max_tokens=10, **prompt(SYSTEM)), desk.wait_s(**prompt("x" * 6))
    assert other - alike == pytest.approx(0.5)


def test_a_row_that_started_again_reserves_anew():
    desk = desk_of(HIGH, LOW, slots=4, budget=budget_for(rows=4))
    desk.arrive("a", "b", **prompt(SYSTEM))
    desk.starts()
    held = desk.core.reserved_bytes
    desk.core.interrupted(["a"], 0.0)
    assert desk.core.reserved_bytes == budget_for(rows=1)
    assert desk.starts() == ["a"]
    assert desk.core.reserved_bytes == held == budget_for(rows=2)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.sampled_from(["high", "low"]), st.sampled_from(WORDS)),
        st.tuples(st.just("step"), st.integers(1, 90), st.none()),
        st.tuples(st.sampled_from(["end", "squeeze", "interrupt"]), st.integers(0, 9), st.none()),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(EVENTS, st.integers(8, 40), st.sampled_from([8, BLOCK, 4 * BLOCK]))
def test_rows_that_come_grow_are_parked_and_leave_stay_within_the_budget(events, blocks, pad):
    """What is begun by a decision fits, in the order of its words: the ledger takes nothing else."""
    desk = desk_of(HIGH, lane("low", parkable=True), slots=6, budget=blocks * BLOCK, kv_pad_tokens=pad)
    for number, (event, what, word) in enumerate(events):
        rows = [name for each in desk.state.lanes for name in each.running]
        if event == "come":
            name, fits = f"{what} {number}", desk.state.could_ever_fit(tokens_of(word) + 300)
            desk.arrive(*[name] * fits, lane=what, max_tokens=300, **prompt(word))
        elif event == "step":
            for _ in range(what):
                desk.step(*(row for row in rows if answer(desk, row).remaining))
        elif event == "squeeze":
            desk.core.squeezed((blocks - what) * BLOCK)
        elif rows:
            name = rows[what % len(rows)]
            desk.end(name) if event == "end" else desk.core.interrupted([name], desk.now)
        before = desk.core.reserved_bytes
        words = desk.decide(at=desk.now + 1.0)
        desk.parked(*(said.removeprefix("park ") for said in words if said.startswith("park ")))
        assert desk.core.reserved_bytes <= max(before, desk.state.ledger.budget_bytes)
    desk.end(*desk.state.answers.copy())
    assert desk.core.reserved_bytes == 0
