"""The proxy's end of the wire as it runs: what it sends, in which order, and when nobody is there."""

import asyncio
import contextlib

import pytest
import structlog

from proxy import worker_link
from proxy.worker_link import WorkerLink
from shared.clock import FalseClock
from shared.codec import decode, encode
from shared.messages import CALM, Cancel, Exited, Hello, Ping, Restart, Starting, Stop
from tests.proxy.link_world import STARTED_S, World
from tests.proxy.small_worlds import FINGERPRINT, hello
from tests.waiting import until


@pytest.fixture
def world():
    return World()


@contextlib.asynccontextmanager
async def running(world):
    task = asyncio.create_task(world.link.run())
    yield task
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_what_is_sent_goes_to_the_current_worker_in_order(world):
    world.worker_says(hello(1))
    for number in range(50):
        world.link.send(Cancel(1, str(number)))
    async with running(world):
        assert await world.channel.sent.get() == (b"w-0-1", Ping(1, world.link.ping))
        sent = [await world.channel.sent.get() for _ in range(50)]
    assert sent == [(b"w-0-1", Cancel(1, str(number))) for number in range(50)]


async def test_what_was_meant_for_the_worker_before_is_not_sent(world):
    world.worker_says(hello(1))
    world.link.send(Cancel(1, "a"))
    world.worker_says(hello(2))
    world.link.send(Cancel(1, "b"))
    world.link.send(Cancel(2, "c"))
    async with running(world):
        sent = [(await world.channel.sent.get())[1] for _ in range(2)]
    assert sent == [Ping(2, world.link.ping), Cancel(2, "c")]
    assert world.channel.sent.empty()


async def test_what_was_meant_for_a_worker_before_it_said_hello_again_is_not_sent(world):
    """What ran is lost and will be submitted anew."""
    world.worker_says(hello(1))
    world.link.send(Cancel(1, "a"))
    world.worker_says(hello(1))
    async with running(world):
        assert (await world.channel.sent.get())[1] == Ping(1, world.link.ping)
    assert world.channel.sent.empty()


async def test_a_worker_that_cannot_be_reached_is_lost_and_can_come_back(world):
    world.worker_says(hello(1))
    world.channel.reachable = False
    went = asyncio.Event()
    world.heard.worker_went = lambda cause: (world.heard.words.append(("went", cause)), went.set())
    async with running(world):
        await went.wait()
        assert (world.status, world.news()) == ("restarting", [("came", 1), ("went", "unreachable")])
        world.channel.reachable = True
        world.worker_says(hello(1))
        assert (await world.channel.sent.get())[1] == Ping(1, world.link.ping)
    assert world.news() == [("came", 1)]


async def test_pings_are_numbered_one_by_one_over_all_workers(world, monkeypatch):
    monkeypatch.setattr(worker_link, "PING_INTERVAL_S", 0.001)
    before = world.link.ping
    async with running(world):
        world.worker_says(hello(1))
        first = [(await world.channel.sent.get())[1] for _ in range(3)]
        world.supervisor_says(Exited(1, "crash", "", ()))
        while not world.channel.sent.empty():
            first.append(world.channel.sent.get_nowait()[1])
        world.worker_says(hello(2))
        second = [(await world.channel.sent.get())[1] for _ in range(3)]
    assert {ping.epoch for ping in first} == {1}
    assert {ping.epoch for ping in second} == {2}
    numbers = [ping.number for ping in first + second]
    assert numbers[0] == before + 1
    assert numbers == sorted(set(numbers))


def test_a_later_proxys_pings_have_higher_numbers(world):
    """A worker echoes the last number it saw, which may be that of the proxy before."""
    world.worker_says(hello(1))
    later = WorkerLink(world.channel, FINGERPRINT, FalseClock(STARTED_S + 1), structlog.get_logger())
    assert later.ping > world.link.ping


async def test_frames_are_heard_from_the_channel(world):
    came = asyncio.Event()
    world.heard.worker_came = lambda _hello: came.set()
    async with running(world):
        world.channel.incoming.put_nowait((b"w-0-1", b"rubbish"))
        world.channel.incoming.put_nowait((b"w-0-1", encode(hello(1))))
        await came.wait()
    assert isinstance(world.link.state.hello, Hello)
    assert world.link.dropped_frames == 1


async def test_an_order_goes_to_the_supervisor_before_what_waits_for_the_worker(world):
    world.supervisor_says(Starting(1, CALM))
    world.worker_says(hello(1))
    world.link.send(Cancel(1, "a"))
    assert world.link.restart_worker() == 1
    async with running(world):
        sent = [await world.channel.sent.get() for _ in range(3)]
    assert sent[0] == (b"s-0", Restart(1))
    assert [identity for identity, _ in sent[1:]] == [b"w-0-1", b"w-0-1"]


@pytest.mark.parametrize("words", [[], [Starting(1, CALM)], [hello(1)]])
def test_without_a_worker_and_a_supervisor_nothing_is_restarted(world, words):
    for word in words:
        (world.supervisor_says if isinstance(word, Starting) else world.worker_says)(word)
    assert world.link.restart_worker() is None


async def test_an_order_that_reaches_nobody_harms_nobody(world):
    world.worker_says(hello(1))
    world.link.stop_supervisor()
    world.news()
    sent = []

    async def send(identity, frame):
        sent.append((identity, decode(frame)))
        return identity != b""

    world.channel.send = send
    async with running(world):
        await until(lambda: len(sent) == 2)
    assert sent == [(b"", Stop(1)), (b"w-0-1", Ping(1, world.link.ping))]
    assert (world.news(), world.status) == ([], "ready")


async def test_a_supervisor_is_told_to_stop_whether_a_worker_is_there_or_not(world):
    world.supervisor_says(Starting(1, CALM))
    world.link.stop_supervisor()
    async with running(world):
        assert await world.channel.sent.get() == (b"s-0", Stop(0))


async def test_orders_go_to_the_supervisor_that_spoke_last(world):
    for identity in (b"s-0", b"s-1"):
        world.link.take(identity, encode(Starting(1, CALM)))
    world.link.stop_supervisor()
    async with running(world):
        assert (await world.channel.sent.get())[0] == b"s-1"


async def test_an_error_in_the_channel_ends_the_link(world):
    async def broken():
        raise OSError("the socket is gone")

    world.channel.receive = broken
    with pytest.raises(ExceptionGroup) as problem:
        await world.link.run()
    assert problem.value.subgroup(OSError)
