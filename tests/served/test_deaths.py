"""A worker's death is not the client's problem: with real processes and the small model."""

import asyncio
import signal

import pytest

from tests.served.client import together
from tests.served.disturbed import BODIES, chat, once_under_way
from tests.served.gateway import wait_until

pytestmark = [pytest.mark.served, pytest.mark.timeout(300)]

ENDLESS_TOKENS = 20_000


async def watch_health(gateway, statuses: set, over: asyncio.Event) -> None:
    """Ask both health questions again and again, until it is over."""
    while not over.is_set():
        for path in ("/health/live", "/health/ready"):
            statuses.add((path, await asyncio.to_thread(gateway.status, path)))
        await asyncio.sleep(0.05)


async def with_a_death(gateway, number: signal.Signals) -> tuple[list, set]:
    """Run all streams; once they are under way, send the worker a signal."""
    statuses: set = set()
    over = asyncio.Event()
    kill = once_under_way(lambda: gateway.kill_worker(number))
    watching = asyncio.create_task(watch_health(gateway, statuses, over))
    try:
        said = await together(gateway.url, BODIES, kill)
    finally:
        over.set()
        await watching
    return said, statuses


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_all_streams_go_on_after_the_worker_dies_as_if_nothing_had_happened(mortal, undisturbed, number):
    """SIGSTOP is no death: the supervisor finds out by the progress that stays away, and replaces it.

    Whatever the signal, somebody sent it: that is seen, and blames no answer.
    """
    before = mortal.ready_body()
    said, statuses = asyncio.run(with_a_death(mortal, number))
    assert [each.text for each in said] == undisturbed
    assert all(each.done and each.error is None for each in said)
    assert {status for path, status in statuses if path == "/health/live"} == {200}
    assert {status for path, status in statuses if path == "/health/ready"} == {200, 503}
    wait_until(lambda: mortal.ready_body()["live"] == 0, "no answer is live")
    ready = mortal.ready_body()
    assert ready["worker"]["deaths"] == before["worker"]["deaths"] + 1
    assert ready["resumed"] > before["resumed"]
    assert ready["worker"]["last_death"] == "killed"
    assert (ready["suspects"], ready["quarantined"], ready["worker"]["rung"]) == (0, 0, 0)
    assert ready["reserved_bytes"] == 0


def test_the_supervisor_dies_and_the_stream_still_goes_on(mortal, undisturbed):
    """`forebay up` starts a new supervisor; the old one's worker ends with it."""

    def kill() -> None:
        (supervisor,) = mortal.processes("ops.cli worker")
        supervisor.kill()

    said = asyncio.run(together(mortal.url, BODIES, once_under_way(kill)))
    assert [each.text for each in said] == undisturbed


def test_the_answer_after_three_deaths_is_an_error_and_never_looks_complete(mortal):
    """Two resumes are allowed; the third death ends the stream with an error event and no [DONE].

    Each dies of another signal, which somebody sent: that blames no answer.
    """
    numbers = (signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL)
    before = mortal.ready_body()
    body = chat("Tell me a long story about the sea.", max_tokens=ENDLESS_TOKENS, temperature=0)
    deaths = []

    def kill_again(_number: int) -> None:
        """Kill each worker while it runs the answer; a chunk may be of the one before."""
        if len(deaths) == len(numbers):
            return
        now = mortal.ready_body()
        is_resumed = now["resumed"] == before["resumed"] + len(deaths)
        if is_resumed and now["lanes"]["interactive"]["running"] == 1:
            deaths.append(mortal.kill_worker(numbers[len(deaths)]))

    (said,) = asyncio.run(together(mortal.url, [body], kill_again))
    assert len(set(deaths)) == len(deaths) == 3
    assert said.error is not None
    assert said.error["code"] == "worker_crashed"
    assert not said.done
    assert said.reason is None
    mortal.wait_until_ready()
    (after,) = asyncio.run(together(mortal.url, [chat("Say hello.", max_tokens=5)]))
    assert after.done
    ready = mortal.ready_body()
    assert ready["worker"]["deaths"] == before["worker"]["deaths"] + 3
    assert ready["worker"]["last_death"] == "killed"
    assert (ready["suspects"], ready["quarantined"], ready["worker"]["rung"]) == (0, 0, 0)
