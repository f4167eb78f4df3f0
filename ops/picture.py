"""A gateway's snapshot drawn for a terminal: every second by `forebay top`, once by `forebay status`."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ops.wording import count, printable, size, span
from proxy.status.snapshot import DeathView, LaneView, MemoryView, RowView, Snapshot

_BAR: Final = 40
_NOTHING: Final = "-"
_ROWS_SHOWN: Final = 12
_DEATHS_SHOWN: Final = 4
_QUARANTINED_SHOWN: Final = 4
_SPARKS: Final = "▁▂▃▄▅▆▇█"
_STYLES: Final = {"ready": "green", "loading": "yellow", "restarting": "yellow", "draining": "yellow"}
_CAUSES: Final = {
    "memory": "no memory",
    "crash": "crash",
    "loop_exception": "exception",
    "hang": "hung",
    "killed": "killed from outside",
    "stuck_load": "stuck loading",
    "planned": "on purpose",
    "cannot_load": "can't load",
}
_LANE_STYLES: Final = ("cyan", "magenta", "blue", "yellow")


def picture(shot: Snapshot, speeds: Sequence[float] = ()) -> Group:
    """Return all of it, at most 80 columns wide. `speeds` are tokens a second, the newest at the end."""
    parts: list[RenderableType] = [_heading(shot), Text(), _now(shot, speeds), Text(), _lanes(shot.lanes)]
    if shot.rows:
        parts += [Text(), _rows(shot)]
    parts += [Text(), _memory(shot.memory)]
    if shot.deaths:
        parts += [Text(), _deaths(shot.deaths)]
    if shot.quarantined:
        parts += [Text(), *_quarantine(shot)]
    return Group(*parts)


def state_in_words(shot: Snapshot) -> str:
    """Return one sentence on how it is, and what comes next."""
    gateway, worker = shot.gateway, shot.worker
    words = f"{gateway.status} for {span(gateway.since_s)}"
    if gateway.status == "draining":
        words = f"draining; {count(gateway.live, 'answer')} live"
    if gateway.held:
        words += "; nothing new starts until the worker is replaced"
    if worker.starts_in_s is not None:
        words += f"; the next worker starts in {worker.starts_in_s:.0f} s"
    if worker.breaker != "closed":
        words += f"; breaker {worker.breaker.replace('_', ' ')}"
    if worker.rung:
        words += f"; rung {worker.rung} after deaths for want of memory"
    if shot.suspects:
        words += f"; {count(shot.suspects, 'answer')} to be tried alone"
    return words


def _heading(shot: Snapshot) -> Text:
    style = _STYLES.get(shot.gateway.status, "red")
    text = Text("● ", style=style)
    text.append(printable(shot.gateway.model), style="bold")
    text.append(f"  {state_in_words(shot)}", style=style)
    epoch = "no worker" if shot.worker.epoch is None else f"worker {shot.worker.epoch}"
    return text.append(f"  ({epoch}, up {span(shot.gateway.uptime_s)})", style="dim")


def _now(shot: Snapshot, speeds: Sequence[float]) -> Table:
    speed, worker = shot.speed, shot.worker
    running = sum(lane.running for lane in shot.lanes)
    grid = Table.grid(padding=(0, 3))
    for _ in range(4):
        grid.add_column()
    grid.add_row("tokens/s", "to first token", "rows", "queued", style="dim")
    slots = _NOTHING if worker.slots is None else str(worker.slots)
    groups = f" in {count(worker.groups, 'group')}" if worker.groups else ""
    grid.add_row(
        Text(f"{speed.tokens_per_s:.1f} ", style="bold").append(sparks(speeds), style="cyan"),
        f"p50 {_time(speed.ttft_p50_s)}, p95 {_time(speed.ttft_p95_s)}",
        f"{running} of {slots}{groups}",
        f"{sum(lane.queued for lane in shot.lanes)}, {speed.refused} refused lately",
    )
    return grid


def _lanes(lanes: Sequence[LaneView]) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("lane")
    for name in ("running", "queued", "of", "oldest wait"):
        table.add_column(name, justify="right")
    table.add_column("")
    for rank, lane in enumerate(lanes):
        table.add_row(
            Text(lane.name, style=_LANE_STYLES[rank % len(_LANE_STYLES)]),
            str(lane.running),
            str(lane.queued),
            str(lane.queue_places),
            span(lane.oldest_wait_s) if lane.queued else _NOTHING,
            Text("overloaded", style="red") if lane.overloaded else "",
        )
    return table


def _rows(shot: Snapshot) -> Table:
    """Draw the longest answers, each against what it may grow to."""
    ranks = {lane.name: rank for rank, lane in enumerate(shot.lanes)}
    rows = sorted(shot.rows, key=lambda row: row.tokens_max, reverse=True)
    longest = rows[0].tokens_max
    grid = Table.grid(padding=(0, 1))
    for row in rows[:_ROWS_SHOWN]:
        style = _LANE_STYLES[ranks.get(row.lane, 0) % len(_LANE_STYLES)]
        grid.add_row(
            _row_bar(row, longest, style), Text(f"{row.tokens} of {row.tokens_max} tokens", style="dim")
        )
    if len(rows) > _ROWS_SHOWN:
        grid.add_row(Text(f"and {len(rows) - _ROWS_SHOWN} shorter ones", style="dim"), "")
    return grid


def _row_bar(row: RowView, longest: int, style: str) -> Text:
    done = round(_BAR * row.tokens / longest)
    may = max(done, round(_BAR * row.tokens_max / longest))
    return Text("█" * done, style=style).append("░" * (may - done), style="dim").append(" " * (_BAR - may))


def _memory(memory: MemoryView) -> RenderableType:
    """Draw weights and the budget for KV caches as one bar, and name its parts."""
    if memory.weights_bytes is None or memory.kv_budget_full_bytes is None:
        return Text("memory: no worker tells", style="dim")
    grid = Table.grid(padding=(0, 2))
    parts = [*memory_parts(memory)]
    whole = sum(each for _, each, _ in parts) or 1
    bar = Text()
    for _, part_bytes, style in parts:
        bar.append("█" * round(2 * _BAR * 0.9 * part_bytes / whole), style=style)
    for name, part_bytes, style in parts:
        grid.add_row(Text("█", style=style), name, Text(size(part_bytes), justify="right"))
    if memory.footprint_bytes is not None:
        grid.add_row(
            "", "the worker's process, all told", Text(size(memory.footprint_bytes), justify="right")
        )
    return Group(bar, grid)


def memory_parts(memory: MemoryView) -> Iterator[tuple[str, int, str]]:
    """Yield name, bytes and style of what a worker's memory is meant for; together weights and KV budget."""
    full_bytes = memory.kv_budget_full_bytes or 0
    now_bytes = full_bytes if memory.kv_budget_bytes is None else min(full_bytes, memory.kv_budget_bytes)
    held = min(memory.kv_held_bytes or 0, memory.kv_reserved_bytes)
    kept = memory.prefix_kept_bytes or 0
    yield "weights", memory.weights_bytes or 0, "blue"
    yield "KV caches of what runs", held, "green"
    yield "what these may grow to", max(0, memory.kv_reserved_bytes - held), "yellow"
    yield "kept beginnings of prompts", kept, "magenta"
    yield "free for more", max(0, now_bytes - memory.kv_reserved_bytes - kept), "bright_black"
    if now_bytes < full_bytes:
        yield "given back, for memory is short", full_bytes - now_bytes, "red"


def _deaths(deaths: Sequence[DeathView]) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim", pad_edge=False, title_justify="left")
    table.add_column("worker's ends")
    table.add_column("why")
    table.add_column("rows", justify="right")
    table.add_column("next one after", justify="right")
    for each in list(deaths)[-_DEATHS_SHOWN:][::-1]:
        back = _NOTHING if each.restart_s is None else span(each.restart_s)
        style = "cyan" if each.cause == "planned" else "red"
        when = datetime.fromtimestamp(each.at).astimezone().strftime("%m-%d %H:%M:%S")
        table.add_row(when, Text(_CAUSES.get(each.cause, each.cause), style=style), str(each.rows), back)
    return table


def _quarantine(shot: Snapshot) -> Iterator[Text]:
    yield Text(f"{count(shot.quarantined, 'request')} quarantined", style="red")
    for each in shot.quarantine[-_QUARANTINED_SHOWN:][::-1]:
        left_s = max(0.0, each.until - shot.time)
        yield Text(f"  {each.fingerprint}  {_CAUSES.get(each.cause, each.cause)}, for {span(left_s)} more")


def sparks(values: Sequence[float]) -> str:
    """Return values as a row of small bars, the largest of them the highest."""
    top = max(values, default=0.0)
    if top <= 0:
        return _SPARKS[0] * len(values)
    return "".join(_SPARKS[min(len(_SPARKS) - 1, int(len(_SPARKS) * each / top))] for each in values)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return _NOTHING
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
