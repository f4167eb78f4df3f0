"""The metrics' declarations: each once, with its labels, and read by Prometheus' own parser."""

from dataclasses import dataclass

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shared.metrics import Metrics
from shared.readings import PrefixReading

DECLARED = {
    "forebay_queue_wait_seconds": "histogram",
    "forebay_estimate_error_seconds": "histogram",
    "forebay_refused": "counter",
    "forebay_parks": "counter",
    "forebay_queued": "gauge",
    "forebay_running": "gauge",
    "forebay_kv_reserved_bytes": "gauge",
    "forebay_kv_held_bytes": "gauge",
    "forebay_kv_budget_bytes": "gauge",
    "forebay_worker_footprint_bytes": "gauge",
    "forebay_worker_deaths": "counter",
    "forebay_rung": "gauge",
    "forebay_breaker": "gauge",
    "forebay_resumes": "counter",
    "forebay_resume_seconds": "histogram",
    "forebay_suspects": "gauge",
    "forebay_quarantined": "gauge",
    "forebay_connections_ended": "counter",
    "forebay_house_seconds": "gauge",
    "forebay_prompt_tokens": "counter",
    "forebay_prompt_tokens_cached": "counter",
    "forebay_prefix_kept_bytes": "gauge",
    "forebay_prefix_shared_bytes": "gauge",
    "forebay_prefix_blocks": "gauge",
    "forebay_prefix_disk_bytes": "gauge",
    "forebay_prefix_evictions": "counter",
    "forebay_prefix_disk_reads": "counter",
    "forebay_prefix_disk_writes": "counter",
    "forebay_prefix_disk_bad": "counter",
}


@dataclass(frozen=True)
class Start:
    waited_s: float
    estimated_s: float
    lane: str = "upper"
    first: bool = True


@pytest.fixture
def metrics():
    return Metrics()


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_every_metric_is_declared_once_with_its_kind_and_says_what_it_is(metrics):
    families = list(text_string_to_metric_families(metrics.exposition().decode()))
    assert {family.name: family.type for family in families} == DECLARED
    assert len(families) == len(DECLARED)
    assert all(family.documentation for family in families)


def test_two_processes_worth_of_metrics_do_not_share_a_count(metrics):
    metrics.parks.labels("upper").inc()
    assert value(Metrics(), "forebay_parks_total", lane="upper") is None


@pytest.mark.parametrize(
    ("waited_s", "estimated_s", "below", "within"),
    [
        (1.0, 4.0, "-5.0", "-2.0"),
        (4.0, 1.0, "2.0", "5.0"),
        (1.0, 1.0, "-0.1", "0.0"),
        (200.0, 1.0, "60.0", "+Inf"),
    ],
)
def test_an_estimate_that_was_too_long_is_below_zero_and_one_too_short_above(
    metrics, waited_s, estimated_s, below, within
):
    metrics.started(Start(waited_s, estimated_s))
    errors = "forebay_estimate_error_seconds_bucket"
    assert value(metrics, errors, lane="upper", le=below) == 0
    assert value(metrics, errors, lane="upper", le=within) == 1
    assert value(metrics, "forebay_queue_wait_seconds_sum", lane="upper") == waited_s


def test_only_first_starts_are_waits(metrics):
    metrics.started(Start(1.0, 1.0, first=False))
    assert value(metrics, "forebay_queue_wait_seconds_count", lane="upper") is None
    assert value(metrics, "forebay_estimate_error_seconds_count", lane="upper") is None


def test_lanes_that_are_forgotten_have_no_gauge_and_keep_their_counts(metrics):
    metrics.queued.labels("upper").set(3)
    metrics.running.labels("upper").set(2)
    metrics.parks.labels("upper").inc()
    metrics.forget_lanes()
    assert value(metrics, "forebay_queued", lane="upper") is None
    assert value(metrics, "forebay_running", lane="upper") is None
    assert value(metrics, "forebay_parks_total", lane="upper") == 1


READING = PrefixReading(10, 20, 30, 4, 50, 6, 7, 8)
SIZES = {"kept_bytes": 10, "shared_bytes": 20, "blocks": 30, "disk_bytes": 50}
COUNTS = {"evictions_total": 4, "disk_reads_total": 6, "disk_writes_total": 7, "disk_bad_total": 8}


def prefixes(metrics, names):
    return {name: value(metrics, f"forebay_prefix_{name}") for name in names}


def test_what_the_worker_keeps_of_prompts_is_shown_each_number_under_its_own_name(metrics):
    metrics.keeps(READING)
    assert prefixes(metrics, SIZES) == SIZES
    assert prefixes(metrics, COUNTS) == COUNTS


def test_without_a_worker_nothing_is_kept_and_its_counts_stand_until_the_next_ones(metrics):
    metrics.keeps(READING)
    metrics.keeps(None)
    assert set(prefixes(metrics, SIZES).values()) == {0}
    assert prefixes(metrics, COUNTS) == COUNTS
    metrics.keeps(PrefixReading(evictions=1))
    assert prefixes(metrics, COUNTS) == {**dict.fromkeys(COUNTS, 0), "evictions_total": 1}


def test_a_label_with_odd_characters_is_read_back_as_it_was(metrics):
    odd = 'a "b"\n\\c'
    metrics.parks.labels(odd).inc()
    samples = [
        sample
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
        if sample.name == "forebay_parks_total"
    ]
    assert [sample.labels for sample in samples] == [{"lane": odd}]
