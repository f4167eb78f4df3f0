"""Gateways that several tests share, and short-lived ones of a small model."""

import asyncio
from pathlib import Path

import pytest

from tests.served import small_model
from tests.served.client import together
from tests.served.disturbed import BODIES
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
def small_folder(tmp_path_factory) -> Path:
    """A model that loads in no time, for gateways of which no test asks for sense in what it says."""
    return small_model.write(tmp_path_factory.mktemp("models")).path


@pytest.fixture(scope="session")
def small_gateway(tmp_path_factory, small_folder):
    """Another one for all that leave it as it was: its model says much in no time."""
    with running(tmp_path_factory.mktemp("small"), small_folder) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def mortal(tmp_path_factory, small_folder):
    """A gateway for all that kill something of it, replace it, and at last stop it.

    Its back-off grows with each death until a new supervisor begins, so the tests' order saves waiting. When
    it is stopped, a slow machine may finish what runs.
    """
    settings = {
        "FOREBAY_WORKER__RESTARTS_MAX": "100",
        "FOREBAY_WORKER__HANG_FLOOR_S": "3",
        "FOREBAY_PROXY__DRAIN_S": "250",
    }
    with running(tmp_path_factory.mktemp("mortal"), small_folder, **settings) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def undisturbed(mortal) -> list[str]:
    """What the streams say before anybody has harmed their gateway."""
    texts = [said.text for said in asyncio.run(together(mortal.url, BODIES))]
    assert len(set(texts)) == len(BODIES), "else nobody would see streams that took each other's places"
    return texts


@pytest.fixture
def fresh_gateway(tmp_path, small_folder):
    """A gateway for one test, which may do to it what it likes."""
    with running(tmp_path, small_folder) as gateway:
        yield gateway
