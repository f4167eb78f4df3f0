"""What every test may ask for: the demo model, brought once."""

import pytest
import structlog

from ops import demo
from shared.config import Settings
from shared.model_folder import ModelFolder


@pytest.fixture(scope="session")
def demo_folder() -> ModelFolder:
    """The demo model in FOREBAY_HOME, fetched by the first run that needs it."""
    return demo.bring(Settings.load().home_folder)


@pytest.fixture(autouse=True)
def logs_as_they_were():
    """Undo what a test configured: its stderr may be a captured one, which is closed by now."""
    yield
    structlog.reset_defaults()
