"""Silence: one timer, moved by hand, that tells a stream when its client has heard nothing for long."""

import asyncio

import pytest

from proxy.admitted import NothingCame, TokenCame
from proxy.silence import Silence

COMMENT = b": keep-alive\n\n"


class HandMovedLoop:
    """The two things of a loop that a timer needs; `advance` lets time pass."""

    def __init__(self):
        self.now = 100.0
        self.timers = []
        self.calls = 0

    def time(self):
        return self.now

    def call_at(self, moment, what):
        self.calls += 1
        timer = Timer(self, moment, what)
        self.timers.append(timer)
        return timer

    def advance(self, seconds):
        until = self.now + seconds
        while due := sorted(timer.moment for timer in self.timers if timer.moment <= until):
            self.now = max(self.now, due[0])
            timer = next(timer for timer in self.timers if timer.moment == due[0])
            self.timers.remove(timer)
            timer.what()
        self.now = until


class Timer:
    def __init__(self, loop, moment, what):
        self.loop, self.moment, self.what = loop, moment, what

    def cancel(self):
        self.loop.timers.remove(self)


@pytest.fixture
def loop():
    return HandMovedLoop()


@pytest.fixture
def events():
    return asyncio.Queue()


@pytest.fixture
def silence(loop, events):
    with Silence(events, 10.0, loop) as entered:
        yield entered


def taken(events):
    return [events.get_nowait() for _ in range(events.qsize())]


def test_a_comment_is_due_once_nothing_was_sent_for_the_time_and_again_each_time(silence, loop, events):
    for _ in range(3):
        loop.advance(9.5)
        assert (taken(events), silence.comment()) == ([], b"")
        loop.advance(0.5)
        assert (taken(events), silence.comment()) == ([NothingCame()], COMMENT)
        silence.ended()


def test_what_is_sent_puts_the_comment_off_to_the_full_time_after_it(silence, loop, events):
    loop.advance(7.0)
    silence.ended()
    loop.advance(9.5)
    assert taken(events) == []
    assert silence.comment() == b""
    loop.advance(0.5)
    assert taken(events) == [NothingCame()]


def test_however_many_tokens_come_the_timer_is_set_once_in_the_time(silence, loop, events):
    for _ in range(5000):
        loop.advance(0.02)
        silence.ended()
    assert taken(events) == []
    assert 10 <= loop.calls <= 12


def test_who_has_not_read_what_came_is_told_nothing_and_only_once(silence, loop, events):
    events.put_nowait(TokenCame(0, 7))
    loop.advance(35.0)
    assert taken(events) == [TokenCame(0, 7)]
    loop.advance(35.0)
    assert taken(events) == [NothingCame()]


def test_a_stream_that_has_ended_leaves_no_timer(loop, events):
    with pytest.raises(ZeroDivisionError), Silence(events, 10.0, loop):
        raise ZeroDivisionError
    assert loop.timers == []
