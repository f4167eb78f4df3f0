"""What the proxy alone adds to a token, and what it costs to carry one: the `proxy` scenario.

A token can't come sooner than sockets, interpreter and client allow. So the bare server, which does nothing
but send the same bytes, is measured in the same run, and what lies between the two is the proxy's own part.
"""

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from ops.load.client import Client
from ops.load.plan import Figures, Plan, Scenario, rows_table, run, shown, shown_ms
from ops.load.processes import FalseWorkerOptions, LoneProxy, bare_server, cpu_s, lone_proxy, text_token
from ops.load.records import Ask, Record, outcomes
from ops.load.statistics import median, ratio, summary

_SECONDS: Final = 10.0
_REPEATS: Final = 2
_STREAMS: Final = 64
_STEP_MS: Final = 20.0
_FLAT_OUT_TOKENS: Final = 1500
_WARM_TOKENS: Final = 20
_CONTEXT_LEFT: Final = 256  # for the prompt
_PATIENCE_S: Final = 120.0
_GROUPS: Final = 8
# What is compared, of each arm's figures.
_PARTS: Final = ("p50_s", "p99_s", "cpu_s_per_token")
_WHOSE: Final = ("server", "client")


@dataclass(frozen=True, slots=True)
class Arm:
    """Streams that have a token every `step_ms` (0: flat out), `groups` of them one after the other."""

    name: str
    step_ms: float
    groups: int = 1
    bare: bool = False

    def served(self, folder: Path, home: Path) -> AbstractContextManager[LoneProxy]:
        if self.bare:
            return bare_server(folder, home, self.step_ms, self.groups)
        options = FalseWorkerOptions(_STREAMS, self.step_ms, text_token(folder), groups=self.groups)
        return lone_proxy(folder, home, options)


# Lockstep: all tokens of a step at once, so that most of them wait for others to be sent. Spread: a few at a
# time, as from several workers, which shows the path itself.
_ARMS: Final = (
    Arm("lockstep", _STEP_MS),
    Arm("lockstep, bare", _STEP_MS, bare=True),
    Arm("spread", _STEP_MS, _GROUPS),
    Arm("spread, bare", _STEP_MS, _GROUPS, bare=True),
    Arm("flat out", 0.0),
)
_BARE: Final = ", bare"


def measure(plan: Plan) -> Figures:
    seconds, repeats = plan.seconds or _SECONDS, plan.repeats or _REPEATS
    arms: dict[str, list[dict[str, Any]]] = {arm.name: [] for arm in _ARMS}
    for number in range(1, repeats + 1):
        for arm in _ARMS:
            title = f"proxy {number} of {repeats}, {arm.name}"
            home = plan.scratch / f"proxy-{arm.name.replace(' ', '-').replace(',', '')}-{number}"
            wanted = round(1000 * seconds / arm.step_ms) if arm.step_ms else _FLAT_OUT_TOKENS
            tokens = min(wanted, plan.folder.context_tokens - _CONTEXT_LEFT)
            served = arm.served(plan.folder.path, home)
            with plan.progress.around(f"{title}: the server", served) as server:
                records, used = run(_stream(plan, server, title, tokens))
            # The server has ended, so its log is whole.
            arms[arm.name].append(_arm_figures(records, used, server.sent_log))
    own = {
        name: own_part(repeated, arms[name + _BARE])
        for name, repeated in arms.items()
        if name + _BARE in arms
    }
    return {"streams": _STREAMS, "step_ms": _STEP_MS, "groups": _GROUPS, "arms": arms, "own_part": own}


def own_part(
    served: Sequence[Mapping[str, Any]], bare: Sequence[Mapping[str, Any]]
) -> dict[str, float | None]:
    """Return what the proxy adds to the bare server's times and cost: differences of medians over repeats."""
    return {part: _difference(_middle(served, part), _middle(bare, part)) for part in _PARTS}


def _difference(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above - below


def _middle(repeats: Sequence[Mapping[str, Any]], part: str) -> float | None:
    """Return the median over the repeats that have a value."""
    known = [value for each in repeats if (value := each[part]) is not None]
    return median(known) if known else None


@dataclass(frozen=True, slots=True)
class Used:
    """Processor seconds of the server, and of the one process that all clients live in."""

    server_s: float
    client_s: float


async def _stream(plan: Plan, server: LoneProxy, title: str, tokens: int) -> tuple[list[Record], Used]:
    """Run all streams at once, after a short round that warms up; return what came, and what it took."""
    async with Client(server.port, plan.folder.name, label="token", timeout_s=_PATIENCE_S) as client:
        with plan.progress.phase(title, told=client.told):
            await _all_at_once(client, _WARM_TOKENS)
            client.take()
            before = Used(cpu_s(server.process), time.process_time())
            await _all_at_once(client, tokens)
            after = Used(cpu_s(server.process), time.process_time())
            return client.take(), Used(after.server_s - before.server_s, after.client_s - before.client_s)


async def _all_at_once(client: Client, tokens: int) -> None:
    asks = (Ask(f"Say it again, number {number}.", tokens) for number in range(_STREAMS))
    await asyncio.gather(*map(client.ask, asks))


def _arm_figures(records: list[Record], used: Used, sent_log: Path) -> dict[str, Any]:
    with sent_log.open() as lines:
        sent = sent_times(lines)
    added, unjoined = added_s(records, sent)
    tokens = sum(record.tokens for record in records)
    began = min(record.sent_at for record in records)
    wall_s = max(record.ended_at for record in records) - began
    parts = summary(added)
    return {
        "tokens": tokens,
        "outcomes": outcomes(records),
        "added_s": parts,
        "p50_s": parts.get("p50"),
        "p99_s": parts.get("p99"),
        "unjoined": unjoined,
        "server_cpu_s": used.server_s,
        "cpu_s_per_token": ratio(used.server_s, tokens),
        "server_cpu_share": used.server_s / wall_s,
        "client_cpu_share": used.client_s / wall_s,
        "tokens_per_s": tokens / wall_s,
    }


def sent_times(lines: Iterable[str]) -> dict[str, list[float]]:
    """Return when each request's tokens were sent, by x-request-id, from a server's log.

    A sequence is named after the request; one that ran in several attempts is put together.
    """
    times: dict[str, list[float]] = {}
    for line in lines:
        entry = json.loads(line)
        own = times.setdefault(entry["sequence"].split("/", 1)[0], [])
        own[entry["first_index"] :] = entry["sent_at"]
    return times


def added_s(records: Sequence[Record], sent: Mapping[str, list[float]]) -> tuple[list[float], int]:
    """Return what lay between each token's sending and its coming, and how many requests couldn't be joined.

    Only a request whose every token became one piece of text can be: then the one's nth is the other's.
    Tokens count from the moment at which every joined stream had one: before, requests were still arriving.
    """
    joined = [
        (record.text_times, sent[record.name])
        for record in records
        if record.text_times and len(record.text_times) == len(sent.get(record.name, ()))
    ]
    since = max((times[0] for times, _ in joined), default=0.0)
    added = [
        came - went
        for came_at, went_at in joined
        for came, went in zip(came_at, went_at, strict=True)
        if went >= since
    ]
    return added, len(records) - len(joined)


def table(figures: Figures) -> Table:
    rows = [_row(name, repeats) for name, repeats in figures["arms"].items()]
    rows += [
        (f"{name}, own part", "", *_part_cells(own), *[""] * 4) for name, own in figures["own_part"].items()
    ]
    headings = (
        "arm",
        "tokens",
        "added p50",
        "p99",
        "CPU a token",
        "server CPU",
        "client CPU",
        "tokens/s",
        "unjoined",
    )
    title = f"proxy: {figures['streams']} streams, a token every {figures['step_ms']:.0f} ms or flat out"
    result = rows_table(title, headings, rows)
    result.caption = (
        "added: from when a step's tokens are there to the client's reading, its own work among it; "
        f"lockstep: all streams at once; spread: in {figures['groups']} groups one after the other; "
        "bare: a server that only sends; own part: how much more the proxy has, in medians; "
        "flat out, many tokens share one write"
    )
    return result


def _row(name: str, repeats: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return (
        name,
        shown(_middle(repeats, "tokens")),
        *_part_cells({part: _middle(repeats, part) for part in _PARTS}),
        *(f"{100 * median([each[f'{whose}_cpu_share'] for each in repeats]):.0f} %" for whose in _WHOSE),
        shown(_middle(repeats, "tokens_per_s")),
        str(sum(each["unjoined"] for each in repeats)),
    )


def _part_cells(parts: Mapping[str, float | None]) -> tuple[str, str, str]:
    cpu_s = parts["cpu_s_per_token"]
    return (
        shown_ms(parts["p50_s"], 2),
        shown_ms(parts["p99_s"], 2),
        shown(None if cpu_s is None else 1e6 * cpu_s, 0, " µs"),
    )


SCENARIO: Final = Scenario("proxy", measure, table)
