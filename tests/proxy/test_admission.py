"""Admission: who waits, who runs, who is refused. Events in, names out; no clock but the one passed in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admission.core import Admission
from proxy.admission.estimate import Estimate
from proxy.admission.ledger import Ledger
from shared.errors import ContextTooLong, Overloaded
from tests.proxy.small_worlds import facts, waiting

TEN = 9  # tokens of an answer whose row takes 10 bytes


@pytest.fixture
def admission():
    """Three places in the queue, no worker yet."""
    return Admission(3, Estimate())


def come(admission, rows=2, slots=9, **changes):
    """Let a worker come that holds `rows` answers of TEN tokens; the bytes of one more are set aside."""
    admission.worker_came(facts(**changes), (rows + 1) * 10, slots)


def arrive(admission, *names, tokens=TEN):
    for name in names:
        admission.arrived([waiting(name, tokens)])


# --- the queue ----------------------------------------------------------------------------------------------


def test_the_last_place_is_taken_and_the_next_one_is_refused(admission):
    arrive(admission, "a", "b", "c")
    assert admission.queued == 3
    with pytest.raises(Overloaded, match="3 answers wait already"):
        arrive(admission, "d")
    assert admission.queued == 3


def test_the_answers_of_a_request_are_queued_together_or_not_at_all(admission):
    arrive(admission, "a")
    with pytest.raises(Overloaded):
        admission.arrived([waiting("b/0"), waiting("b/1"), waiting("b/2")])
    assert admission.queued == 1
    admission.arrived([waiting("c/0"), waiting("c/1")])
    assert admission.queued == 3


def test_one_answer_that_never_fits_keeps_all_of_its_request_out(admission):
    come(admission, rows=2)
    with pytest.raises(ContextTooLong):
        admission.arrived([waiting("a/0"), waiting("a/1", 1000)])
    assert admission.queued == 0


def test_whoever_came_first_starts_first(admission):
    arrive(admission, "a", "b", "c")
    come(admission, rows=2)
    assert admission.starts(0.0) == ["a", "b"]
    admission.ended("b", 1.0, completed=True)
    assert admission.starts(1.0) == ["c"]


def test_a_small_one_does_not_overtake_a_large_one(admission):
    """Or a stream of small ones would keep the large one waiting for ever."""
    come(admission, rows=2)
    arrive(admission, "a", "b")
    admission.starts(0.0)
    arrive(admission, "large", tokens=14)
    arrive(admission, "small", tokens=1)
    admission.ended("a", 0.0, completed=True)
    assert admission.starts(0.0) == []
    admission.ended("b", 0.0, completed=True)
    assert admission.starts(0.0) == ["large"]


def test_places_are_free_again_when_answers_start_or_leave(admission):
    arrive(admission, "a", "b", "c")
    admission.ended("b", 0.0, completed=False)
    arrive(admission, "d")
    come(admission, rows=1)
    assert admission.starts(0.0) == ["a"]
    arrive(admission, "e")
    assert admission.queued == 3


def test_the_interrupted_go_first_in_their_own_order(admission):
    come(admission, rows=2)
    arrive(admission, "a", "b", "c")
    assert admission.starts(0.0) == ["a", "b"]
    admission.worker_went()
    admission.interrupted(["a", "b"])
    come(admission, rows=9)
    assert admission.starts(0.0) == ["a", "b", "c"]


def test_the_interrupted_take_nobodys_place(admission):
    """A death must not turn newcomers away while no more of them wait than are allowed to."""
    come(admission, rows=2)
    arrive(admission, "a", "b")
    admission.starts(0.0)
    arrive(admission, "c")
    admission.worker_went()
    admission.interrupted(["a", "b"])
    arrive(admission, "d", "e")
    assert admission.queued == 5
    with pytest.raises(Overloaded):
        arrive(admission, "f")
    come(admission, rows=2)
    assert admission.starts(0.0) == ["a", "b"]
    with pytest.raises(Overloaded):
        arrive(admission, "f")


def test_nobody_waits_longer_for_one_that_ended_while_interrupted(admission):
    come(admission, rows=1)
    arrive(admission, "a")
    admission.starts(0.0)
    admission.interrupted(["a"])
    admission.ended("a", 0.0, completed=False)
    arrive(admission, "b", "c", "d")
    with pytest.raises(Overloaded):
        arrive(admission, "e")


# --- slots and bytes ----------------------------------------------------------------------------------------


def test_without_a_worker_nobody_starts(admission):
    arrive(admission, "a")
    assert admission.starts(0.0) == []
    come(admission)
    admission.worker_went()
    assert admission.starts(0.0) == []


def test_slots_bound_what_runs(admission):
    come(admission, rows=9, slots=2)
    arrive(admission, "a", "b", "c")
    assert admission.starts(0.0) == ["a", "b"]
    assert admission.running == 2


def test_bytes_are_reserved_for_the_whole_of_an_answer_and_given_back(admission):
    come(admission, rows=2)
    arrive(admission, "a", "b")
    admission.starts(0.0)
    assert admission.reserved_bytes == 30
    admission.ended("a", 0.0, completed=True)
    assert admission.reserved_bytes == 20
    admission.ended("b", 0.0, completed=False)
    assert admission.reserved_bytes == 0


def test_an_answer_that_is_interrupted_holds_no_bytes(admission):
    come(admission, rows=2)
    arrive(admission, "a", "b")
    admission.starts(0.0)
    admission.interrupted(["a"])
    assert (admission.reserved_bytes, admission.running, admission.queued) == (20, 1, 1)


def test_an_answer_ends_once_however_often_it_is_said(admission):
    come(admission, rows=2)
    arrive(admission, "a", "b")
    admission.starts(0.0)
    for _ in range(2):
        admission.ended("a", 0.0, completed=False)
    assert (admission.reserved_bytes, admission.running) == (20, 1)


def test_what_never_fits_is_refused_with_both_numbers(admission):
    admission.worker_came(facts(kv_bytes_per_token=1 << 20), 100 << 20, 4)
    with pytest.raises(ContextTooLong, match=r"50 tokens.*100 MiB") as refusal:
        arrive(admission, "a", tokens=50)
    assert refusal.value.param == "max_tokens"
    arrive(admission, "b", tokens=49)
    assert admission.starts(0.0) == ["b"]


def test_what_never_fits_is_refused_while_the_worker_restarts_too(admission):
    come(admission, rows=2)
    admission.worker_went()
    with pytest.raises(ContextTooLong):
        arrive(admission, "a", tokens=1000)


def test_what_no_longer_fits_an_empty_worker_is_taken_out_of_the_queues_head(admission):
    """A worker may come back with less memory; nobody may wait for ever behind what can't start."""
    arrive(admission, "large", "larger", tokens=100)
    arrive(admission, "small")
    come(admission, rows=1)
    assert admission.misfits() == ["large", "larger"]
    assert admission.misfits() == []
    assert admission.starts(0.0) == ["small"]


def test_nobody_is_a_misfit_before_a_worker_came(admission):
    arrive(admission, "a", tokens=1 << 19)
    assert admission.misfits() == []


# --- the ledger ---------------------------------------------------------------------------------------------

LENGTHS = st.lists(st.integers(1, 40), max_size=12)


@given(LENGTHS, st.integers(0, 2000), st.integers(1, 8), st.integers(1, 4), st.integers(0, 50))
def test_whatever_fits_is_within_the_budget_and_what_does_not_would_be_over_it(
    lengths, budget, pad_tokens, pad_rows, fixed
):
    model = facts(kv_pad_tokens=pad_tokens, kv_pad_rows=pad_rows, fixed_bytes_per_row=fixed)
    ledger = Ledger(model, budget)
    taken = []
    for number, tokens in enumerate(lengths):
        needed = model.batch_bytes(len(taken) + 1, max([*taken, tokens]))
        assert ledger.fits(tokens) == (needed <= budget)
        if ledger.fits(tokens):
            ledger.reserve(str(number), tokens)
            taken.append(tokens)
        assert ledger.reserved_bytes == model.batch_bytes(len(taken), max(taken, default=0)) <= budget
    for number in range(len(lengths)):
        ledger.release(str(number))
    assert (ledger.reserved_bytes, ledger.rows) == (0, 0)


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 64), st.integers(1, 8), st.integers(0, 9))
def test_a_batchs_bytes_hold_its_rows_and_one_more_each_as_long_as_the_longest(
    rows, longest, pad_tokens, pad_rows, fixed
):
    model = facts(kv_pad_tokens=pad_tokens, kv_pad_rows=pad_rows, fixed_bytes_per_row=fixed)
    needed = model.batch_bytes(rows, longest)
    assert needed >= (rows + 1) * (longest + 1 + fixed)
    assert needed < (rows + pad_rows + 1) * (longest + 1 + pad_tokens + fixed)
    assert needed <= model.batch_bytes(rows + 1, longest)
    assert needed <= model.batch_bytes(rows, longest + 1)


# --- the count gate -----------------------------------------------------------------------------------------


def test_no_more_answers_are_measured_than_queue_and_free_slots_may_take(admission):
    come(admission, slots=2)
    admission.announced(5)
    with pytest.raises(Overloaded):
        admission.announced(1)
    admission.measured(5)
    arrive(admission, "a", "b")
    assert admission.starts(0.0) == ["a", "b"]
    admission.announced(3)
    with pytest.raises(Overloaded):
        admission.announced(1)
    admission.measured(3)
    admission.announced(3)


# --- when to come back --------------------------------------------------------------------------------------


@given(st.floats(0, 1e9))
def test_the_time_to_come_back_is_the_wait_within_a_minute(wait_s):
    assert Overloaded("full", retry_after_s=wait_s).retry_after_s == min(60.0, max(1.0, wait_s))


def test_the_time_to_come_back_grows_with_the_queue_and_shrinks_with_slots():
    estimate = Estimate(answer_s=2.0)
    assert estimate.wait_s(0, 1) == 2.0
    assert estimate.wait_s(9, 1) == 20.0
    assert estimate.wait_s(9, 4) == 5.0
    assert estimate.wait_s(9, 0) == 20.0


def test_the_time_to_come_back_is_learnt_from_answers_that_completed(admission):
    come(admission, rows=3)
    arrive(admission, "a", "b", "c")
    admission.starts(0.0)
    admission.ended("a", 105.0, completed=True)
    admission.ended("b", 1000.0, completed=False)
    arrive(admission, "d", "e", "f")
    admission.worker_went()
    with pytest.raises(Overloaded) as refusal:
        arrive(admission, "g")
    # A tenth of the way from the 5 s unseen to 105 s is 15 s; four would be answered, nine at a time.
    assert refusal.value.retry_after_s == pytest.approx(15 * 4 / 9)


def test_a_restart_is_learnt_from_faster_than_an_answer():
    estimate = Estimate()
    estimate.restart_took(20.0)
    estimate.restart_took(30.0)
    assert estimate.restart_s == 22.5
