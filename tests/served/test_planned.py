"""What an operator does on purpose costs nobody anything: with real processes and the demo model."""

import asyncio
import subprocess
import sys

import pytest

from tests.served.client import together
from tests.served.test_deaths import BODIES, TOKENS

pytestmark = [pytest.mark.served, pytest.mark.timeout(300)]


def ordered(gateway, *words: str) -> str:
    """Run a command of `forebay` against a gateway; return what it says."""
    command = [sys.executable, "-m", "ops.cli", *words, "--port", str(gateway.port)]
    done = subprocess.run(
        command, check=False, env=gateway.environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def with_an_order(gateway, *words: str) -> tuple[list, str]:
    """Run all streams; once each has some tokens, give an order. Return the streams, and what was said."""
    chunks, order = 0, None

    def count(_number: int) -> None:
        nonlocal chunks, order
        chunks += 1
        if chunks == len(BODIES) * TOKENS // 3:
            order = asyncio.create_task(asyncio.to_thread(ordered, gateway, *words))

    said = await together(gateway.url, BODIES, count)
    assert order is not None
    return said, await order


@pytest.fixture(scope="module")
def undisturbed(gateway) -> list[str]:
    return [said.text for said in asyncio.run(together(gateway.url, BODIES))]


def test_the_worker_is_replaced_under_live_streams_and_none_loses_a_token(fresh_gateway, undisturbed):
    """At once, so that streams pause; and after a drain, so that they end first."""
    for manner in ((), ("--drain",)):
        before = fresh_gateway.ready_body()["worker"]["epoch"]
        said, words = asyncio.run(with_an_order(fresh_gateway, "restart", "worker", *manner))
        assert [each.text for each in said] == undisturbed
        assert all(each.done and each.error is None for each in said)
        worker = fresh_gateway.ready_body()["worker"]
        assert worker["epoch"] > before
        assert f"epoch {before} was replaced by that of epoch {worker['epoch']}" in words
        assert (worker["last_death"], worker["deaths"], worker["rung"]) == ("planned", 0, 0)
    assert ordered(fresh_gateway, "journal").count("was replaced on purpose") == 2


def test_a_gateway_that_is_stopped_finishes_what_runs_and_leaves_nothing_behind(fresh_gateway, undisturbed):
    said, words = asyncio.run(with_an_order(fresh_gateway, "stop"))
    assert [each.text for each in said] == undisturbed
    assert all(each.done for each in said)
    assert "is gone" in words
    assert fresh_gateway.processes() == []
