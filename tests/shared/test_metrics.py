"""The table of metrics, the objects made from it, and their text as Prometheus' own parser reads it."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from shared import metrics_table as table
from shared.limits import KEY_CLASSES_MAX
from shared.metrics import Metrics
from shared.metrics_table import OTHER, declared
from shared.metrics_text import text_of
from shared.metrics_times import Tally
from shared.readings import PrefixReading

PLACE = {"lane": "upper", "key_class": "team"}


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


def families(metrics):
    return list(text_string_to_metric_families(metrics.exposition().decode()))


# --- the table --------------------------------------------------------------------------------------------


def test_what_is_shown_is_what_the_table_declares_each_once_with_its_kind_and_its_words(metrics):
    shown = families(metrics)
    assert {each.name: (each.type, each.documentation) for each in shown} == {
        each.name: (each.kind, each.words) for each in declared()
    }
    assert len(shown) == len(list(declared()))


def test_every_series_has_the_name_and_the_labels_that_its_metric_declares(metrics):
    metrics.place("upper", "team")
    metrics.refused("upper", "team", "loading")
    metrics.stands(["upper"], [], [])
    by_name = {name: each for each in declared() for name in each.sample_names}
    samples = [sample for family in families(metrics) for sample in family.samples]
    for sample in samples:
        metric = by_name[sample.name]
        labels = {*metric.labels, *(["le"] if sample.name.endswith("_bucket") else [])}
        assert set(sample.labels) == labels, sample.name
    told = {sample.name for sample in samples}
    of_a_place = {name for name, each in by_name.items() if each.labels[:2] == ("lane", "key_class")}
    assert of_a_place <= told


def test_names_are_declared_once_and_say_their_unit_last():
    names = [each.name for each in declared()]
    assert len(set(names)) == len(names)
    units = ("_seconds", "_bytes", "_tokens", "_per_second")
    for each in declared():
        assert each.kind != "histogram" or each.name.endswith(units)
        assert not each.name.endswith(("_total", "_ms", "_s", "_mb"))


def test_an_object_is_asked_for_as_what_it_is(metrics):
    with pytest.raises(AssertionError, match="declared as a gauge"):
        metrics.counter(table.RUNG)


# --- counting ---------------------------------------------------------------------------------------------


def test_two_processes_worth_of_metrics_do_not_share_a_count(metrics):
    metrics.place("upper", "team").parks.inc()
    assert value(Metrics(), "forebay_parks_total", **PLACE) is None


def test_what_a_rate_is_taken_of_is_shown_before_it_happens(metrics):
    assert value(metrics, "forebay_worker_deaths_total", cause="crash") == 0
    assert value(metrics, "forebay_connections_ended_total", reason="turned away") == 0
    metrics.place("upper", "team")
    for cause in ("left", "failed", "recomputed"):
        assert value(metrics, "forebay_wasted_tokens_total", **PLACE, cause=cause) == 0
    for name in ("admitted", "tokens", "goodput_tokens", "prompt_tokens", "parks", "resumes"):
        assert value(metrics, f"forebay_{name}_total", **PLACE) == 0


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
    metrics.started(Start(waited_s, estimated_s), "team")
    errors = "forebay_estimate_error_seconds_bucket"
    assert value(metrics, errors, **PLACE, le=below) == 0
    assert value(metrics, errors, **PLACE, le=within) == 1
    assert value(metrics, "forebay_queue_wait_seconds_sum", **PLACE) == waited_s


def test_only_first_starts_are_waits(metrics):
    metrics.place("upper", "team")
    metrics.started(Start(1.0, 1.0, first=False), "team")
    assert value(metrics, "forebay_queue_wait_seconds_count", **PLACE) == 0
    assert value(metrics, "forebay_estimate_error_seconds_count", **PLACE) == 0


def test_a_token_is_an_answers_first_or_has_a_gap_before_it(metrics):
    times = metrics.place("upper", "team").times
    times.first.observe(0.3)
    times.gaps.observe(0.02)
    times.gaps.observe(7.0)
    assert value(metrics, "forebay_tokens_total", **PLACE) == 3
    assert value(metrics, "forebay_ttft_seconds_count", **PLACE) == 1
    gaps = "forebay_inter_token_seconds"
    assert value(metrics, f"{gaps}_bucket", **PLACE, le="0.01") == 0
    assert value(metrics, f"{gaps}_bucket", **PLACE, le="0.02") == 1
    assert value(metrics, f"{gaps}_count", **PLACE) == 2
    assert value(metrics, f"{gaps}_sum", **PLACE) == 7.02


BOUNDS = (0.0, 0.5, 1.0, 3.0)


@given(st.lists(st.floats(-10, 10) | st.sampled_from(BOUNDS)))
def test_a_tally_counts_as_a_histogram_of_prometheus_does(values):
    tally, theirs = Tally(BOUNDS), Histogram("theirs", "words", buckets=BOUNDS, registry=None)
    for each in values:
        tally.observe(each)
        theirs.observe(each)
    (family,) = theirs.collect()
    told = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}
    assert dict(tally.buckets()) == told
    assert tally.count == len(values)
    assert tally.sum == pytest.approx(sum(values))


# --- few series -------------------------------------------------------------------------------------------


def test_key_classes_beyond_the_bound_are_counted_as_one(metrics):
    classes = [f"class{number}" for number in range(KEY_CLASSES_MAX + 5)]
    for each in ("", *classes, *classes):
        metrics.place("upper", each).admitted.inc()
        metrics.refused("upper", each, "loading")
    last = classes[KEY_CLASSES_MAX - 1]
    for name, labels in (("admitted", {}), ("refused", {"code": "loading"})):
        total = f"forebay_{name}_total"
        assert value(metrics, total, lane="upper", key_class=last, **labels) == 2
        assert value(metrics, total, lane="upper", key_class=classes[KEY_CLASSES_MAX], **labels) is None
        assert value(metrics, total, lane="upper", key_class=OTHER, **labels) == 10
        assert value(metrics, total, lane="upper", key_class="", **labels) == 1


def test_lanes_that_reloads_bring_without_end_are_counted_as_one_at_last(metrics):
    lanes = [f"lane{number}" for number in range(table.LANE_LABELS_MAX + 5)]
    for each in lanes:
        metrics.place(each, "").admitted.inc()
    assert value(metrics, "forebay_admitted_total", lane=lanes[-6], key_class="") == 1
    assert value(metrics, "forebay_admitted_total", lane=OTHER, key_class="") == 5
    assert len(metrics._places) == table.LANE_LABELS_MAX + 1


def test_who_waits_is_counted_by_lane_and_class_and_a_lane_that_is_gone_has_nobody(metrics):
    metrics.place("upper", "team").parks.inc()
    metrics.stands(
        ["upper", "lower"], [("upper", "team"), ("upper", "team"), ("lower", "")], [("lower", "x")]
    )
    shown = {
        (name, *labels): value(metrics, f"forebay_{name}", lane=labels[0], key_class=labels[1])
        for name in ("queued", "running")
        for labels in (("upper", "team"), ("upper", ""), ("lower", ""), ("lower", "x"))
    }
    assert shown == {
        ("queued", "upper", "team"): 2,
        ("queued", "upper", ""): 0,
        ("queued", "lower", ""): 1,
        ("queued", "lower", "x"): None,
        ("running", "upper", "team"): 0,
        ("running", "upper", ""): 0,
        ("running", "lower", ""): 0,
        ("running", "lower", "x"): 1,
    }
    metrics.stands(["lower"], [], [])
    assert value(metrics, "forebay_queued", **PLACE) is None
    assert value(metrics, "forebay_queued", lane="lower", key_class="") == 0
    assert value(metrics, "forebay_parks_total", **PLACE) == 1


# --- what is read elsewhere -------------------------------------------------------------------------------

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


def test_the_process_tells_what_it_takes(metrics):
    assert value(metrics, "process_cpu_seconds_total") > 0
    assert value(metrics, "process_resident_memory_bytes") > 1 << 20
    assert value(metrics, "process_open_fds") > 0
    assert value(metrics, "process_start_time_seconds") > 1e9
    assert value(metrics, "python_gc_collections_total", generation="0") >= 0


# --- the text ---------------------------------------------------------------------------------------------

WORDS = st.text(max_size=8) | st.sampled_from(['a "b"\n\\c', "\\n", '\\"', "}", ","])
NUMBERS = st.floats() | st.integers(-(1 << 60), 1 << 60)


class Shows:
    def __init__(self, family):
        self.family = family

    def collect(self):
        return [self.family]


def read(raw):
    """Return a text's families as Prometheus reads them; a value that is no number becomes a word."""
    return [
        (each.name, each.type, [(s.name, s.labels, repr(s.value)) for s in each.samples])
        for each in text_string_to_metric_families(raw.decode())
    ]


@given(st.dictionaries(st.tuples(WORDS, WORDS), NUMBERS, max_size=5), st.booleans())
def test_the_text_says_what_prometheus_own_writer_says(values, counts):
    kind = CounterMetricFamily if counts else GaugeMetricFamily
    family = kind("some_thing", 'has "words" \\ and\nlines', labels=["one", "two"])
    for labels, each in values.items():
        family.add_metric(labels, each)
    ours = b"".join(text_of(family))
    assert read(ours) == read(generate_latest(Shows(family)))
    assert ours.splitlines()[:2] == generate_latest(Shows(family)).splitlines()[:2]


def test_the_text_comes_in_parts_none_of_which_is_long(metrics):
    for number in range(KEY_CLASSES_MAX):
        metrics.place("upper", f"class{number}")
    parts = list(metrics.parts())
    assert max(part.count(b"\n") for part in parts) == 256
    assert all(part.endswith(b"\n") for part in parts)
