"""What a scrape of /metrics takes, and whether it takes longer with a thousand keys than with a few."""

import asyncio
import itertools
import secrets
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from rich.table import Table

from ops.load.client import Client
from ops.load.plan import Figures, Plan, Scenario, rows_table, run, shown, shown_ms
from ops.load.processes import FalseWorkerOptions, LoneProxy, lone_proxy, text_token
from ops.load.records import Ask, outcomes
from ops.load.statistics import median, summary
from proxy.keys import KEY_FILE_NAME, KeyRecord, secret_digest

_REPEATS: Final = 2
_KEYS: Final = (10, 1000)
_CLASSES: Final = 8
_SCRAPES: Final = 100
_SLOTS: Final = 16
_AT_ONCE: Final = 16
_TOKENS: Final = 4
_LANES: Final = ("interactive", "batch")
_RELOAD_S_MAX: Final = 10.0
_LOOK_S: Final = 0.05
_BETWEEN_S: Final = 0.01
_ID_DIGITS: Final = 8
_UNAUTHORIZED: Final = 401


def measure(plan: Plan) -> Figures:
    repeats = plan.repeats or _REPEATS
    arms: dict[str, list[dict[str, Any]]] = {str(keys): [] for keys in _KEYS}
    for number in range(1, repeats + 1):
        for keys in _KEYS:
            home = plan.scratch / f"scrape-{keys}-{number}"
            options = FalseWorkerOptions(_SLOTS, token=text_token(plan.folder.path))
            title = f"scrape {number} of {repeats}, {keys} keys"
            lone = lone_proxy(plan.folder.path, home, options)
            with plan.progress.around(f"{title}: the proxy", lone) as proxy:
                arms[str(keys)].append(run(_arm(plan, proxy, home, keys, title)))
    return {"classes": _CLASSES, "scrapes": _SCRAPES, "arms": arms}


async def _arm(plan: Plan, proxy: LoneProxy, home: Path, keys: int, title: str) -> dict[str, Any]:
    """Have a request answered for each key in each lane; then scrape again and again."""
    texts = write_keys(home / KEY_FILE_NAME, keys, _CLASSES)
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{proxy.port}") as session,
        Client(proxy.port, plan.folder.name, label="scrape") as client,
    ):
        await _reload(session, proxy)
        with plan.progress.phase(title, told=client.told):
            asks = iter([Ask("Hello.", _TOKENS, lane, text) for text in texts for lane in _LANES])
            await asyncio.gather(*(_ask_all(client, asks) for _ in range(_AT_ONCE)))
            times, body = [], b""
            for _ in range(_SCRAPES):
                began = time.monotonic()
                body = await _scraped(session)
                times.append(time.monotonic() - began)
                await asyncio.sleep(_BETWEEN_S)
        return {
            "keys": keys,
            "outcomes": outcomes(client.records),
            "scrape_s": summary(times),
            "bytes": len(body),
            "series": series(body),
        }


async def _ask_all(client: Client, asks: Iterable[Ask]) -> None:
    """Send what nobody else has sent yet, one after the other."""
    for ask in asks:
        await client.ask(ask)


async def _scraped(session: aiohttp.ClientSession) -> bytes:
    async with session.get("/metrics") as response:
        response.raise_for_status()
        return await response.read()


async def _reload(session: aiohttp.ClientSession, proxy: LoneProxy) -> None:
    """Have the proxy read its keys; TimeoutError if it doesn't."""
    proxy.process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(_RELOAD_S_MAX):
        while True:
            async with session.get("/v1/models") as response:
                if response.status == _UNAUTHORIZED:
                    return
            await asyncio.sleep(_LOOK_S)


def series(body: bytes) -> int:
    """Return how many series a scrape tells of."""
    return sum(len(family.samples) for family in text_string_to_metric_families(body.decode()))


def write_keys(path: Path, keys: int, classes: int) -> list[str]:
    """Write a key file at once, the keys spread evenly over classes; return their texts."""
    made = [_key(number, f"class-{number % classes}") for number in range(keys)]
    records = ",".join(record.model_dump_json(exclude_none=True) for record, _ in made)
    path.touch(mode=0o600)
    path.write_text(f'{{"version": 1, "keys": [{records}]}}')
    return [text for _, text in made]


def _key(number: int, key_class: str) -> tuple[KeyRecord, str]:
    secret, salt, key_id = secrets.token_urlsafe(32), secrets.token_bytes(16), f"{number:0{_ID_DIGITS}d}"
    record = KeyRecord(
        id=key_id,
        name=f"key {number}",
        salt=salt.hex(),
        digest=secret_digest(secret, salt).hex(),
        created=int(time.time()),
        key_class=key_class,
    )
    return record, f"fb-{key_id}-{secret}"


def table(figures: Figures) -> Table:
    rows = [_row(repeats) for repeats in figures["arms"].values()]
    headings = ("keys", "p50", "p95", "largest", "bytes", "series", "requests")
    title = f"scrape: {figures['scrapes']} scrapes, keys in {figures['classes']} classes and 2 lanes"
    return rows_table(title, headings, rows)


def _row(repeats: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    def middle(part: str) -> float | None:
        known = [each["scrape_s"][part] for each in repeats if part in each["scrape_s"]]
        return median(known) if known else None

    counts = [each["outcomes"] for each in repeats]
    words = sorted(set(itertools.chain.from_iterable(counts)))
    return (
        str(repeats[0]["keys"]),
        *(shown_ms(middle(part), 1) for part in ("p50", "p95", "max")),
        shown(median([each["bytes"] for each in repeats])),
        shown(median([each["series"] for each in repeats])),
        ", ".join(f"{sum(count.get(word, 0) for count in counts)} {word}" for word in words),
    )


SCENARIO: Final = Scenario("scrape", measure, table)
