"""A machine without a browser fails these tests, unless its environment says that it has none."""

import pytest
from _pytest.outcomes import Skipped

from tests.status_page import browser


def test_a_browser_that_is_missing_is_a_failure_that_names_it(monkeypatch, tmp_path):
    monkeypatch.delenv(browser.WITHOUT, raising=False)
    monkeypatch.setattr(browser, "DRIVER", tmp_path / "chromedriver")
    monkeypatch.setattr(browser, "BROWSER", tmp_path)
    with pytest.raises(AssertionError, match="chromedriver missing: Debian's chromium and chromium-driver"):
        browser.available()


def test_only_the_environment_s_word_makes_it_a_skip(monkeypatch):
    monkeypatch.setenv(browser.WITHOUT, "1")
    with pytest.raises(Skipped, match="no browser here"):
        browser.available()
