"""The `kills` scenario for a moment, with real processes: what it starts it ends, and it finds nothing."""

import io

import pytest
from rich.console import Console

from ops.chaos import kills
from ops.load.plan import Plan
from ops.load.progress import Progress

pytestmark = [pytest.mark.served, pytest.mark.timeout(300)]


def test_a_worker_that_is_killed_under_load_costs_nothing(demo_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(kills, "_ASKS", 6)
    monkeypatch.setattr(kills, "_TOKENS", (20, 28))
    # Once the streams speak, and before they end.
    monkeypatch.setattr(kills, "_EARLY", 0.0)
    monkeypatch.setattr(kills, "_AFTER_S_MAX", 0.1)
    monkeypatch.setattr(kills, "_PIECES_S_MAX", 60.0)
    screen = io.StringIO()
    plan = Plan(demo_folder, tmp_path, 1, Progress(Console(file=screen)), seconds=4.0)
    figures = kills.measure(plan)
    assert figures["problems"] == []
    assert figures["kinds"]["all"]["faults"] >= 1
    assert figures["kinds"]["all"]["resumed_share"] == 1.0
    assert figures["tokens_lost"] == figures["tokens_added"] == 0
    assert "kills: faults under load" in screen.getvalue()
