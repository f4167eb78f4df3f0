"""One gateway for the tests that leave it as it was, and prompts whose greedy answers are long enough."""

import pytest

from tests.served.gateway import running


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-schemas", action="store_true", help="served: two hundred JSON schemas, for minutes"
    )


@pytest.fixture(scope="session")
def gateway(tmp_path_factory, demo_folder):
    """A gateway shared by all tests that leave it, and its worker, as they were."""
    with running(tmp_path_factory.mktemp("served"), demo_folder.path) as gateway:
        yield gateway


@pytest.fixture
def fresh_gateway(tmp_path, demo_folder):
    """A gateway for one test, which may do to it what it likes."""
    with running(tmp_path, demo_folder.path) as gateway:
        yield gateway
