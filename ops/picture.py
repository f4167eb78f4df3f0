"""A gateway's snapshot drawn for a terminal: every second by `forebay top`, once by `forebay status`."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ops.glyphs import DOT, FULL, MAY, PARTS, SPARKS
from ops.wording import count, printable, size, span
from proxy.status.snapshot import DeathView, LaneView, MemoryView, RowView, Snapshot

WIDTH_MAX: Final = 80
_WIDTH_MIN: Final = 20
_NARROW: Final = 60
_BAR_SHARE: Final = 0.9
# What stands beside the bars of rows, and before the sparks.
_ROW_WORDS: Final = 26
_SPEED_WORDS: Final = 26
_NOTHING: Final = "-"
_ROWS_SHOWN: Final = 12
_ROWS_SHOWN_MIN: Final = 3
_DEATHS_SHOWN: Final = 4
_QUARANTINED_SHOWN: Final = 4
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


def picture(
    shot: Snapshot, speeds: Sequence[float] = (), width: int = WIDTH_MAX, height: int | None = None
) -> Group:
    """Return all of it, at most `width` columns wide, and never more than 80.

    `speeds` are tokens a second, the newest at the end. On a low screen, of `height` lines, fewer rows are
    drawn, so that memory and what has ended aren't pushed off it.
    """
    width = max(_WIDTH_MIN, min(WIDTH_MAX, width))
    parts: list[RenderableType] = [_heading(shot), Text(), _now(shot, speeds, width), Text()]
    parts.append(_lanes(shot.lanes, width))
    if shot.rows:
        parts += [Text(), _rows(shot, width, _rows_for(shot, height))]
    parts += [Text(), _memory(shot.memory, width)]
    if shot.deaths:
        parts += [Text(), _deaths(shot.deaths, width)]
    if shot.quarantined:
        parts += [Text(), *_quarantine(shot)]
    return Group(*parts)


def _rows_for(shot: Snapshot, height: int | None) -> int:
    """Return how many rows a screen has room for, beside all the rest."""
    if height is None:
        return _ROWS_SHOWN
    ends = 2 + min(_DEATHS_SHOWN, len(shot.deaths)) if shot.deaths else 0
    requests = 2 + min(_QUARANTINED_SHOWN, len(shot.quarantine)) if shot.quarantined else 0
    return min(_ROWS_SHOWN, max(_ROWS_SHOWN_MIN, height - 21 - len(shot.lanes) - ends - requests))


def state_in_words(shot: Snapshot) -> str:
    """Return one sentence on how it is, and what comes next."""
    gateway, worker = shot.gateway, shot.worker
    words = f"{printable(gateway.status)} for {span(gateway.since_s)}"
    if gateway.status == "draining":
        words = f"draining; {count(gateway.live, 'answer')} live"
    if gateway.held:
        words += "; nothing new starts until the worker is replaced"
    if worker.starts_in_s is not None:
        words += f"; the next worker starts in {worker.starts_in_s:.0f} s"
    if worker.breaker != "closed":
        words += f"; breaker {printable(worker.breaker).replace('_', ' ')}"
    if worker.rung:
        words += f"; rung {worker.rung} after deaths for want of memory"
    if shot.suspects:
        words += f"; {count(shot.suspects, 'answer')} to be tried alone"
    return words


def _heading(shot: Snapshot) -> Text:
    style = _STYLES.get(shot.gateway.status, "red")
    text = Text(f"{DOT} ", style=style)
    text.append(printable(shot.gateway.model), style="bold")
    text.append(f"  {state_in_words(shot)}", style=style)
    epoch = "no worker" if shot.worker.epoch is None else f"worker {shot.worker.epoch}"
    return text.append(f"  ({epoch}, up {span(shot.gateway.uptime_s)})", style="dim")


def _now(shot: Snapshot, speeds: Sequence[float], width: int) -> Table:
    speed, worker = shot.speed, shot.worker
    running = sum(lane.running for lane in shot.lanes)
    slots = _NOTHING if worker.slots is None else str(worker.slots)
    groups = f" in {count(worker.groups, 'group')}" if worker.groups else ""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    latest = list(speeds)[-max(1, width - _SPEED_WORDS) :]
    grid.add_row(
        "tokens/s", Text(f"{speed.tokens_per_s:.1f} ", style="bold").append(sparks(latest), style="cyan")
    )
    grid.add_row("to first token", f"p50 {_time(speed.ttft_p50_s)}, p95 {_time(speed.ttft_p95_s)}")
    grid.add_row("rows", f"{running} of {slots}{groups}")
    grid.add_row("queued", f"{sum(lane.queued for lane in shot.lanes)}, {speed.refused} refused lately")
    return grid


def _lanes(lanes: Sequence[LaneView], width: int) -> Table:
    """Draw a line for each lane. On a narrow screen an overloaded one is told by a mark and its colour."""
    narrow = width < _NARROW
    table = _table(narrow=narrow)
    table.add_column("lane", overflow="ellipsis", no_wrap=True)
    for name in ("runs", "waits", "of", "oldest") if narrow else ("running", "queued", "of", "oldest wait"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for rank, lane in enumerate(lanes):
        table.add_row(
            Text(printable(lane.name), style=_LANE_STYLES[rank % len(_LANE_STYLES)]),
            str(lane.running),
            str(lane.queued),
            str(lane.queue_places),
            span(lane.oldest_wait_s) if lane.queued else _NOTHING,
            Text("over" if narrow else "overloaded", style="red") if lane.overloaded else "",
        )
    return table


def _table(*, narrow: bool) -> Table:
    gap = 1 if narrow else 3
    return Table(box=None, padding=(0, gap, 0, 0), header_style="dim", pad_edge=False)


def _rows(shot: Snapshot, width: int, shown: int) -> Table:
    """Draw the longest answers, each against what it may grow to."""
    ranks = {lane.name: rank for rank, lane in enumerate(shot.lanes)}
    rows = sorted(shot.rows, key=lambda row: row.tokens_max, reverse=True)
    longest, bar = max(1, rows[0].tokens_max), max(4, min(40, width - _ROW_WORDS))
    grid = Table.grid(padding=(0, 1))
    for row in rows[:shown]:
        style = _LANE_STYLES[ranks.get(row.lane, 0) % len(_LANE_STYLES)]
        words = Text(f"{row.tokens} of {row.tokens_max} tokens", style="dim")
        grid.add_row(_row_bar(row, longest, style, bar), words)
    if len(rows) > shown:
        grid.add_row(Text(f"and {len(rows) - shown} shorter", style="dim"), "")
    return grid


def _row_bar(row: RowView, longest: int, style: str, bar: int) -> Text:
    done = min(bar, round(bar * row.tokens / longest))
    may = max(done, round(bar * row.tokens_max / longest))
    return Text(FULL * done, style=style).append(MAY * (may - done), style="dim").append(" " * (bar - may))


def _memory(memory: MemoryView, width: int) -> RenderableType:
    """Draw weights and the budget for KV caches as one bar, and name its parts: each has its own glyph."""
    if memory.weights_bytes is None or memory.kv_budget_full_bytes is None:
        return Text("memory: no worker tells", style="dim")
    grid = Table.grid(padding=(0, 2))
    parts = [*memory_parts(memory)]
    whole = sum(each for _, each, _ in parts) or 1
    bar, begun_bytes = Text(no_wrap=True), 0
    for glyph, (name, part_bytes, style) in zip(PARTS, parts, strict=False):
        # From where the one before ended, so that the whole is as long as it should be.
        places = [
            round(_BAR_SHARE * width * each / whole) for each in (begun_bytes, begun_bytes + part_bytes)
        ]
        begun_bytes += part_bytes
        bar.append(glyph * (places[1] - places[0]), style=style)
        grid.add_row(Text(glyph, style=style), name, Text(size(part_bytes), justify="right"))
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


def _deaths(deaths: Sequence[DeathView], width: int) -> Table:
    narrow = width < _NARROW
    table = _table(narrow=narrow)
    table.add_column("worker's ends", no_wrap=True)
    table.add_column("why")
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("back" if narrow else "next one after", justify="right", no_wrap=True)
    for each in list(deaths)[-_DEATHS_SHOWN:][::-1]:
        back = _NOTHING if each.restart_s is None else span(each.restart_s)
        style = "cyan" if each.cause == "planned" else "red"
        when = datetime.fromtimestamp(each.at).astimezone().strftime("%m-%d %H:%M:%S")
        table.add_row(when, Text(_cause(each.cause), style=style), str(each.rows), back)
    return table


def _quarantine(shot: Snapshot) -> Iterator[Text]:
    yield Text(f"{count(shot.quarantined, 'request')} quarantined", style="red")
    for each in shot.quarantine[-_QUARANTINED_SHOWN:][::-1]:
        left_s = max(0.0, each.until - shot.time)
        yield Text(f"  {printable(each.fingerprint)}  {_cause(each.cause)}, for {span(left_s)} more")


def _cause(cause: str) -> str:
    return _CAUSES.get(cause) or printable(cause)


def sparks(values: Sequence[float]) -> str:
    """Return values as a row of small bars, the largest of them the highest."""
    top = max(values, default=0.0)
    if top <= 0:
        return SPARKS[0] * len(values)
    return "".join(SPARKS[min(len(SPARKS) - 1, int(len(SPARKS) * each / top))] for each in values)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return _NOTHING
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
