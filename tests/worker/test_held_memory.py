"""What the loop does while memory is short: it gives back, prefills in smaller pieces, and tells at once."""

import pytest

from shared.limits import PROGRESS_INTERVAL_S
from shared.messages import Ping, Progress
from shared.readings import MemoryReading
from tests.worker.turned_loop import EPOCH, HELLO, KV_BYTES, MEMORY, Turned, submit
from worker.held_memory import ASK_INTERVAL_S
from worker.memory_guard import Bounds

BUDGET = HELLO.budget_bytes
LIMIT = 1 << 33
OVER = MemoryReading(LIMIT + 1024, 7, 0, 0)
# Which of its arrays would be too many for the device in FalseEngine's hands.
MANY = 90


@pytest.fixture
def met() -> Turned:
    turned = Turned(bounds=Bounds(LIMIT, BUDGET, reserve_bytes=1 << 20, arrays_max=100))
    turned.ping()
    turned.channel.sent.clear()
    return turned


def test_spare_buffers_are_given_back_when_too_much_is_held(met: Turned) -> None:
    met.turn()
    assert met.memory.given_back == []
    met.memory.reading = OVER
    met.turn()
    assert met.memory.given_back == [False]


def test_prefill_goes_in_pieces_of_half_the_size_until_memory_is_no_longer_short(met: Turned) -> None:
    met.memory.reading = OVER
    met.turn(times=2)
    met.turn(submit("a", (1,) * 91))
    assert met.reports[-1].expected_ms == 20.0
    met.memory.reading = MEMORY
    met.turn()
    assert met.reports[-1].expected_ms == 40.0


def test_a_budget_that_falls_is_told_to_the_proxy_at_once(met: Turned) -> None:
    met.turn(after_s=PROGRESS_INTERVAL_S)
    met.channel.sent.clear()
    met.memory.reading = OVER
    met.turn(submit("a", max_tokens=50), times=9)
    [progress] = met.channel.of(Progress)
    assert progress.budget_bytes == KV_BYTES - 1024
    assert met.engine.bytes_max == [KV_BYTES - 1024]
    met.memory.reading = MEMORY
    met.turn(after_s=0.25 * PROGRESS_INTERVAL_S)
    assert len(met.channel.of(Progress)) == 1, "that it grows again can wait for the next Progress"
    met.turn(after_s=PROGRESS_INTERVAL_S)
    assert met.channel.of(Progress)[-1].budget_bytes > progress.budget_bytes


def test_an_idle_worker_collects_and_then_asks_to_be_replaced_at_once(met: Turned) -> None:
    met.turn(after_s=PROGRESS_INTERVAL_S)
    met.memory.reading = OVER
    met.turn(times=4)
    assert met.memory.given_back == [False, True]
    assert met.reports[-1].wants_recycle
    assert met.channel.of(Progress)[-1].wants_recycle
    met.turn(submit("a", max_tokens=50))
    assert not met.reports[-1].wants_recycle


def test_what_other_programs_leave_is_asked_for_once_a_second(met: Turned) -> None:
    met.turn(Ping(EPOCH, 1), after_s=ASK_INTERVAL_S)
    met.memory.available_bytes = 0
    met.turn(after_s=0.9 * ASK_INTERVAL_S)
    assert met.memory.given_back == []
    met.turn(after_s=0.1 * ASK_INTERVAL_S)
    assert met.memory.given_back == [False]


def test_arrays_are_counted_where_the_device_bounds_them(met: Turned) -> None:
    met.engine.arrays = MANY
    met.turn(Ping(EPOCH, 1), after_s=ASK_INTERVAL_S)
    assert met.memory.given_back == [False]
    assert met.reports[-1].wants_recycle


def test_where_they_are_not_bounded_arrays_are_not_even_counted() -> None:
    turned = Turned()
    turned.engine.arrays = MANY
    turned.turn(after_s=ASK_INTERVAL_S)
    assert not turned.reports[-1].wants_recycle


def test_memory_is_read_in_the_same_turn_that_tells_of_it(met: Turned) -> None:
    met.memory.reading = MemoryReading(5, 6, 7, 8)
    met.turn()
    assert met.reports[-1].memory == MemoryReading(5, 6, 7, 8)
