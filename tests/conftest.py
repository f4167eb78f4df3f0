"""What every test may ask for: the demo model, brought once; and in which order and where tests run."""

from pathlib import Path
from typing import Any, Final

import pytest
import structlog
from hypothesis import HealthCheck, settings

from ops import demo
from shared.config import Settings
from shared.model_folder import ModelFolder

# No law depends on how fast the machine is.
settings.register_profile(
    "any machine", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# Those that take long come first: else one of two processes works on them alone at the end.
_FIRST: Final = ("served", "chaos", "simulation", "worker", "status_page", "plan", "ops")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(_FIRST)}
    here = Path(__file__).parent
    items.sort(key=lambda item: ranks.get(item.path.relative_to(here).parts[0], len(ranks)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.dealt_by_file import DealtByFile  # noqa: PLC0415 (only where there are several processes)

    return DealtByFile(config, log)


@pytest.fixture(scope="session")
def demo_folder() -> ModelFolder:
    """The demo model in FOREBAY_HOME, fetched by the first run that needs it."""
    return demo.bring(Settings.load().home_folder)


@pytest.fixture(autouse=True)
def logs_as_they_were():
    """Undo what a test configured: its stderr may be a captured one, which is closed by now."""
    yield
    structlog.reset_defaults()
