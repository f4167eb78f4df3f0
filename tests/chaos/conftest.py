"""The choice between every point and some of them, and the constants that would make small scripts long."""

import contextlib
import signal
import sys
from collections.abc import Iterator

import pytest

from proxy.admission import parking
from worker import foreign_signals


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-points", action="store_true", help="chaos: try every point, for minutes")


@pytest.fixture
def all_points(request: pytest.FixtureRequest) -> bool:
    """Whether there is time for all of it."""
    return bool(request.config.getoption("--all-points", default=False))


@pytest.fixture
def early_parks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a row be parked after its first token."""
    monkeypatch.setattr(parking, "_RIPE_TOKENS", 1)


class _BlockedTogether:
    """Blocks signals as `foreign_signals.blocked` does, for supervisors that share one thread.

    Each of them would put the mask back as it found it, and so the last one might leave the others' blocks.
    """

    def __init__(self) -> None:
        self._inside = 0

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        numbers = foreign_signals.watched(sys.platform)
        self._inside += 1
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


@pytest.fixture(autouse=True)
def signals_that_stay_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let several supervisors in this process start their workers at a time."""
    monkeypatch.setattr(foreign_signals, "blocked", _BlockedTogether().blocked)
