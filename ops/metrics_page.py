"""Writes ops/metrics.md from the table of metrics: `python -m ops.metrics_page > ops/metrics.md`."""

from shared.metrics_table import LABELS, SECTIONS, Metric

_HEAD = """# Metrics

`GET /metrics` on the gateway's own port, in Prometheus' text format, without a key. This page is made from
the table from which the metrics themselves are made, `shared/metrics_table.py`:
`python -m ops.metrics_page > ops/metrics.md`. `alerts.yml` and `grafana.json` beside it use them.

A counter begins with 0 when the gateway starts, those of beginnings of prompts with each life of the worker;
a gauge is of now; of a histogram there are `_bucket`, `_sum` and `_count`, times in seconds. Lanes and key
classes are shown from their first request on. No label has a word of a client, a key's name or id, or any
text.
"""


def page() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for section in SECTIONS:
        rows = "\n".join(map(_row, section.metrics))
        parts.append(
            f"## {section.title}\n\n| metric | kind | labels | what it is |\n|---|---|---|---|\n{rows}\n"
        )
    labels = "\n".join(f"| `{name}` | {words} |" for name, words in LABELS.items())
    parts.append(f"## Labels\n\n| label | values |\n|---|---|\n{labels}\n")
    return "\n".join(parts)


def _row(metric: Metric) -> str:
    name = metric.sample_names[0] if metric.kind != "histogram" else metric.name
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{name}` | {metric.kind} | {labels} | {metric.words} |"


if __name__ == "__main__":
    print(page(), end="")
