"""One run of `forebay bench` from the first request to the last word: calibrate, measure, write, show."""

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from ops.bench import result as results
from ops.bench.bar import Bar
from ops.bench.doing import Doer, Measured, until_stopped
from ops.bench.page import page
from ops.bench.peer import peer
from ops.bench.plan import Plan, Work
from ops.bench.pressing import closed
from ops.bench.prompts import Fit, Prompts
from ops.bench.schedule import Step, requests, schedule
from ops.bench.table import show
from ops.bench.target import Target
from ops.command import OrderFailed
from ops.load.client import Client
from ops.load.plan import run
from ops.load.records import Ask, Record
from ops.screen import Screen
from shared.errors import SettingsError
from shared.model_folder import ModelFolder

SERVER: Final = "server"

_WIDTH: Final = 80  # of tables in a file or a pipe
_CALIBRATION_TOKENS: Final = 1
_SALT_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Order:
    """What somebody asked for. `kill` ends the worker, `peer_folder` is the model that a peer serves too."""

    plan: Plan
    target: Target
    out: Path | None = None
    html: Path | None = None
    as_json: bool = False
    peer_folder: ModelFolder | None = None
    peer_log: Path | None = None
    kill: Callable[[], Awaitable[None]] | None = None


def bench(order: Order, screen: Screen) -> int:
    """Measure, write and show; return the exit status: 1 if no request completed."""
    for file in (order.out, order.html):
        results.require_writable(file)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    with _targets(order, screen) as targets:
        prompts, has_lanes = run(_calibrated(order, targets[SERVER]))
        if not prompts.fit.measured:
            screen.say("The server doesn't say how many tokens a prompt has: lengths are guessed from words.")
        skipped = skips(order.plan, has_lanes=has_lanes)
        for work, why in skipped.items():
            screen.say(f"{work}: skipped, {why}.")
        works = [work for work in order.plan.works if work not in skipped]
        steps = schedule(order.plan, list(targets), works)
        measured = run(_measured(order, targets, prompts, steps))
        metadata = results.run_metadata(order.plan, prompts, list(targets.values()), began, skipped)
    with screen.step("Working out intervals"):
        found = results.whole_result(metadata, measured, order.plan.seed)
    _give(order, found)
    return 0 if measured.completed else 1


@contextlib.contextmanager
def _targets(order: Order, screen: Screen) -> Any:
    """Yield the server, and the peer beside it if one is wanted."""
    if order.peer_folder is None:
        yield {SERVER: order.target}
        return
    assert order.peer_log is not None, "a peer has a log"
    with contextlib.ExitStack() as stack:
        with screen.step("mlx_lm.server starts"):
            other = stack.enter_context(peer(order.peer_folder, order.peer_log))
        yield {SERVER: order.target, other.name: other}


def skips(plan: Plan, *, has_lanes: bool) -> Mapping[Work, str]:
    """Return which works are left out, and why."""
    if "lanes" in plan.works and not has_lanes:
        return {"lanes": "this server names no lanes"}
    return {}


async def _calibrated(order: Order, target: Target) -> tuple[Prompts, bool]:
    """Ask twice for a token: how the server counts prompts, and whether it names lanes.

    Raises SettingsError if it takes no such request, OrderFailed if it can't answer it now.
    """
    salt = secrets.token_hex(_SALT_BYTES)
    unfitted = Prompts(Fit(0.0, 1.0), order.plan.seed, salt)
    asks = [Ask(text, _CALIBRATION_TOKENS, key=target.key) for text in unfitted.calibration()]
    async with Client(
        target.address.api,
        target.model,
        more=target.more,
        label=f"bench-{salt}-0",
        timeout_s=order.plan.timeout_s,
    ) as client:
        await closed(client, asks, 1)
        records = client.take()
    for record in records:
        _require_completed(record, target)
    fit = Fit.of(tuple(record.prompt_tokens for record in records))
    return Prompts(fit, order.plan.seed, salt, order.plan.shared_prefix_tokens), bool(records[0].lane_served)


def _require_completed(record: Record, target: Target) -> None:
    if record.completed:
        return
    host, what = target.address.host, f"{record.code} (status {record.status})"
    if record.status in (401, 403):
        raise SettingsError(f"{host} wants another key: {what}; --api-key-file FILE")
    if 400 <= record.status < 500 and record.status != 429:
        raise SettingsError(f"{host} doesn't take requests for {target.model}: {what}")
    if not record.status:
        raise OrderFailed(f"nothing answers at {host}: {record.code}")
    raise OrderFailed(f"no request completed: the first one to {host} ended with {what}")


async def _measured(
    order: Order, targets: Mapping[str, Target], prompts: Prompts, steps: Sequence[Step]
) -> Measured:
    measured = Measured()
    with Bar(requests(order.plan, steps)) as bar:
        doer = Doer(order.plan, targets, prompts, bar, order.kill)
        measured.stopped = await until_stopped(doer.do(steps, measured), order.plan.seconds_max)
    return measured


def _give(order: Order, found: Mapping[str, Any]) -> None:
    """Write what is to be written, and print the rest."""
    if order.out is not None:
        results.write(order.out, results.as_json(found))
    if order.html is not None:
        results.write(order.html, page(found))
    if order.as_json:
        print(results.as_json(found), end="")
        return
    console = Console(highlight=False)
    show(found, console if console.is_terminal else Console(highlight=False, width=_WIDTH))
