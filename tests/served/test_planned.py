"""What an operator does on purpose costs nobody anything: with real processes and the small model."""

import asyncio
import subprocess
import sys

import pytest

from tests.served.client import together
from tests.served.disturbed import BODIES, once_under_way
from tests.served.gateway import wait_until

pytestmark = [pytest.mark.served, pytest.mark.timeout(300)]


def ordered(gateway, *words: str) -> str:
    """Run a command of `forebay` against a gateway; return what it says."""
    command = [sys.executable, "-m", "ops.cli", *words, "--port", str(gateway.port)]
    done = subprocess.run(
        command, check=False, env=gateway.environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def with_an_order(gateway, *words: str) -> tuple[list, str]:
    """Run all streams; once they are under way, give an order. Return the streams, and what was said."""
    order = None

    def give() -> None:
        nonlocal order
        order = asyncio.create_task(asyncio.to_thread(ordered, gateway, *words))

    said = await together(gateway.url, BODIES, once_under_way(give))
    assert order is not None
    return said, await order


def test_the_worker_is_replaced_under_live_streams_and_none_loses_a_token(mortal, undisturbed):
    """At once, so that streams pause; and after a drain, so that they end first."""
    deaths = mortal.ready_body()["worker"]["deaths"]
    for manner in ((), ("--drain",)):
        before = mortal.ready_body()["worker"]["epoch"]
        said, words = asyncio.run(with_an_order(mortal, "restart", "worker", *manner))
        assert [each.text for each in said] == undisturbed
        assert all(each.done and each.error is None for each in said)
        worker = mortal.ready_body()["worker"]
        assert worker["epoch"] > before
        assert f"epoch {before} was replaced by that of epoch {worker['epoch']}" in words
        assert (worker["last_death"], worker["deaths"], worker["rung"]) == ("planned", deaths, 0)
    assert ordered(mortal, "journal").count("was replaced on purpose") == 2


def test_a_gateway_that_is_stopped_finishes_what_runs_and_leaves_nothing_behind(mortal, undisturbed):
    """The last of all that is done to this gateway."""
    said, words = asyncio.run(with_an_order(mortal, "stop"))
    assert [each.text for each in said] == undisturbed
    assert all(each.done for each in said)
    assert "is gone" in words
    wait_until(lambda: not mortal.processes(), "the last process ends")
