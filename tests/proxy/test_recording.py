"""A recording: every listener hears all of it, and what nobody needs any more is let go."""

import asyncio
import tracemalloc

import pytest

from proxy.recording import Recording, RunBrokeError, afresh
from shared.errors import Overloaded, QueueTimeout


def heard(listener):
    return b"".join(iter(listener.take, b""))


def test_who_comes_late_hears_it_from_the_beginning():
    recording = Recording()
    with recording.listen() as early:
        recording.write(b"one ")
        assert early.take() == b"one "
        with recording.listen() as late:
            recording.write(b"two")
            assert (heard(early), heard(late)) == (b"two", b"one two")
    recording.end()
    assert heard(recording.listen()) == b"one two"


def test_a_long_one_is_taken_in_pieces():
    recording = Recording()
    recording.write(bytes(150_000))
    listener = recording.listen()
    assert len(listener.take()) == 65_536
    assert listener.behind_bytes == 150_000 - 65_536
    assert len(heard(listener)) == 150_000 - 65_536


def test_what_is_trimmed_is_only_what_all_have_taken():
    recording = Recording()
    with recording.listen() as fast, recording.listen() as slow:
        recording.write(b"abcdef")
        fast.take()
        recording.trim()
        assert recording.is_whole
        assert slow.take() == b"abcdef"
        recording.write(b"ghi")
        recording.trim()
        assert not recording.is_whole
        assert (fast.behind_bytes, slow.behind_bytes, len(recording)) == (3, 3, 9)
        assert slow.take() == b"ghi"
        recording.trim()
        recording.write(b"j")
        recording.end()
        assert (heard(fast), heard(slow)) == (b"ghij", b"j")


def test_letting_go_of_what_was_taken_copies_nothing_of_the_rest():
    """It happens at each write, for as long as a slow listener has megabytes to take."""
    recording = Recording()
    with recording.listen() as slow:
        recording.write(bytes(4 << 20))
        slow.take()
        recording.trim()
        recording.write(b"x")
        tracemalloc.start()
        try:
            for _ in range(50):
                recording.trim()
                recording.write(b"y")
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()
        assert slow.behind_bytes == (4 << 20) - 65_536 + 51


def test_who_leaves_holds_nothing_back():
    recording = Recording()
    with recording.listen():
        recording.write(b"abc")
        assert recording.listeners == 1
    assert recording.listeners == 0
    recording.trim()
    assert (len(recording), recording.is_whole) == (3, False)


async def test_news_are_writes_and_the_end_and_otherwise_the_time_passes():
    recording = Recording()
    assert not await recording.news(0.001)
    for happen in (lambda: recording.write(b"a"), recording.end):
        waiting = [asyncio.create_task(recording.news(60)) for _ in range(2)]
        await asyncio.sleep(0)
        happen()
        assert await asyncio.gather(*waiting) == [True, True]


def test_each_write_is_told_to_who_counts():
    recording, told = Recording(), []
    recording.grew = told.append
    recording.write(b"abc")
    recording.write(b"d")
    assert told == [3, 1]


def test_each_listener_gets_a_refusal_of_its_own_that_says_the_same():
    recording = Recording()
    recording.end(Overloaded("full", retry_after_s=7.0))
    seen = []
    for _ in range(2):
        with pytest.raises(Overloaded) as refused:
            recording.listen().raise_error()
        seen.append(refused.value)
    assert seen[0] is not seen[1]
    assert [(each.message, each.retry_after_s) for each in seen] == [("full", 7.0)] * 2
    assert recording.error.__traceback__ is None


def test_an_error_that_nobody_foresaw_is_the_cause_of_what_is_raised():
    recording = Recording()
    recording.end(ZeroDivisionError())
    with pytest.raises(RunBrokeError) as broke:
        recording.listen().raise_error()
    assert isinstance(broke.value.__cause__, ZeroDivisionError)


def test_without_an_error_nothing_is_raised():
    recording = Recording()
    recording.end()
    recording.listen().raise_error()


def test_a_refusal_made_afresh_keeps_its_kind_and_words():
    copy = afresh(QueueTimeout("late", retry_after_s=3.0))
    assert (type(copy), str(copy), copy.message, copy.retry_after_s) == (QueueTimeout, "late", "late", 3.0)
