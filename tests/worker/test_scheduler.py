"""The scheduler: events in, plans out."""

from collections.abc import Sequence as Seq

import pytest

from shared.messages import Submit
from shared.sampling import Sampling
from tests.worker.prompt_scheduler import PromptScheduler
from worker.plan import CHUNK_TOKENS_MAX, Plan, StepTimes
from worker.scheduler import Emitted, Ended, Scheduler
from worker.sequence import Phase, Sequence

QUANTUM_MS = 100.0
SMALL_CHUNK = 16


def sequence(
    name: str,
    prompt: int = 1,
    max_tokens: int = 4,
    *,
    emitted: int = 0,
    stop_ids: tuple[int, ...] = (),
    now: float = 0.0,
    attempt: int = 1,
    rank: int = 0,
    quantum_ms: float = QUANTUM_MS,
) -> Sequence:
    submit = Submit(
        epoch=1,
        sequence=name,
        attempt=attempt,
        prompt_ids=tuple(range(prompt)),
        emitted_ids=tuple(range(emitted)),
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        sampling=Sampling(),
        rank=rank,
        quantum_ms=quantum_ms,
    )
    return Sequence.of(submit, now)


def scheduler(slots: int = 4) -> Scheduler:
    """Prefill takes a millisecond a token, so that a quantum is 100 tokens."""
    return PromptScheduler(slots, StepTimes(prefill_ms_per_token=1.0, decode_ms_per_step=5.0))


def with_rows(rows: int, slots: int = 60) -> Scheduler:
    """Return a scheduler in which so many rows decode already."""
    plans = scheduler(slots)
    for number in range(rows):
        plans.submit(sequence(f"row {number}", prompt=1, max_tokens=1000))
    plans.plan(0.0)
    return plans


def names(sequences: Seq[Sequence]) -> list[str]:
    return [each.name for each in sequences]


def chunks(plan: Plan) -> list[tuple[str, int, int]]:
    return [(chunk.sequence.name, chunk.start, chunk.tokens) for chunk in plan.chunks]


def test_no_more_sequences_run_than_there_are_slots() -> None:
    plans = scheduler(slots=2)
    for name in "abc":
        plans.submit(sequence(name))
    assert names(plans.plan(0.0).rows) == ["a", "b"]
    plans.cancel("a")
    assert names(plans.plan(0.0).rows) == ["b", "c"]
    assert plans.names == ("b", "c")


def test_a_prompt_of_one_token_needs_no_prefill() -> None:
    plans = scheduler()
    plans.submit(sequence("a", prompt=1))
    plan = plans.plan(0.0)
    assert plan.chunks == ()
    assert names(plan.rows) == ["a"]


def test_all_but_the_last_token_are_prefilled_and_the_row_decodes_in_the_same_turn() -> None:
    plans = scheduler()
    plans.submit(sequence("a", prompt=50))
    plan = plans.plan(0.0)
    assert chunks(plan) == [("a", 0, 49)]
    assert names(plan.rows) == ["a"]
    assert plan.rows[0].last_id == 49


def test_a_long_prompt_is_prefilled_a_quantum_a_turn_while_others_decode() -> None:
    plans = scheduler()
    plans.submit(sequence("quick", prompt=1, max_tokens=50))
    plans.plan(0.0)
    plans.submit(sequence("long", prompt=251))
    turns = [plans.plan(0.0) for _ in range(3)]
    assert [chunks(plan) for plan in turns] == [[("long", 0, 100)], [("long", 100, 100)], [("long", 200, 50)]]
    assert [names(plan.rows) for plan in turns] == [["quick"], ["quick"], ["quick", "long"]]


def test_the_shortest_remaining_prefill_goes_first() -> None:
    plans = with_rows(3)
    plans.submit(sequence("long", prompt=501))
    assert chunks(plans.plan(0.0)) == [("long", 0, 100)]
    plans.submit(sequence("middle", prompt=61))
    plans.submit(sequence("short", prompt=31))
    assert chunks(plans.plan(0.0)) == [("short", 0, 30), ("middle", 0, 60), ("long", 100, SMALL_CHUNK)]


@pytest.mark.parametrize(("rows", "quanta"), [(0, 4), (2, 4), (10, 2), (20, 1), (40, 1)])
def test_a_quantum_is_never_overrun_by_more_than_a_small_chunk(rows: int, quanta: int) -> None:
    """While more prompts wait than rows decode it grows as their ratio, to four times at most."""
    plans = with_rows(rows)
    for number in range(20):
        plans.submit(sequence(str(number), prompt=31))
    spent = sum(chunk.tokens for chunk in plans.plan(0.0).chunks)
    assert (quanta - 1) * QUANTUM_MS < spent <= quanta * QUANTUM_MS + SMALL_CHUNK


def test_the_fixed_cost_of_a_turn_is_part_of_the_quantum_and_of_what_it_says() -> None:
    plans = PromptScheduler(4, StepTimes(1.0, 5.0, prefill_fixed_ms=40.0))
    plans.submit(sequence("a", prompt=501))
    plan = plans.plan(0.0)
    assert chunks(plan) == [("a", 0, 60)]
    assert plan.expected_ms == 100.0


def test_a_prompt_moves_however_small_the_quantum() -> None:
    plans = PromptScheduler(4, StepTimes(1.0, 5.0, prefill_fixed_ms=40.0))
    plans.submit(sequence("a", prompt=501, quantum_ms=10.0))
    assert chunks(plans.plan(0.0)) == [("a", 0, SMALL_CHUNK)]


def test_a_long_prompt_is_not_starved_by_an_endless_stream_of_short_ones() -> None:
    """Short prompts that take the whole quantum come every turn, and yet the long one gets its turns."""
    plans = scheduler(slots=50)
    long = sequence("long", prompt=2001)
    plans.submit(long)
    for turn in range(200):
        now = turn * 0.1
        plans.submit(sequence(f"short {turn}", prompt=101, max_tokens=1, now=now))
        plan = plans.plan(now)
        plans.settle(plan.rows, [7] * len(plan.rows))
        if long.phase is not Phase.PREFILL:
            break
    assert long.phase is not Phase.PREFILL


def test_short_prompts_pass_a_long_one_that_has_not_waited_long() -> None:
    plans = with_rows(3)
    plans.submit(sequence("long", prompt=2001))
    for turn in range(20):
        plans.submit(sequence(f"short {turn}", prompt=101, now=turn * 0.1))
        assert chunks(plans.plan(turn * 0.1)) == [(f"short {turn}", 0, 100)]


def test_a_turn_says_how_long_it_should_take() -> None:
    plans = scheduler()
    plans.submit(sequence("a", prompt=1))
    plans.submit(sequence("b", prompt=31))
    assert plans.plan(0.0).expected_ms == 5.0 + 30.0


def test_a_row_is_in_every_plan_until_all_its_tokens_were_launched() -> None:
    plans = scheduler()
    plans.submit(sequence("a", max_tokens=3))
    assert [names(plans.plan(0.0).rows) for _ in range(4)] == [["a"], ["a"], ["a"], []]
    assert plans.busy, "its tokens were not read yet"


def test_tokens_come_out_with_their_indices_and_the_last_one_ends_the_sequence() -> None:
    plans = scheduler()
    a = sequence("a", max_tokens=2)
    plans.submit(a)
    plans.plan(0.0)
    plans.plan(0.0)
    assert plans.settle([a], [7]) == [Emitted(a, 0, 7)]
    assert plans.settle([a], [8]) == [Emitted(a, 1, 8), Ended(a, 2, "length")]
    assert plans.plan(0.0) == Plan((a,), (), (), 0.0)
    assert not plans.busy


def test_a_sequence_knows_what_was_read_for_it_with_the_token_that_ended_it() -> None:
    plans = scheduler()
    a, b = sequence("a", max_tokens=9, stop_ids=(2,)), sequence("b", max_tokens=9)
    for each in (a, b):
        plans.submit(each)
    steps = [plans.plan(0.0) for _ in range(3)]
    plans.settle(steps[0].rows, [7, 8])
    plans.settle(steps[1].rows, [2, 9])
    plans.cancel("b")
    plans.settle(steps[2].rows, [5, 5])
    assert (a.said, b.said) == ([7, 2], [8, 9])


def test_a_stop_id_ends_a_sequence_and_is_not_emitted() -> None:
    plans = scheduler()
    a = sequence("a", max_tokens=9, stop_ids=(2, 3))
    plans.submit(a)
    plans.plan(0.0)
    plans.plan(0.0)
    assert plans.settle([a], [7]) == [Emitted(a, 0, 7)]
    assert plans.settle([a], [3]) == [Ended(a, 1, "stop")]


def test_a_stop_id_in_the_last_place_is_a_stop_and_no_length() -> None:
    plans = scheduler()
    a = sequence("a", max_tokens=1, stop_ids=(2,))
    plans.submit(a)
    plans.plan(0.0)
    assert plans.settle([a], [2]) == [Ended(a, 0, "stop")]


def test_the_token_of_the_step_ahead_is_ignored_once_a_row_has_ended() -> None:
    plans = scheduler()
    a = sequence("a", max_tokens=9, stop_ids=(2,))
    plans.submit(a)
    ahead = [plans.plan(0.0), plans.plan(0.0)]
    plans.settle(ahead[0].rows, [2])
    assert plans.settle(ahead[1].rows, [7]) == []


def test_a_sequence_cancelled_while_waiting_never_holds_anything() -> None:
    plans = scheduler(slots=1)
    for name in "ab":
        plans.submit(sequence(name))
    plans.plan(0.0)
    plans.cancel("b")
    assert plans.plan(0.0).dropped == ()
    assert plans.names == ("a",)


@pytest.mark.parametrize("prompt", [501, 1], ids=["prefill", "decode"])
def test_a_sequence_cancelled_while_it_runs_is_dropped_by_the_next_plan_and_says_nothing(prompt: int) -> None:
    plans = scheduler()
    a = sequence("a", prompt=prompt)
    plans.submit(a)
    rows = plans.plan(0.0).rows
    plans.cancel("a")
    assert plans.busy
    assert plans.plan(0.0) == Plan((a,), (), (), 0.0)
    assert plans.settle(rows, [7] * len(rows)) == []
    assert not plans.busy


def test_cancelling_an_unknown_name_does_nothing() -> None:
    plans = scheduler()
    plans.cancel("nobody")
    assert not plans.busy


def test_cancelling_all_leaves_only_what_is_to_be_dropped() -> None:
    plans = scheduler(slots=2)
    for name, prompt in (("decodes", 1), ("prefills", 501), ("waits", 1)):
        plans.submit(sequence(name, prompt=prompt))
    plans.plan(0.0)
    plans.cancel_all()
    assert plans.names == ()
    assert names(plans.plan(0.0).dropped) == ["decodes", "prefills"]
    assert not plans.busy


@pytest.mark.parametrize("prompt", [501, 1], ids=["prefill", "decode"])
def test_a_name_that_comes_again_replaces_what_it_meant(prompt: int) -> None:
    plans = scheduler(slots=1)
    old, new = sequence("a", prompt=prompt), sequence("a", prompt=1, attempt=2)
    plans.submit(old)
    rows = plans.plan(0.0).rows
    plans.submit(new)
    plan = plans.plan(0.0)
    assert (plan.dropped, plan.rows) == ((old,), (new,))
    assert plans.settle(rows, [7] * len(rows)) == []
    assert plans.settle([new], [8]) == [Emitted(new, 0, 8)]


def test_a_resumed_sequence_prefills_what_was_emitted_and_goes_on_behind_it() -> None:
    plans = scheduler()
    a = sequence("a", prompt=10, emitted=3, max_tokens=5)
    plans.submit(a)
    plan = plans.plan(0.0)
    assert chunks(plan) == [("a", 0, 12)]
    assert a.last_id == 2
    assert plans.settle(plan.rows, [7]) == [Emitted(a, 3, 7)]
    plans.plan(0.0)
    assert plans.settle([a], [8]) == [Emitted(a, 4, 8), Ended(a, 5, "length")]
    assert plans.plan(0.0).rows == ()


def test_parking_gives_a_row_up_like_a_cancel_and_says_how_far_it_came() -> None:
    plans = scheduler(slots=1)
    a = sequence("a", max_tokens=9)
    for each in (a, sequence("b")):
        plans.submit(each)
    first, second = plans.plan(0.0), plans.plan(0.0)
    plans.settle(first.rows, [7])
    assert plans.park("a") is a
    assert (a.settled, a.phase) == (1, Phase.GONE)
    assert plans.settle(second.rows, [7]) == [], "a token that wasn't read in time is computed again"
    plan = plans.plan(0.0)
    assert (plan.dropped, names(plan.rows)) == ((a,), ["b"])
    assert plans.park("a") is None


# --- ranks ------------------------------------------------------------------------------------------------


def test_slots_go_by_rank_and_then_by_arrival() -> None:
    plans = scheduler(slots=1)
    for name, rank in (("low", 2), ("middle", 1), ("first", 0), ("second", 0)):
        plans.submit(sequence(name, rank=rank, max_tokens=1))
    order = []
    while plans.names:
        [row] = plans.plan(0.0).rows
        plans.settle([row], [7])
        order.append(row.name)
    assert order == ["first", "second", "middle", "low"]


def test_a_higher_rank_is_prefilled_first_however_long_it_is_and_however_long_others_have_waited() -> None:
    plans = with_rows(3)
    plans.submit(sequence("low", prompt=31, rank=1))
    plans.submit(sequence("high", prompt=501, now=60.0))
    assert chunks(plans.plan(60.0)) == [("high", 0, 100)]


def test_what_a_higher_rank_leaves_of_a_turn_goes_to_the_next_rank() -> None:
    plans = with_rows(3)
    plans.submit(sequence("low", prompt=501, rank=1))
    plans.submit(sequence("high", prompt=31))
    assert chunks(plans.plan(0.0)) == [("high", 0, 30), ("low", 0, 70)]


@pytest.mark.parametrize(("high", "spent"), [(31, 60), (46, 60), (61, 60), (81, 80)])
def test_a_lower_rank_never_makes_a_turn_longer_than_its_own_quantum(high: int, spent: int) -> None:
    """Not even by a small chunk: it fits in or waits."""
    plans = with_rows(3)
    plans.submit(sequence("low", prompt=501, rank=1, quantum_ms=60.0))
    plans.submit(sequence("high", prompt=high))
    turn = chunks(plans.plan(0.0))
    assert turn[0] == ("high", 0, high - 1)
    assert sum(tokens for _, _, tokens in turn) in (spent, high - 1)
    assert (len(turn) == 2) == (high - 1 + SMALL_CHUNK <= 60)


def test_a_lower_rank_with_a_longer_quantum_still_keeps_to_the_higher_ones_turn() -> None:
    plans = with_rows(3)
    plans.submit(sequence("low", prompt=501, rank=1, quantum_ms=400.0))
    plans.submit(sequence("high", prompt=31))
    assert chunks(plans.plan(0.0)) == [("high", 0, 30), ("low", 0, 70)]
    assert chunks(plans.plan(0.0)) == [("low", 70, 400)]


def test_a_lower_rank_gets_nothing_while_a_higher_one_has_prefill_left_for_the_next_turn() -> None:
    """A chunk is bounded in tokens too, so on a fast device there is time left behind it."""
    plans = PromptScheduler(4, StepTimes(prefill_ms_per_token=0.01, decode_ms_per_step=5.0))
    plans.submit(sequence("low", prompt=501, rank=1))
    plans.submit(sequence("high", prompt=2 * CHUNK_TOKENS_MAX + 11))
    assert [chunks(plans.plan(0.0)) for _ in range(3)] == [
        [("high", 0, CHUNK_TOKENS_MAX)],
        [("high", CHUNK_TOKENS_MAX, CHUNK_TOKENS_MAX)],
        [("high", 2 * CHUNK_TOKENS_MAX, 10), ("low", 0, 500)],
    ]


def test_a_turn_grows_with_the_prompts_that_wait_in_rank_0_only() -> None:
    low = scheduler(slots=60)
    for number in range(8):
        low.submit(sequence(f"low {number}", prompt=101, rank=1))
    assert sum(chunk.tokens for chunk in low.plan(0.0).chunks) == QUANTUM_MS
    low.submit(sequence("high", prompt=901))
    assert chunks(low.plan(0.0)) == [("high", 0, 100)]
    high = scheduler(slots=60)
    for number in range(8):
        high.submit(sequence(f"high {number}", prompt=101))
    assert sum(chunk.tokens for chunk in high.plan(0.0).chunks) == 4 * QUANTUM_MS
