"""Measure and print: throughput, time to first token, the proxy's share, and the way back from a death."""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from ops import demo
from ops.figures import client
from ops.figures.processes import Gateway, InProcess, gateway, in_process, machine, mlx_lm_server
from shared.config import Settings
from shared.model_folder import ModelFolder

_STREAMS: Final = (1, 4, 8, 16)
_TOKENS: Final = 96
_FIRST_TOKENS_REPEATED: Final = 15
_DEATHS: Final = 3
_TOPICS: Final = (
    "the sea", "a mountain", "bread", "the moon", "a violin", "winter", "horses", "an old clock",
    "a bridge", "honey", "a desert", "trains", "a lighthouse", "paper", "owls", "the river",
)  # fmt: skip

_screen = Console(stderr=True, highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.figures", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="interleaved runs of each kind")
    parser.add_argument("--json", type=Path, help="write all measured values here")
    arguments = parser.parse_args()
    folder = demo.bring(Settings.load().home_folder)
    with tempfile.TemporaryDirectory(prefix="fb-") as scratch:
        figures = asyncio.run(_measure(folder, Path(scratch), arguments.repeats))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2))
    _show(figures)
    return 0


async def _measure(folder: ModelFolder, scratch: Path, repeats: int) -> dict[str, Any]:
    _say("starting the gateway, mlx-lm in process, and mlx_lm.server")
    with (
        gateway(folder.path, scratch / "home") as ours,
        in_process(folder.path) as loop,
        mlx_lm_server(folder.path, scratch / "server.log") as server_port,
    ):
        throughput = {
            streams: await _throughput(ours, loop, (server_port, str(folder.path)), streams, repeats)
            for streams in _STREAMS
        }
        first = await _first_tokens(ours, loop)
    with gateway(folder.path, scratch / "home2") as fresh:
        deaths = [await _death(fresh) for _ in range(_DEATHS)]
    return {"machine": machine(), "throughput": throughput, "first_token": first, "deaths": deaths}


async def _throughput(
    ours: Gateway, loop: InProcess, server: tuple[int, str], streams: int, repeats: int
) -> dict[str, list[float]]:
    """Run the three in turn, again and again: what else the machine does meets all of them."""
    prompts = [f"Tell me a long story about {topic}." for topic in _TOPICS[:streams]]
    values: dict[str, list[float]] = {"gateway": [], "in_process": [], "server": [], "proxy_cpu": []}
    for number in range(repeats + 1):
        _say(f"{streams} streams: run {number} of {repeats}" + (" (warm-up)" if number == 0 else ""))
        proxy = ours.child("cli proxy")
        cpu, began = _cpu_s(proxy), time.perf_counter()
        gateway_tps = await client.tokens_per_second(ours.port, demo.NAME, prompts, _TOKENS)
        share = (_cpu_s(proxy) - cpu) / (time.perf_counter() - began)
        batch = await asyncio.to_thread(loop.ask, prompts=prompts, max_tokens=_TOKENS)
        server_tps = await client.tokens_per_second(server[0], server[1], prompts, _TOKENS)
        if number:
            values["gateway"].append(gateway_tps)
            values["in_process"].append(batch["tokens"] / batch["seconds"])
            values["server"].append(server_tps)
            values["proxy_cpu"].append(share)
    return values


async def _first_tokens(ours: Gateway, loop: InProcess) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {"gateway": [], "in_process": []}
    for number in range(_FIRST_TOKENS_REPEATED + 1):
        _say(f"time to first token: {number} of {_FIRST_TOKENS_REPEATED}")
        prompt = f"Tell me a long story about {_TOPICS[number % len(_TOPICS)]}."
        ours_s = await client.first_token_s(ours.port, demo.NAME, prompt)
        theirs_s = (await asyncio.to_thread(loop.ask, first=prompt))["seconds"]
        if number:
            values["gateway"].append(ours_s)
            values["in_process"].append(theirs_s)
    return values


async def _death(ours: Gateway) -> dict[str, float]:
    """Kill the worker under a live stream; split the pause by what the proxy logged meanwhile."""
    killed_at = 0.0

    def kill(number: int) -> None:
        nonlocal killed_at
        if number == 20:
            ours.child("worker.process").kill()
            killed_at = time.time()

    _say("killing the worker under a live stream")
    known = len(ours.log_events())
    times = await client.token_times(ours.port, demo.NAME, "Tell me a long story.", 60, kill)
    events = ours.log_events()[known:]
    exited, ready = (_logged_at(events, name) for name in ("worker exited", "worker ready"))
    next_token = next(moment for moment in times[20:] if moment > ready)
    return {
        "detect": exited - killed_at,
        "load": ready - exited,
        "prefill": next_token - ready,
        "all": next_token - killed_at,
    }


def _logged_at(events: list[dict[str, Any]], name: str) -> float:
    (moment,) = [event["timestamp"] for event in events if event["event"] == name]
    return datetime.fromisoformat(moment).timestamp()


def _cpu_s(process: Any) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _say(words: str) -> None:
    _screen.print(f"[dim]{words}[/dim]")


# --- printing ---------------------------------------------------------------------------------------------


def _show(figures: dict[str, Any]) -> None:
    screen = Console()
    screen.print(f"measured on {figures['machine']} with the demo model in float32; nothing here is Metal")
    screen.print(_throughput_table(figures["throughput"]))
    first = figures["first_token"]
    added = statistics.median(a - b for a, b in zip(first["gateway"], first["in_process"], strict=True))
    screen.print(
        f"time to first token: gateway {_ms(first['gateway'])}, in process {_ms(first['in_process'])}; "
        f"added {1000 * added:.0f} ms (median of {len(first['gateway'])} pairs)"
    )
    screen.print(_death_table(figures["deaths"]))


def _throughput_table(throughput: dict[int, dict[str, list[float]]]) -> Table:
    table = Table(title="tokens/s of all streams: median (range)", box=box.SIMPLE)
    for heading in ("streams", "gateway", "mlx-lm loop", "its server", "/loop", "/server", "proxy CPU"):
        table.add_column(heading, justify="right")
    for streams, values in throughput.items():
        table.add_row(
            str(streams),
            *(_spread(values[kind]) for kind in ("gateway", "in_process", "server")),
            f"{_ratio(values['gateway'], values['in_process']):.2f}",
            f"{_ratio(values['gateway'], values['server']):.2f}",
            f"{100 * statistics.median(values['proxy_cpu']):.1f} %",
        )
    return table


def _death_table(deaths: Sequence[dict[str, float]]) -> Table:
    table = Table(title="seconds from SIGKILL to the stream's next token", box=box.SIMPLE)
    for heading in ("detect", "load", "prefill", "all"):
        table.add_column(heading, justify="right")
    for death in deaths:
        table.add_row(*(f"{death[part]:.2f}" for part in ("detect", "load", "prefill", "all")))
    return table


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """Return the median of the runs' own ratios: each pair ran one after the other."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})"


def _ms(values: list[float]) -> str:
    return f"{1000 * statistics.median(values):.0f} ms"


if __name__ == "__main__":
    sys.exit(main())
