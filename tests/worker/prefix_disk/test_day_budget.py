"""The bytes of a day: never more than allowed, across restarts and whatever the wall clock does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.prefix_disk.day_budget import DayBudget, Spent, from_text, to_text


def spend(budget: DayBudget, day: int, nbytes: int) -> Spent | None:
    ahead = budget.spend(day, nbytes)
    if ahead is not None:
        budget.saved(ahead)
    return ahead


def test_what_was_spent_is_gone_until_the_next_day() -> None:
    budget = DayBudget(1000)
    spend(budget, 5, 400)
    assert budget.left(5) == 600
    spend(budget, 5, 600)
    assert budget.left(5) == 0
    assert budget.left(6) == 1000
    spend(budget, 6, 1)
    assert budget.left(6) == 999


def test_a_clock_that_was_set_back_brings_no_new_day() -> None:
    budget = DayBudget(1000)
    spend(budget, 5, 400)
    assert budget.left(4) == 600
    spend(budget, 4, 100)
    assert budget.left(4) == 500
    assert budget.left(5) == 1000


def test_the_file_is_not_written_with_each_block() -> None:
    budget = DayBudget(1600)
    saves = [ahead for _ in range(160) if (ahead := spend(budget, 1, 10)) is not None]
    assert 1 <= len(saves) <= 20


def test_a_count_that_could_not_be_saved_has_to_be_saved_again() -> None:
    budget = DayBudget(1600)
    assert budget.spend(1, 10) is not None
    assert budget.spend(1, 10) is not None


def test_a_damaged_file_leaves_nothing_for_its_day() -> None:
    text = to_text(Spent(7, 123))
    for at in range(len(text) - 1):
        damaged = bytes([*text[:at], text[at] ^ 1, *text[at + 1 :]])
        budget = DayBudget(1000)
        budget.adopt(from_text(damaged, 7))
        assert budget.left(7) == 0
        assert budget.left(8) == 1000


@pytest.mark.parametrize("text", [b"", b"\n", b"7 123", b"\xff\xfe", b"7"])
def test_what_is_no_count_leaves_nothing_for_its_day(text: bytes) -> None:
    assert from_text(text, 7).nbytes > 1 << 60


@given(
    st.lists(
        st.tuples(st.sampled_from(["write", "die", "end", "next day", "day before"]), st.integers(1, 300)),
        max_size=40,
    )
)
def test_no_day_has_more_bytes_than_allowed_whatever_happens(events: list[tuple[str, int]]) -> None:
    allowed, day, file, written = 1000, 100, None, 0
    budget = DayBudget(allowed)
    for event, nbytes in events:
        if event == "write" and budget.left(day) >= nbytes:
            ahead = budget.spend(day, nbytes)
            if ahead is not None:
                file = to_text(ahead)
                budget.saved(ahead)
            written += nbytes
        elif event == "next day":
            day, written = day + 1, 0
        elif event == "day before":
            day -= 1
        elif event in {"die", "end"}:
            if event == "end" and (spent := budget.exactly()) is not None:
                file = to_text(spent)
            budget = DayBudget(allowed)
            if file is not None:
                budget.adopt(from_text(file, day))
        assert written <= allowed
