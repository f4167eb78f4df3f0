"""Gateways that several tests share, and short-lived ones of a small model."""

import asyncio
from pathlib import Path

import pytest

from tests.served import small_model
from tests.served.client import BODIES, together
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


@pytest.fixture(scope="session")
def undisturbed(gateway) -> list[str]:
    """What the streams that others disturb say of a gateway that nobody harms."""
    return [said.text for said in asyncio.run(together(gateway.url, BODIES))]


@pytest.fixture(scope="session")
def mortal(tmp_path_factory, demo_folder):
    """A gateway for all that kill something of it, replace it, and at last stop it.

    Its back-off grows with each death until a new supervisor begins, so the tests' order saves waiting. When
    it is stopped, a slow machine may finish what runs.
    """
    settings = {"FOREBAY_WORKER__RESTARTS_MAX": "100", "FOREBAY_PROXY__DRAIN_S": "250"}
    with running(tmp_path_factory.mktemp("mortal"), demo_folder.path, **settings) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory) -> Path:
    """A model that loads in no time, for gateways of which no test asks what its answers say."""
    return small_model.write(tmp_path_factory.mktemp("models")).path


@pytest.fixture
def fresh_gateway(tmp_path, small_folder):
    """A gateway for one test, which may do to it what it likes."""
    with running(tmp_path, small_folder) as gateway:
        yield gateway
