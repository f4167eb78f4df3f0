"""A request that kills whatever runs it: two deaths at most, then it is refused, and nobody else is."""

import asyncio

import pytest

from tests.chaos.faults import Plan
from tests.chaos.house import House, Said, until
from worker import restart

pytestmark = pytest.mark.timeout(300)

POISON = "kill!"
WAYS = (
    ("abort", "launch"),
    ("raise", "prefill"),
    ("exit", "read"),
    ("wedge", "launch"),
    ("fault", "prefill"),
)
INNOCENTS = ("one", "two", "three")


async def retried(house: House, times: int) -> list[Said]:
    """Send the poison again and again, as a client does that doesn't give up."""
    said = []
    for _ in range(times):
        said.append(await house.ask(POISON, 6))
        if "Retry-After" in said[-1].headers:
            await asyncio.sleep(0.05)
    return said


async def test_requests_that_kill_their_worker_are_refused_after_two_deaths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restart, "backoff_s", lambda *_: 0.0)
    await asyncio.gather(*(poisoned(deed, call) for deed, call in WAYS))


async def poisoned(deed: str, call: str) -> None:
    """Kill by this deed in this call of the engine; restart the proxy; find an antidote."""
    plan = Plan(poison={"!": deed}, poison_in=call, step_ms=10.0)
    # Only a wedge is to be found out by silence: another worker that is slow must not be taken for one.
    floor_s = 2.0 if deed == "wedge" else 10.0
    async with House(plan, slots=4, worker={"hang_floor_s": floor_s}) as house:
        antidote = house.home / "antidote"
        house.take_plan(Plan(**{**vars(plan), "antidote": str(antidote)}))
        async with house.supervisor():
            async with house.proxy() as proxy:
                await until(lambda: house.is_ready)
                heard = asyncio.Event()
                innocents = [asyncio.create_task(house.gets(prompt, 30, heard=heard)) for prompt in INNOCENTS]
                await heard.wait()
                said = await retried(house, 10)
                await asyncio.gather(*innocents)
                assert [each for each in said if each.whole] == []
                assert [each.status for each in said[2:]] == [422] * 8
                assert said[-1].error["code"] == "request_quarantined"
                assert said[-1].headers["x-should-retry"] == "false"
                assert proxy.link.state.deaths <= 2
                assert len(proxy.quarantine.entries()) == 1
                await house.empty()
            async with house.proxy() as proxy:
                await until(lambda: house.is_ready)
                assert (await house.ask(POISON, 6)).status == 422
                assert proxy.link.state.deaths == 0
                antidote.touch()
                assert (await house.ask(POISON, 6)).status == 422
                await house.admin("POST", "/admin/quarantine/clear", {"fingerprints": None})
                await house.gets(POISON, 6)
                await house.empty()
        assert len(house.lives()) <= 3
