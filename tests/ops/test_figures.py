"""What the figures' script makes of measured values; measuring needs minutes and a quiet machine."""

import io

import pytest
from rich.console import Console

from ops.figures.__main__ import _death_table, _logged_at, _ratio, _throughput_table


def shown(table) -> str:
    screen = Console(width=80, file=io.StringIO())
    screen.print(table)
    return screen.file.getvalue()


def test_a_ratio_is_the_median_of_what_ran_one_after_the_other():
    """A slow minute that meets both of a pair doesn't move it."""
    assert _ratio([10.0, 1.0, 12.0], [10.0, 1.0, 10.0]) == 1.0


def test_the_table_has_a_line_for_each_number_of_streams_with_both_ratios():
    values = {"gateway": [95.0], "in_process": [100.0], "server": [50.0], "proxy_cpu": [0.02]}
    text = shown(_throughput_table({16: values}))
    for part in ("16", "95 (95-95)", "0.95", "1.90", "2.0 %"):
        assert part in text


def test_a_death_is_shown_in_its_parts():
    text = shown(_death_table([{"detect": 0.05, "load": 2.5, "prefill": 0.3, "all": 2.85}]))
    assert all(part in text for part in ("0.05", "2.50", "0.30", "2.85"))


def test_a_moment_is_found_in_the_log_and_must_be_the_only_one():
    event = {"event": "worker ready", "timestamp": "2026-01-01T00:00:01.500000Z"}
    assert _logged_at([event], "worker ready") % 1 == 0.5
    with pytest.raises(ValueError, match="unpack"):
        _logged_at([event, event], "worker ready")
