"""What it costs to be watched: tokens a second with the status page open and /metrics scraped, over without.

`watched` has a worker without a model, flat out, so that the proxy's one core is the limit; `watched-engine`
has the real one. Arms are measured in turn within one gateway's life. One of them is nobody again: what that
one differs by is the machine's.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families
from rich.table import Table

from ops.figures.processes import gateway
from ops.load.plan import Figures, Plan, Scenario, rows_table, run, shown
from ops.load.processes import FalseWorkerOptions, cpu_s, lone_proxy, text_token
from ops.load.statistics import median

_SECONDS: Final = 10.0
_REPEATS: Final = 5
_STREAMS: Final = 16
_TOKENS: Final = 1500
_ENGINE_TOKENS: Final = 400
_CONTEXT_LEFT: Final = 256  # for the prompt
_SETTLE_S: Final = 2.0
_POLL_S: Final = 1.0
_WARM_TOKENS: Final = 8
_WARM_S_MAX: Final = 60.0
_AFTER_FAILURE_S: Final = 0.2
_POLLED: Final = ("/status", "/metrics")
_ARMS: Final = ("without", "with", "without again")


@dataclass(frozen=True, slots=True)
class _Watched:
    """A gateway under load: its port and the proxy's process; answers have up to so many tokens."""

    port: int
    process: psutil.Process
    tokens: int


def _measure_false(plan: Plan) -> Figures:
    options = FalseWorkerOptions(_STREAMS, token=text_token(plan.folder.path))
    lone = lone_proxy(plan.folder.path, plan.scratch / "watched", options)
    with plan.progress.around("watched: the proxy", lone) as proxy:
        tokens = min(_TOKENS, plan.folder.context_tokens - _CONTEXT_LEFT)
        return run(_measure(plan, "watched", _Watched(proxy.port, proxy.process, tokens)))


def _measure_engine(plan: Plan) -> Figures:
    ours = gateway(plan.folder.path, plan.scratch / "watched-engine", FOREBAY_WORKER__SLOTS=str(_STREAMS))
    with plan.progress.around("watched-engine: the gateway", ours) as running:
        tokens = min(_ENGINE_TOKENS, plan.folder.context_tokens - _CONTEXT_LEFT)
        watched = _Watched(running.port, running.child(" proxy "), tokens)
        return run(_measure(plan, "watched-engine", watched))


async def _measure(plan: Plan, name: str, watched: _Watched) -> Figures:
    seconds, repeats = plan.seconds or _SECONDS, plan.repeats or _REPEATS
    arms: dict[str, list[dict[str, float]]] = {arm: [] for arm in _ARMS}
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{watched.port}", connector=connector) as session,
        _streams(session, plan.folder.name, watched.tokens),
    ):
        with plan.progress.phase(f"{name}: until all streams have begun"):
            await _warm(session)
        for number in range(1, repeats + 1):
            # Who goes first changes, so that what drifts isn't always the same one's.
            for arm in (*_ARMS[number % 3 :], *_ARMS[: number % 3]):
                title = f"{name} {number} of {repeats}, {arm} watchers"
                with plan.progress.phase(title, _SETTLE_S + seconds):
                    arms[arm].append(await _arm(session, watched, seconds, watch=arm == "with"))
    return {
        "streams": _STREAMS,
        "seconds": seconds,
        "arms": arms,
        "ratios": ratios(arms),
        "null_ratios": ratios(arms, "without again"),
    }


def ratios(arms: dict[str, list[dict[str, float]]], arm: str = "with") -> list[float]:
    """Return tokens a second of an arm over those without watchers, of each repeat that had any of these."""
    pairs = zip(arms[arm], arms["without"], strict=True)
    return [
        over["tokens_per_s"] / under["tokens_per_s"] for over, under in pairs if under["tokens_per_s"] > 0
    ]


async def _arm(
    session: aiohttp.ClientSession, watched: _Watched, seconds: float, *, watch: bool
) -> dict[str, float]:
    """Measure what is made in so many seconds, by the proxy's own count: both arms have two scrapes."""
    polls: list[int] = []
    async with _tasks(*(_poll(session, path, polls) for path in _POLLED if watch)):
        await asyncio.sleep(_SETTLE_S)
        tokens, began = await _tokens(session), time.monotonic()
        polled, cpu, own = len(polls), cpu_s(watched.process), time.process_time()
        await asyncio.sleep(seconds)
        tokens = await _tokens(session) - tokens
        took_s = time.monotonic() - began
        polled, cpu, own = len(polls) - polled, cpu_s(watched.process) - cpu, time.process_time() - own
    return {
        "tokens_per_s": tokens / took_s,
        "cpu_share": cpu / took_s,
        "client_cpu_share": own / took_s,
        "polls": polled,
    }


async def _warm(session: aiohttp.ClientSession) -> None:
    """Wait until each stream has had some tokens, or for a minute: at first there is only prefill."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_WARM_S_MAX):
            while await _tokens(session) < _STREAMS * _WARM_TOKENS:  # noqa: ASYNC110 (nobody tells it)
                await asyncio.sleep(_POLL_S)


@contextlib.asynccontextmanager
async def _streams(session: aiohttp.ClientSession, model: str, tokens: int) -> AsyncIterator[None]:
    async with _tasks(*(_stream(session, model, tokens, number) for number in range(_STREAMS))):
        yield


async def _stream(session: aiohttp.ClientSession, model: str, tokens: int, number: int) -> None:
    """Ask for one answer after another, and read bytes only: the cores are for others.

    Streams ask for different lengths: they are not to end, and be prefilled again, all at once.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"Count to {100 + number}, and on."}],
        "max_tokens": tokens * (_STREAMS + number) // (2 * _STREAMS),
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    while True:
        async with session.post("/v1/chat/completions", json=body) as response:
            async for _ in response.content.iter_any():
                pass
        if response.status != 200:
            # One that is refused at once must not be asked for without end.
            await asyncio.sleep(_AFTER_FAILURE_S)


async def _poll(session: aiohttp.ClientSession, path: str, polls: list[int]) -> None:
    while True:
        began = time.monotonic()
        async with session.get(path) as response:
            response.raise_for_status()
            polls.append(len(await response.read()))
        await asyncio.sleep(max(0.0, began + _POLL_S - time.monotonic()))


async def _tokens(session: aiohttp.ClientSession) -> float:
    async with session.get("/metrics") as response:
        response.raise_for_status()
        return tokens_of(await response.text())


def tokens_of(text: str) -> float:
    """Return how many tokens all answers were given, as a scrape tells."""
    families = text_string_to_metric_families(text)
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "forebay_tokens_total"
    )


@contextlib.asynccontextmanager
async def _tasks(*running: Any) -> AsyncIterator[None]:
    """Run these beside the block; whatever fails among them fails it."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in running]
        yield
        for task in tasks:
            task.cancel()


def table(figures: Figures) -> Table:
    rows = [_row(name, repeats) for name, repeats in figures["arms"].items()]
    rows.append(("with over without", *_parts(figures["ratios"], 3), *["-"] * 3))
    rows.append(("again over without", *_parts(figures["null_ratios"], 3), *["-"] * 3))
    headings = ("watchers", "tokens/s", "least", "most", "proxy CPU", "client CPU", "polls")
    result = rows_table(f"{figures['streams']} streams, watched and not", headings, rows)
    result.caption = f"watchers: {' and '.join(_POLLED)}, each once a second"
    return result


def _row(name: str, repeats: Sequence[dict[str, float]]) -> tuple[str, ...]:
    return (
        name,
        *_parts([each["tokens_per_s"] for each in repeats], 0),
        *(
            f"{100 * median([each[whose] for each in repeats]):.0f} %"
            for whose in ("cpu_share", "client_cpu_share")
        ),
        shown(sum(each["polls"] for each in repeats)),
    )


def _parts(values: Sequence[float], digits: int) -> tuple[str, ...]:
    """Return the median, the least and the largest value as cells."""
    found = (median(values), min(values), max(values)) if values else (None, None, None)
    return tuple(shown(value, digits) for value in found)


FALSE: Final = Scenario("watched", _measure_false, table)
ENGINE: Final = Scenario("watched-engine", _measure_engine, table)
