"""What measures scrapes and the cost of being watched: a key file made at once, and what a scrape tells."""

import stat

import pytest
from multidict import CIMultiDict

from ops.load.scrape import series, write_keys
from ops.load.watched import ratios, tokens_of
from proxy.authenticate import KeyRing
from proxy.keys import KEY_FILE_NAME, KeyFile
from shared.metrics import Metrics


def test_a_key_file_made_at_once_is_one_that_the_gateway_reads_with_keys_that_it_takes(tmp_path):
    path = tmp_path / KEY_FILE_NAME
    texts = write_keys(path, 20, 3)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    records = KeyFile(path).read()
    assert [record.key_class for record in records[:4]] == ["class-0", "class-1", "class-2", "class-0"]
    ring = KeyRing(records)
    callers = [ring.authenticate(CIMultiDict({"x-api-key": text})) for text in texts]
    assert [each.name for each in callers] == [record.name for record in records]
    assert len({each.key_id for each in callers}) == 20


def test_tokens_of_all_lanes_and_classes_are_added_and_series_are_counted():
    metrics = Metrics()
    before = series(metrics.exposition())
    assert tokens_of(metrics.exposition().decode()) == 0
    for lane, gaps in (("upper", 3), ("lower", 4)):
        times = metrics.place(lane, "team").times
        times.first.observe(1.0)
        for _ in range(gaps):
            times.gaps.observe(0.1)
    text = metrics.exposition()
    assert tokens_of(text.decode()) == 9
    assert series(text) - before > 100


def test_each_repeats_ratio_is_of_its_own_two_arms():
    arms = {name: [{"tokens_per_s": each} for each in speeds] for name, speeds in SPEEDS.items()}
    assert ratios(arms) == pytest.approx([0.5, 0.75])


SPEEDS = {"without": [100.0, 0.0, 200.0], "with": [50.0, 10.0, 150.0]}
