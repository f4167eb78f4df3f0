"""Alerts, dashboard and the page of metrics: they parse, and name only what the table of metrics declares."""

import json
import re
from pathlib import Path
from typing import get_args

import promql_parser
import pytest
import yaml

from ops.metrics_page import page
from shared import errors
from shared.messages import Breaker, DeathCause
from shared.metrics_table import LABELS, OUTCOMES, REASONS, WASTES, declared

OPS = Path(__file__).parents[2] / "ops"
RULES = [
    rule
    for group in yaml.safe_load((OPS / "alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((OPS / "grafana.json").read_text("utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
# What Prometheus adds to every series, by which gateways are told apart.
TARGET_LABELS = {"instance", "job"}
BY_SAMPLE = {name: metric for metric in declared() for name in metric.sample_names}
CODES = {each.code for each in vars(errors).values() if isinstance(each, type) and hasattr(each, "code")}
VALUES = {
    "code": CODES,
    "cause": {*get_args(DeathCause), *WASTES},
    "state": set(get_args(Breaker)),
    "outcome": set(OUTCOMES),
    "reason": set(REASONS),
}
VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)\}")
DURATIONS = {"__rate_interval": "5m"}


def dashboard_queries():
    """Return (where, query) of each panel's and each variable's; variables have stand-ins."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield (
                panel["title"],
                VARIABLE.sub(lambda found: DURATIONS.get(found[1], ".*"), target["expr"]),
            )


QUERIES = [(rule["alert"], rule["expr"]) for rule in RULES] + list(dashboard_queries())
each_query = pytest.mark.parametrize("query", [query for _, query in QUERIES], ids=[at for at, _ in QUERIES])


def selectors(query):
    """Return every selector of a query, as (metric, {label: values that are matched})."""
    found = []

    def visit(node):
        if isinstance(node, promql_parser.VectorSelector):
            labels = {each.name: each.value for each in node.matchers.matchers}
            found.append((node.name, labels))
        return True

    promql_parser.walk(promql_parser.parse(query), visit)
    return found


def unknown(query):
    """Return what a query names and no metric has: metrics, labels, values, and labels that it groups by."""
    problems = []
    known = set(TARGET_LABELS)
    for name, labels in selectors(query):
        metric = BY_SAMPLE.get(name)
        if metric is None:
            problems.append(name)
            continue
        own = {*metric.labels, *TARGET_LABELS, *(["le"] if name.endswith("_bucket") else [])}
        known |= own
        problems += [f"{name}{{{label}}}" for label in labels if label not in own]
        bounds = {str(float(bound)) for bound in metric.buckets}
        for label, value in labels.items():
            allowed = bounds if label == "le" else VALUES.get(label)
            if allowed and value not in (".*", ""):
                problems += [f"{label}={each}" for each in value.split("|") if each not in allowed]
    grouped = re.findall(r"\b(?:by|on|without|ignoring) \(([^)]*)\)", query)
    return problems + [
        label.strip() for labels in grouped for label in labels.split(",") if label.strip() not in known
    ]


@each_query
def test_a_query_parses_and_names_only_metrics_labels_and_values_that_are_declared(query):
    assert selectors(query)
    assert unknown(query) == []


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("forebay_queue", ["forebay_queue"]),
        ("forebay_parks", ["forebay_parks"]),
        ("rate(forebay_rung_total[5m])", ["forebay_rung_total"]),
        ("rate(forebay_estimate_error_seconds_sum[5m])", ["forebay_estimate_error_seconds_sum"]),
        ('forebay_rung{lane="a"}', ["forebay_rung{lane}"]),
        ("sum by (key) (forebay_queued)", ["key"]),
        ("sum by (le) (rate(forebay_tokens_total[5m]))", ["le"]),
        ('forebay_worker_deaths_total{cause=~"crash|cash"}', ["cause=cash"]),
        ('forebay_refused_total{code="overloaded"}', ["code=overloaded"]),
        ('forebay_queue_wait_seconds_bucket{le="3.0"}', ["le=3.0"]),
    ],
)
def test_what_is_not_declared_is_found(query, what):
    assert unknown(query) == what


def anchors(text):
    """Return the anchors of a page's headings, as they are made for links."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_what_it_means_and_where_the_runbook_speaks_of_it(rule):
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    if "for" in rule:
        promql_parser.parse_duration(rule["for"])
    page_name, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert page_name == "ops/runbook.md"
    assert anchor in anchors((OPS / "runbook.md").read_text("utf-8"))


def test_alerts_have_names_of_their_own():
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)


def test_the_words_of_an_alert_name_labels_that_its_query_keeps():
    for rule in RULES:
        words = " ".join(rule["annotations"].values())
        for label in re.findall(r"\$labels\.(\w+)", words):
            grouped = re.findall(r"by \(([^)]*)\)", rule["expr"])
            assert label == "instance" or any(label in each for each in grouped), rule["alert"]
            assert not grouped or all(label in each for each in grouped), rule["alert"]


def test_the_dashboard_can_be_imported_anywhere():
    assert DASHBOARD["schemaVersion"] >= 41
    assert not {"id", "__inputs"} & set(DASHBOARD)
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    parts = [*PANELS, *(target for panel in PANELS for target in panel["targets"])]
    parts += [each for name, each in variables.items() if name != "datasource"]
    assert {json.dumps(part["datasource"]) for part in parts} == {
        json.dumps({"type": "prometheus", "uid": "${datasource}"})
    }


def test_the_dashboards_variables_are_there_and_take_their_values_from_labels_that_exist():
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    used = {
        found[1] or found[2]
        for panel in PANELS
        for target in panel["targets"]
        for found in VARIABLE.finditer(target["expr"])
    }
    assert used - set(DURATIONS) == set(variables) - {"datasource"}
    for name in used - set(DURATIONS):
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variables[name]["definition"]).groups()
        assert label in {*BY_SAMPLE[metric].labels, *TARGET_LABELS}


def test_every_panel_says_what_it_shows_and_none_lies_over_another():
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(panel["description"] and panel["title"] for panel in PANELS)
    places = [
        (panel["gridPos"]["x"] + column, panel["gridPos"]["y"] + line)
        for panel in DASHBOARD["panels"]
        for column in range(panel["gridPos"]["w"])
        for line in range(panel["gridPos"]["h"])
    ]
    assert len(set(places)) == len(places)
    assert max(column for column, _ in places) < 24


def test_the_page_of_metrics_is_the_one_that_the_table_makes():
    assert (OPS / "metrics.md").read_text("utf-8") == page(), "python -m ops.metrics_page > ops/metrics.md"


def test_every_label_of_the_table_is_explained():
    assert {label for metric in declared() for label in metric.labels} == set(LABELS)
