"""A worker that dies at load: the breaker opens, clients are told, and it mends by itself afterwards."""

import asyncio

import pytest

from tests.chaos.faults import Plan
from tests.chaos.house import House, until
from worker import restart

pytestmark = pytest.mark.timeout(300)

# How loading fails, and how often it is tried before the breaker opens.
WAYS = (("exit", 3), ("abort", 3), ("cannot_load", 1))


async def test_the_breaker_opens_after_so_many_starts_and_closes_when_it_is_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restart, "backoff_s", lambda *_: 0.0)
    await asyncio.gather(*(broken_and_mended(deed, starts) for deed, starts in WAYS))


async def broken_and_mended(deed: str, starts: int) -> None:
    """Break loading by this deed, which is tried so often, and mend it once the breaker has tried again."""
    async with House(worker={"restarts_max": 2, "breaker_open_s": 4.0}) as house:
        broken = house.home / "broken"
        broken.touch()
        house.take_plan(Plan(broken=str(broken), broken_deed=deed))
        async with house.proxy() as proxy, house.supervisor():
            await until(lambda: proxy.link.state.care.breaker == "open")
            assert len(house.pids()) == starts
            said = [await house.ask("one", 4) for _ in range(3)]
            status, health = await house.health()
            assert health["worker"]["breaker"] in ("open", "half_open")
            assert status == 503
            assert {(each.status, each.error["code"]) for each in said} == {(503, "worker_unavailable")}
            assert all(1 <= int(each.headers["Retry-After"]) <= 60 for each in said)
            await until(lambda: len(house.pids()) > starts)
            broken.unlink()
            await until(lambda: house.is_ready)
            await house.gets("one", 4)
            await until(lambda: proxy.link.state.care.breaker == "closed")
            await house.empty()
            assert (await house.health())[0] == 200
