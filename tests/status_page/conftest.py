"""A browser for all of them, and for each test a gateway on stage and its page."""

import pytest

from tests.status_page.browser import Page, available, browser
from tests.status_page.stage import Stage


@pytest.fixture(scope="session")
def driver():
    available()
    with browser() as running:
        yield running


@pytest.fixture
def stage(tmp_path):
    made = Stage(tmp_path)
    made.open()
    yield made
    made.close()


@pytest.fixture
def page(driver, stage):
    """Return a page for the test to open; at its end the console has nothing but what it `expected`."""
    page = Page(driver)
    page.console()
    yield page
    unexpected = [each for each in page.console() if not any(word in each for word in page.expected)]
    driver.get("about:blank")
    assert unexpected == []
