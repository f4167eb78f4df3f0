"""Results and comparisons for a terminal of 80 columns."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from ops.bench.compare import WORDS, Change, Comparison

_UNITS: Final = {
    "output_tokens_per_s": "tokens/s",
    "requests_per_s": "requests/s",
    "ttft_ms": "TTFT",
    "itl_ms": "ITL",
    "tpot_ms": "TPOT",
    "e2e_ms": "whole",
    "queue_ms": "queue",
}


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print a result's tables, the ratios in it, and what went wrong."""
    run = result["run"]
    for name, target in run["targets"].items():
        console.print(f"{name}: {target['model']} at {target['host']}", markup=False, soft_wrap=True)
    for target in run["targets"]:
        mine = [each for each in result["results"] if each["target"] == target]
        if mine:
            console.print(_table(target, mine))
    for line in (*_notes(result), *_scenarios(result["scenarios"])):
        console.print(line, markup=False, highlight=False)
    if result["ratios"]:
        console.print(_ratio_table(result["ratios"]))


def _table(target: str, results: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(
        title=f"{target}: medians over repetitions; times in ms", box=box.SIMPLE, padding=(0, 1, 0, 0)
    )
    for number, heading in enumerate(("load", "done", "tok/s", "±95%", "TTFT", "p95", "ITL", "p95", "whole")):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for each in results:
        metrics, rate = each["metrics"], each["metrics"]["output_tokens_per_s"]
        table.add_row(
            _load(each),
            f"{each['requests']['completed']}/{each['requests']['sent']}",
            _number(rate["value"] if rate else None),
            _interval(rate),
            *(_at(metrics[name], percent) for name in ("ttft_ms", "itl_ms") for percent in ("p50", "p95")),
            _at(metrics["e2e_ms"], "p50"),
        )
    return table


def _load(each: Mapping[str, Any]) -> str:
    point = each["point"]
    load = f"{point['concurrency']}" if point["rate_hz"] is None else f"{point['rate_hz']:g}/s"
    lengths = f"{load} x {point['prompt_tokens']}→{point['output_tokens']}"
    words = each["part"] or (each["work"] if each["work"] != "sweep" else "")
    return f"{words}: {lengths}" if words else lengths


def _at(metric: Mapping[str, Any], percent: str) -> str:
    return _number(metric[percent]["value"]) if metric["count"] else "-"


def _interval(metric: Mapping[str, Any] | None) -> str:
    if not metric or metric["low"] is None:
        return "-"
    return f"{_number(metric['low'])}-{_number(metric['high'])}"


def _number(value: float | None) -> str:
    """Return three digits of a number, and all that stand before its point."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 99.5 else f"{value:.3g}"


def _notes(result: Mapping[str, Any]) -> list[str]:
    notes = [f"{work}: skipped, {why}." for work, why in result["run"]["skipped"].items()]
    for each in result["results"]:
        failed = each["requests"]["failed"]
        if failed:
            told = ", ".join(f"{count} x {reason}" for reason, count in failed.items())
            notes.append(f"{each['target']}, {_load(each)}: {told}")
    peak = max((each["peak_memory_bytes"] or 0 for each in result["results"]), default=0)
    if peak:
        notes.append(f"Most memory that the server said it held: {peak / 2**30:.2f} GiB.")
    if any(each["requests"]["completed"] and not each["tokens"]["by_usage"] for each in result["results"]):
        notes.append("The server doesn't count tokens: each piece of text counts as one.")
    if result["stopped"]:
        notes.append(f"Stopped before its end ({result['stopped']}): this is what was measured until then.")
    return notes


def _scenarios(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    if overload := found.get("overload"):
        took = overload["refusal_ms"].get("p50")
        lines.append(
            f"overload: {overload['refused']} refused"
            + (f" in {_number(took)} ms (p50)" if took is not None else "")
            + f", {overload['refused_with_a_time_to_come_back']} of them with a time to come back;"
            f" tokens/s {_number(overload['tokens_per_s_of_peak'])} of the peak"
        )
    if death := found.get("death"):
        pause = death["pause_ms"]
        lines.append(
            f"death: {death['under_way']} under way, {death['went_on_to_their_end']} went on to their end"
            + (
                f"; paused {_number(pause['p50'])} ms (p50), {_number(pause['max'])} ms (most)"
                if pause["count"]
                else ""
            )
        )
    return lines


def _ratio_table(ratios: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="ratios, with 95% intervals", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for heading in ("what", "load", "metric", "ratio", "interval"):
        table.add_column(heading, justify="right" if heading in {"ratio", "interval"} else "left")
    for each in ratios:
        table.add_row(
            each["what"],
            _load({**each, "part": "", "work": "sweep" if each["work"] == "lanes" else each["work"]}),
            _metric(each["metric"], each["percent"]),
            _ratio(each["ratio"]),
            "-" if each["low"] is None else f"{_ratio(each['low'])}-{_ratio(each['high'])}",
        )
    return table


def _metric(name: str, percent: int) -> str:
    return _UNITS[name] if name.endswith("_per_s") else f"{_UNITS[name]} p{percent}"


def _ratio(value: float | None) -> str:
    return "∞" if value is None or value == float("inf") else f"{value:.2f}"


# --- comparisons ------------------------------------------------------------------------------------------


def show_comparison(comparison: Comparison, differing: Sequence[str], console: Console) -> None:
    """Print every metric's change by place, and what the two have not in common."""
    for line in differing:
        console.print(f"They differ: {line}", style="yellow", markup=False, highlight=False)
    places: dict[str, list[Change]] = {}
    for change in comparison.changes:
        words = ", ".join(filter(None, (change.target, change.work, change.part, change.point.name)))
        places.setdefault(words, []).append(change)
    for words, changes in places.items():
        console.print(_change_table(words, changes))
    for side, names in (("A", comparison.only_a), ("B", comparison.only_b)):
        for name in names:
            console.print(f"only in {side}: {name}", markup=False, highlight=False)
    console.print(_summed_up(comparison.changes), markup=False, highlight=False)


def _change_table(words: str, changes: Sequence[Change]) -> Table:
    table = Table(title=words, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for heading in ("metric", "A", "B", "B/A", "95%", ""):
        table.add_column(heading, justify="left" if heading in {"metric", ""} else "right")
    for change in changes:
        interval = change.interval
        table.add_row(
            _metric(change.metric, change.percent),
            _number(change.value_a),
            _number(change.value_b),
            _ratio(change.ratio),
            f"{_ratio(interval.low)}-{_ratio(interval.high)}" if interval else "-",
            WORDS[change.verdict],
        )
    return table


def _summed_up(changes: Sequence[Change]) -> str:
    if not changes:
        return "The two have no point of load in common."
    counts = {verdict: sum(change.verdict == verdict for change in changes) for verdict in WORDS}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    return f"{len(changes)} metrics: {told}. One in twenty looks different by chance alone."
