"""Does a heavy client slow a light one? One key beside another with 32 streams, and two equal keys."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from ops.figures.processes import Gateway, gateway
from ops.load.arrivals import Lengths, Mix
from ops.load.client import Client
from ops.load.loops import closed_loop, settled
from ops.load.plan import Figures, Plan, Scenario, rows_table, run, shown, shown_ms
from ops.load.records import Ask, Record, first_token_waits_s, outcomes, tokens_between, whole_times_s
from ops.load.statistics import jain, median, percentile_ratio, summary
from proxy.keys import KeyFile

_SECONDS: Final = 45.0
_REPEATS: Final = 2
_SETTLE_S: Final = 4.0
_ATTEMPTS_MAX: Final = 1000
_PATIENCE_S: Final = 60.0
_LIGHT: Final = Mix(Lengths(16, 0.4, 6, 30), Lengths(16, 0.0, 16, 16))
_HEAVY: Final = Mix(Lengths(40, 0.5, 10, 120), Lengths(64, 0.3, 32, 128))
_KEYS: Final = ("light", "heavy", "left", "right")
# Arm → streams of each key; the last one's end first.
_ARMS: Final[Mapping[str, Mapping[str, int]]] = {
    "solo": {"light": 1},
    "beside heavy": {"heavy": 32, "light": 1},
    "equal": {"left": 12, "right": 12},
}


def measure(plan: Plan) -> Figures:
    home = plan.scratch / "fairness"
    keys = _write_keys(home)
    with plan.progress.around("fairness: the gateway", gateway(plan.folder.path, home)) as ours:
        return run(_measure(plan, ours, keys))


def _write_keys(home: Path) -> dict[str, str]:
    """Let the gateway know the keys before it starts; return their texts."""
    home.mkdir(parents=True)
    file = KeyFile(home / "keys.json")
    return {name: file.add(name).text for name in _KEYS}


@dataclass(frozen=True, slots=True)
class _Arm:
    """One run of an arm: each key's records, and since when all streams were busy."""

    records: Mapping[str, list[Record]]
    began: float

    def settled(self, key: str) -> list[Record]:
        """Return a key's records of what was sent under the arm's full load."""
        return [record for record in self.records[key] if record.scheduled_at >= self.began]


async def _measure(plan: Plan, ours: Gateway, keys: Mapping[str, str]) -> Figures:
    seconds, repeats = plan.seconds or _SECONDS, plan.repeats or _REPEATS
    load = _Load(plan, ours.port, keys, seconds)
    arms: dict[str, list[_Arm]] = {name: [] for name in _ARMS}
    for number in range(1, repeats + 1):
        for name in _ARMS:
            arms[name].append(await load.run(name, number))
    return {"seconds": seconds, **_figures(arms, seconds, plan.seed)}


class _Load:
    """Runs arms against one gateway."""

    def __init__(self, plan: Plan, port: int, keys: Mapping[str, str], seconds: float) -> None:
        self._plan = plan
        self._port = port
        self._keys = keys
        self._seconds = seconds

    async def run(self, name: str, number: int) -> _Arm:
        """Keep each key's streams busy for the arm's time."""
        clients: dict[str, Client] = {}

        def told() -> str:
            return "; ".join(f"{key}: {client.told()}" for key, client in clients.items())

        with self._plan.progress.phase(f"fairness {number}, {name}", _SETTLE_S + self._seconds, told):
            async with contextlib.AsyncExitStack() as stack:
                for key, streams in _ARMS[name].items():
                    clients[key] = await self._press(stack, name, number, key, streams)
                await settled(_SETTLE_S, *((client, 1) for client in clients.values()))
                began = time.monotonic()
                await asyncio.sleep(self._seconds)
        return _Arm({key: client.take() for key, client in clients.items()}, began)

    async def _press(
        self, stack: contextlib.AsyncExitStack, name: str, number: int, /, key: str, streams: int
    ) -> Client:
        label = f"{name.replace(' ', '-')}{number}-{key}"
        client = Client(self._port, self._plan.folder.name, label=label, attempts_max=_ATTEMPTS_MAX)
        await stack.enter_async_context(client)
        light = key == "light"
        draw = _draw(_LIGHT if light else _HEAVY, self._keys[key], self._plan.seed, f"{key} {number}", name)
        # The light one's last request may end while the heavy ones still run: cuts meet the longest.
        patience_s = _PATIENCE_S if light else 0.0
        await stack.enter_async_context(closed_loop(client, draw, streams, patience_s))
        return client


def _draw(mix: Mix, key: str, seed: int, *purpose: str | int) -> Callable[[], Ask]:
    draw = mix.stream(seed, *purpose)
    return lambda: Ask(*draw(), key=key)


def _figures(arms: Mapping[str, list[_Arm]], seconds: float, seed: int) -> dict[str, Any]:
    light = {
        name: [record for arm in arms[name] for record in arm.settled("light")]
        for name in ("solo", "beside heavy")
    }
    shares = [
        {
            key: tokens_between(records, arm.began, arm.began + seconds, completed=False)
            for key, records in arm.records.items()
        }
        for arm in arms["equal"]
    ]
    waits = {name: first_token_waits_s(records) for name, records in light.items()}
    whole = {name: whole_times_s(records) for name, records in light.items()}
    ratios = {
        what: percentile_ratio(values["beside heavy"], values["solo"], 95, seed=seed)
        for what, values in (("first_token", waits), ("whole", whole))
    }
    return {
        "first_token_s": {name: summary(values) for name, values in waits.items()},
        "whole_s": {name: summary(values) for name, values in whole.items()},
        "p95_ratio": {what: asdict(found) if found else None for what, found in ratios.items()},
        "tokens": shares,
        "jain": [jain(list(share.values())) for share in shares],
        "outcomes": {
            f"{name}, {key}": outcomes([record for arm in repeats for record in arm.records[key]])
            for name, repeats in arms.items()
            for key in _ARMS[name]
        },
        "samples_s": {"first_token": waits, "whole": whole},
    }


def table(figures: Figures) -> Table:
    rows = []
    for name in ("solo", "beside heavy"):
        first, whole = figures["first_token_s"][name], figures["whole_s"][name]
        cells = (first.get("p50"), first.get("p95"), whole.get("p50"), whole.get("p95"))
        rows.append((name, shown(first.get("count")), *map(shown_ms, cells)))
    result = rows_table(
        "fairness: a key with one stream, alone and beside one with 32",
        ("light key", "requests", "TTFT p50", "TTFT p95", "whole p50", "whole p95"),
        rows,
    )
    ratios = {
        what: "-" if found is None else f"{found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f})"
        for what, found in figures["p95_ratio"].items()
    }
    result.caption = (
        f"p95 beside heavy/solo: TTFT {ratios['first_token']}, whole {ratios['whole']}; two equal keys, "
        f"Jain's index of their tokens: {median(figures['jain']):.3f}"
    )
    return result


SCENARIO: Final = Scenario("fairness", measure, table)
