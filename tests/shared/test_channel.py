"""The channel over a real ipc socket: who spoke, in which order, and what happens when nobody is there."""

import asyncio
import tempfile
from itertools import chain
from pathlib import Path

import pytest

from shared import channel
from shared.channel import DealerChannel, RouterChannel
from shared.limits import FRAME_BYTES_MAX
from tests.waiting import until


@pytest.fixture
def endpoint():
    """A socket's place with a path short enough, whatever the tests' own folder is called."""
    with tempfile.TemporaryDirectory(prefix="fb") as folder:
        yield f"ipc://{folder}/wire"


@pytest.fixture
async def opened():
    """Return what opens a channel and has it closed at the test's end."""
    channels = []

    def open_(kind, *arguments):
        channels.append(kind(*arguments))
        return channels[-1]

    yield open_
    for each in reversed(channels):
        each.close()


@pytest.fixture
async def router(opened, endpoint):
    return opened(RouterChannel, endpoint)


@pytest.fixture
def dealer(opened, endpoint):
    return lambda identity: opened(DealerChannel, endpoint, identity)


async def meet(router, dealer):
    """Let a dealer's frame through, and so make it known to the router."""
    await until(lambda: dealer.send(b"hello"))
    return await router.receive()


async def insist(router, dealer):
    """Say hello until it's heard: what goes into a connection that is just ending is lost with it."""
    heard = asyncio.create_task(router.receive())

    def is_heard():
        dealer.send(b"hello")
        return heard.done()

    await until(is_heard)
    return await heard


async def drained(dealer, count):
    """Return the next frames, as the drains that brought them."""
    batches = []

    def enough():
        batches.append(dealer.drain())
        return sum(map(len, batches)) >= count

    await until(enough)
    return [batch for batch in batches if batch]


async def test_a_frame_comes_with_the_identity_of_its_sender(router, dealer):
    assert await meet(router, dealer(b"w-0-1")) == (b"w-0-1", b"hello")
    assert await meet(router, dealer(b"s-0")) == (b"s-0", b"hello")


async def test_frames_keep_their_order_both_ways(router, dealer):
    peer = dealer(b"w-0-1")
    await meet(router, peer)
    sent = [str(number).encode() for number in range(100)]
    assert all(peer.send(frame) for frame in sent)
    assert [await router.receive() for _ in sent] == [(b"w-0-1", frame) for frame in sent]
    assert all([await router.send(b"w-0-1", frame) for frame in sent])
    assert list(chain.from_iterable(await drained(peer, 100))) == sent


async def test_each_peer_gets_what_is_addressed_to_it(router, dealer):
    one, other = dealer(b"w-0-1"), dealer(b"w-0-2")
    await meet(router, one)
    await meet(router, other)
    await router.send(b"w-0-2", b"for the other")
    await router.send(b"w-0-1", b"for one")
    assert await drained(one, 1) == [[b"for one"]]
    assert await drained(other, 1) == [[b"for the other"]]


async def test_a_frame_for_nobody_is_not_sent_and_says_so(router, dealer):
    assert await router.send(b"w-0-1", b"x") is False
    peer = dealer(b"w-0-1")
    await meet(router, peer)
    assert await router.send(b"w-0-2", b"x") is False
    assert await router.send(b"w-0-1", b"x") is True


async def test_a_frame_without_a_router_is_not_sent_and_says_so(dealer):
    assert dealer(b"w-0-1").send(b"x") is False


async def test_a_peer_that_left_is_nobody(router, endpoint):
    peer = DealerChannel(endpoint, b"w-0-1")
    await meet(router, peer)
    peer.close()
    outcomes = []
    while True not in (not sent for sent in outcomes):
        outcomes.append(await router.send(b"w-0-1", b"x"))
    assert outcomes[-1] is False


async def test_a_life_that_takes_an_identity_over_gets_its_frames(router, dealer):
    await meet(router, dealer(b"s-0"))
    later = dealer(b"s-0")
    await meet(router, later)
    await router.send(b"s-0", b"x")
    assert await drained(later, 1) == [[b"x"]]


async def test_a_drain_takes_no_more_than_its_bound(router, dealer, monkeypatch):
    monkeypatch.setattr(channel, "FRAMES_PER_DRAIN_MAX", 3)
    peer = dealer(b"w-0-1")
    await meet(router, peer)
    for number in range(20):
        await router.send(b"w-0-1", str(number).encode())
    assert peer.wait(20)
    batches = await drained(peer, 20)
    assert max(map(len, batches)) == 3
    assert list(chain.from_iterable(batches)) == [str(number).encode() for number in range(20)]


async def test_waiting_tells_whether_a_frame_is_here(router, dealer):
    peer = dealer(b"w-0-1")
    await meet(router, peer)
    assert peer.drain() == []
    assert peer.wait(0) is False
    await router.send(b"w-0-1", b"x")
    assert peer.wait(20) is True
    assert peer.drain() == [b"x"]


async def test_a_frame_over_the_limit_is_refused_and_the_socket_goes_on(router, dealer):
    peer, other = dealer(b"w-0-1"), dealer(b"w-0-2")
    await meet(router, peer)
    await meet(router, other)
    peer.send(b"x" * (FRAME_BYTES_MAX + 1))
    other.send(b"after it")
    assert await router.receive() == (b"w-0-2", b"after it")
    assert await insist(router, peer) == (b"w-0-1", b"hello")


async def test_a_frame_at_the_limit_goes_through(router, dealer):
    peer = dealer(b"w-0-1")
    await meet(router, peer)
    peer.send(b"x" * FRAME_BYTES_MAX)
    _, frame = await router.receive()
    assert len(frame) == FRAME_BYTES_MAX


async def test_a_message_of_several_parts_is_an_empty_frame(router, dealer):
    """The codec then refuses it; nothing raises in the loop."""
    peer = dealer(b"w-0-1")
    await meet(router, peer)
    peer._socket.send_multipart([b"a", b"b"])
    assert await router.receive() == (b"w-0-1", b"")
    await router._socket.send_multipart([b"w-0-1", b"a", b"b"])
    assert await drained(peer, 1) == [[b""]]


async def test_a_peer_finds_the_router_that_comes_back(dealer, endpoint):
    first = RouterChannel(endpoint)
    peer = dealer(b"w-0-1")
    await meet(first, peer)
    first.close()
    second = RouterChannel(endpoint)
    assert await insist(second, peer) == (b"w-0-1", b"hello")
    assert await second.send(b"w-0-1", b"x")
    assert await drained(peer, 1) == [[b"x"]]
    second.close()


async def test_what_was_sent_before_a_close_that_lingers_still_arrives(router, endpoint):
    peer = DealerChannel(endpoint, b"w-0-1")
    await meet(router, peer)
    sent = [bytes([number]) * 100_000 for number in range(100)]
    assert all(peer.send(frame) for frame in sent)
    await asyncio.gather(
        asyncio.to_thread(peer.close, linger_ms=20_000), *(expect(router, frame) for frame in sent)
    )


async def expect(router, frame):
    assert await router.receive() == (b"w-0-1", frame)


async def test_a_close_that_lingers_does_not_wait_for_a_router_that_is_gone(endpoint):
    router = RouterChannel(endpoint)
    peer = DealerChannel(endpoint, b"w-0-1")
    await meet(router, peer)
    router.close()
    peer.send(b"for nobody")
    await asyncio.wait_for(asyncio.to_thread(peer.close, linger_ms=50), timeout=20)


def leave_a_file(endpoint):
    Path(endpoint.removeprefix("ipc://")).touch()


async def test_a_stale_socket_file_does_not_prevent_a_bind(opened, endpoint, dealer):
    """What a proxy leaves that was killed."""
    leave_a_file(endpoint)
    router = opened(RouterChannel, endpoint)
    assert await meet(router, dealer(b"w-0-1")) == (b"w-0-1", b"hello")
