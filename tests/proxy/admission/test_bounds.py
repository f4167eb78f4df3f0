"""The queue's bounds: answers, bytes and seconds, of a lane and of a key, each exact to the last one."""

import pytest

from proxy.admission.lane import ID_BYTES
from shared.errors import ContextTooLong, InvalidRequest, Overloaded, RateLimited
from tests.proxy.admission.small_core import HIGH, LOW, Desk, lane, patient

MIB = 1 << 20


def places(count, **changes):
    return Desk(lane("high", queue_places=count), LOW, **changes)


# --- answers ------------------------------------------------------------------------------------------------


def test_the_last_place_is_taken_and_the_next_one_is_refused():
    desk = places(3)
    desk.arrive("a", "b", "c")
    with pytest.raises(Overloaded, match="3 answers wait in this lane already, of 3"):
        desk.arrive("d")
    assert desk.core.queued == 3
    desk.arrive("low", lane="low")


def test_the_answers_of_a_request_are_queued_together_or_not_at_all():
    desk = places(3)
    desk.arrive("a")
    with pytest.raises(Overloaded):
        desk.arrive_together("b1", "b2", "b3")
    assert desk.core.queued == 1
    desk.arrive_together("c1", "c2")
    assert desk.core.queued == 3


def test_one_answer_that_never_fits_keeps_all_of_its_request_out():
    desk = Desk()
    desk.worker(30)
    with pytest.raises(ContextTooLong):
        desk.core.arrived("high", [patient("a"), patient("b", prompt_tokens=99)], 0.0)
    assert (desk.core.queued, desk.state.answers) == (0, {})


def test_more_answers_than_there_are_places_is_the_requests_own_fault():
    desk = places(3)
    with pytest.raises(InvalidRequest, match="4 answers in one request; 3 at most"):
        desk.arrive_together("a", "b", "c", "d")
    with pytest.raises(InvalidRequest, match="4 answers in one request; 3 at most"):
        desk.announce(4)
    desk.announce(3)


def test_places_are_free_again_when_answers_start_or_leave():
    desk = places(3)
    desk.arrive("a", "b", "c")
    desk.end("b", completed=False)
    desk.arrive("d")
    desk.worker(slots=1)
    assert desk.starts() == ["a"]
    desk.arrive("e")
    with pytest.raises(Overloaded):
        desk.arrive("f")


def test_what_ran_before_takes_nobodys_place():
    """A death must not turn newcomers away while no more of them wait than are allowed to."""
    desk = places(3)
    desk.worker(slots=2)
    desk.arrive("a", "b")
    desk.starts()
    desk.arrive("c")
    desk.death()
    desk.arrive("d", "e")
    assert desk.core.queued == 5
    with pytest.raises(Overloaded):
        desk.arrive("f")


# --- of one key ---------------------------------------------------------------------------------------------


def test_a_key_fills_its_share_of_a_queue_and_no_more():
    desk = places(40, key_queue_share=0.25)
    desk.arrive(*(f"a{number}" for number in range(10)), key="a")
    with pytest.raises(RateLimited, match="10 answers of this API key wait in this lane already, of 10"):
        desk.arrive("a10", key="a")
    desk.arrive("b", key="b")
    desk.arrive("low", lane="low", key="a")
    desk.end("a3", completed=False)
    desk.arrive("a10", key="a")
    with pytest.raises(RateLimited):
        desk.arrive("a11", key="a")


def test_a_key_may_have_four_places_in_the_smallest_queue():
    desk = places(8, key_queue_share=0.25)
    desk.arrive("a1", "a2", "a3", "a4", key="a")
    with pytest.raises(RateLimited):
        desk.arrive("a5", key="a")


def test_more_answers_than_a_keys_share_is_the_requests_own_fault():
    desk = places(16, key_queue_share=0.25)
    with pytest.raises(InvalidRequest, match="5 answers in one request; at most 4"):
        desk.arrive_together("1", "2", "3", "4", "5", key="a")
    with pytest.raises(InvalidRequest, match="5 answers in one request; at most 4"):
        desk.announce(5, key="a")
    desk.arrive_together("1", "2", "3", "4", key="a")


def test_callers_without_a_key_may_fill_the_queue():
    desk = places(8, key_queue_share=0.25)
    desk.arrive(*(str(number) for number in range(8)))
    with pytest.raises(Overloaded):
        desk.arrive("8")


# --- bytes --------------------------------------------------------------------------------------------------


def test_the_prompts_that_wait_are_bounded_in_bytes():
    """Of 26,214 tokens that fit in a MiB, one more is too much; only prompts count."""
    desk = Desk(lane("high", queue_mb=1), LOW)
    most = MIB // ID_BYTES
    desk.arrive("a", prompt_tokens=most - 10, max_tokens=5000)
    with pytest.raises(Overloaded, match="fill 1 MiB"):
        desk.arrive("b", prompt_tokens=11)
    desk.arrive("c", prompt_tokens=9)
    desk.arrive("d", prompt_tokens=1)
    with pytest.raises(Overloaded):
        desk.arrive("e", prompt_tokens=1)
    desk.end("c", completed=False)
    desk.arrive("f", prompt_tokens=9)


def test_prompts_that_could_never_wait_are_the_requests_own_fault():
    """Told to come back, they would do so for ever."""
    desk = Desk(lane("high", queue_mb=1), LOW)
    most = MIB // ID_BYTES
    with pytest.raises(InvalidRequest, match=f"{most + 1} prompt tokens.*{most} at most"):
        desk.arrive("a", prompt_tokens=most + 1)
    desk.arrive("b", prompt_tokens=most)


def test_what_starts_gives_its_prompts_bytes_back():
    desk = Desk(lane("high", queue_mb=1), LOW)
    desk.worker(1 << 40, slots=1)
    desk.arrive("a", prompt_tokens=26_000)
    assert desk.starts() == ["a"]
    desk.arrive("b", prompt_tokens=26_000)
    desk.core.interrupted(["a"], 0.0)
    with pytest.raises(Overloaded):
        desk.arrive("c", prompt_tokens=26_000)
    assert desk.lane("high").queued_tokens == 26_000


# --- seconds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queue_s", "room"), [(1.399, 1), (1.4, 2), (1.401, 2), (2.1, 3)])
def test_the_work_that_waits_is_bounded_in_seconds(queue_s, room):
    """An answer takes 10 tokens of 50 ms, and prompts of 200 tokens 200 ms: 0.7 s."""
    desk = Desk(lane("high", queue_s=queue_s, max_tokens_default=10), LOW)
    desk.worker(slots=1)
    names = [str(number) for number in range(room)]
    desk.arrive(*names, prompt_tokens=200)
    with pytest.raises(Overloaded, match=r"s of work wait in this lane"):
        desk.arrive("one more", prompt_tokens=200)


def test_however_long_an_answer_takes_an_empty_queue_takes_it():
    desk = Desk(lane("high", queue_s=0.01), LOW)
    desk.arrive("a")
    with pytest.raises(Overloaded):
        desk.arrive("b")


# --- the gate before measuring ------------------------------------------------------------------------------


def test_no_more_is_measured_than_queue_and_free_rows_may_take():
    desk = places(3)
    desk.worker(slots=2)
    first = desk.announce(3)
    second = desk.announce(2)
    with pytest.raises(Overloaded):
        desk.announce()
    desk.core.measured(first)
    desk.core.measured(second)
    desk.arrive("a", "b")
    assert desk.starts() == ["a", "b"]
    third = desk.announce(3)
    with pytest.raises(Overloaded):
        desk.announce()
    desk.core.measured(third)
    desk.arrive("c")
    desk.announce(2)
    with pytest.raises(Overloaded):
        desk.announce()


def test_without_a_worker_there_are_no_free_rows():
    desk = places(3)
    desk.worker(slots=2)
    desk.core.worker_went(0.0)
    desk.announce(3)
    with pytest.raises(Overloaded):
        desk.announce()


def test_what_is_announced_counts_against_its_key():
    desk = places(16, key_queue_share=0.25)
    held = desk.announce(3, key="a")
    other = desk.announce(4, key="b")
    desk.announce(1, key="a")
    with pytest.raises(RateLimited):
        desk.announce(1, key="a")
    desk.core.measured(held)
    desk.arrive("a1", "a2", key="a")
    desk.announce(1, key="a")
    with pytest.raises(RateLimited):
        desk.announce(1, key="a")
    desk.core.measured(other)
    assert desk.lane("high").announced_by_key == {"a": 2}


def test_nothing_is_left_of_announcements_that_were_measured():
    desk = Desk(HIGH, LOW)
    for announcement in [desk.announce(2, key="a"), desk.announce(1, key="a"), desk.announce(lane="low")]:
        desk.core.measured(announcement)
    assert [each.announced for each in desk.state.lanes] == [0, 0]
    assert [each.announced_by_key for each in desk.state.lanes] == [{}, {}]
