"""A result as one page of HTML that needs nothing else: charts along each axis, and a table of all."""

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any, Final

from ops.bench.page_parts import SCRIPT, STYLE

_VENDOR: Final = "status/assets/vendor"
# Nothing is fetched: not even a mistake in what follows could have the browser ask another host.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_LEGEND: Final = (
    "Times are in milliseconds and of completed requests; tokens/s are medians of repetitions, with a 95 %"
    " bootstrap interval."
)
_TIMES: Final = (
    ("ttft_ms", "TTFT"),
    ("itl_ms", "ITL"),
    ("tpot_ms", "TPOT"),
    ("e2e_ms", "whole"),
    ("queue_ms", "queue"),
)


def page(result: Mapping[str, Any]) -> str:
    """Return the page of a result."""
    vendor = files("proxy").joinpath(_VENDOR)
    library, library_style = (
        vendor.joinpath(name).read_text("utf-8") for name in ("uplot.iife.min.js", "uplot.min.css")
    )
    run = result["run"]
    model = escape(run["targets"]["server"]["model"])
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<link rel="icon" href="data:,">',
            f"<title>forebay bench: {model}</title>",
            f"<style>{library_style}\n{STYLE}</style>",
            "</head>",
            "<body>",
            "<main>",
            f"<h1>{model}</h1>",
            f"<p>{_introduction(result)}</p>",
            '<div id="charts"></div>',
            "<h2>All figures</h2>",
            f"<p>{_LEGEND}</p>",
            _table(result),
            "<h2>Run</h2>",
            "<details><summary>What was measured, with what</summary>",
            f"<pre>{escape(json.dumps(run, indent=2))}</pre></details>",
            "</main>",
            f'<script type="application/json" id="data">{_embedded(_charted(result))}</script>',
            f"<script>{_closed(library)}</script>",
            f"<script>{SCRIPT}</script>",
            "</body>",
            "</html>",
            "",
        )
    )


def _introduction(result: Mapping[str, Any]) -> str:
    run = result["run"]
    machine = run["machine"]
    words = [
        " and ".join(
            f"{target['model']} at {target['host']} ({name})" for name, target in run["targets"].items()
        ),
        f"measured from {machine['system']} with {machine['cores']} cores on {run['began']}",
        f"{run['repetitions']} repetitions, {run['warm_up']} warm-up requests before each",
        f"seed {run['seed']}",
    ]
    if result["stopped"]:
        words.append(f"stopped before its end ({result['stopped']})")
    return escape("; ".join(words)) + "."


def _charted(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the charts show: of every point of the sweep its place and its percentiles."""
    return [
        {
            "target": each["target"],
            "point": each["point"],
            "rate": each["metrics"]["output_tokens_per_s"],
            "ttft": each["metrics"]["ttft_ms"],
            "itl": each["metrics"]["itl_ms"],
        }
        for each in result["results"]
        if each["work"] == "sweep" and each["requests"]["completed"]
    ]


def _embedded(value: Any) -> str:
    """Return JSON that no end tag can be read into."""
    return json.dumps(value).replace("<", "\\u003c")


def _closed(script: str) -> str:
    return script.replace("</script", "<\\/script")


def _table(result: Mapping[str, Any]) -> str:
    headings = ["server", "load", "streams", "prompt", "answer", "done", "tokens/s", "95 %", "requests/s"]
    headings += [f"{name} {percent}" for _, name in _TIMES for percent in ("p50", "p95", "p99")]
    head = "".join(
        f'<th scope="col">{escape(heading)}</th>' for heading in (*headings, "memory, GiB", "failed")
    )
    rows = "\n".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _row(each))}</tr>" for each in result["results"]
    )
    return (
        '<div class="wide" role="region" aria-label="All figures" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def _row(each: Mapping[str, Any]) -> list[str]:
    point, metrics, requests = each["point"], each["metrics"], each["requests"]
    rate, whole = metrics["output_tokens_per_s"], metrics["requests_per_s"]
    streams = str(point["concurrency"]) if point["rate_hz"] is None else f"{point['rate_hz']:g}/s"
    held = each["peak_memory_bytes"]
    return [
        each["target"],
        ", ".join(filter(None, (each["work"], each["part"]))),
        streams,
        str(point["prompt_tokens"]),
        str(point["output_tokens"]),
        f"{requests['completed']}/{requests['sent']}",
        _cell(rate and rate["value"]),
        f"{_cell(rate['low'])} to {_cell(rate['high'])}" if rate and rate["low"] is not None else "",
        _cell(whole and whole["value"]),
        *(
            _cell(metrics[name][percent]["value"]) if metrics[name]["count"] else ""
            for name, _ in _TIMES
            for percent in ("p50", "p95", "p99")
        ),
        f"{held / 2**30:.2f}" if held else "",
        ", ".join(f"{count} x {reason}" for reason, count in requests["failed"].items()),
    ]


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 99.5 else f"{value:.3g}"
