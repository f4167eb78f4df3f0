"""A headless Chromium, as Debian has it, and the status page in it as tests read it."""

import base64
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.common.exceptions import TimeoutException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

BROWSER, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
WITHOUT = "FOREBAY_TESTS_WITHOUT_BROWSER"
PATIENCE_S = 30
_ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--no-first-run", "--hide-scrollbars",
    "--force-device-scale-factor=1", "--lang=en-GB", "--disable-features=Translate,OptimizationHints",
)  # fmt: skip


def available() -> None:
    """Skip only where the environment says that there is none; else one that is missing is a failure."""
    if os.environ.get(WITHOUT) == "1":
        pytest.skip(f"{WITHOUT} says that there is no browser here")
    missing = [str(each) for each in (BROWSER, DRIVER) if not each.exists()]
    assert not missing, f"{', '.join(missing)} missing: Debian's chromium and chromium-driver, or {WITHOUT}=1"


@contextlib.contextmanager
def browser() -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = str(BROWSER)
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # With both paths given selenium looks for nothing, and so fetches nothing.
    driver = Chrome(options=options, service=ChromeService(executable_path=str(DRIVER)))
    try:
        driver.set_page_load_timeout(PATIENCE_S)
        driver.set_script_timeout(PATIENCE_S)
        yield driver
    finally:
        driver.quit()


class Page:
    """The status page of one gateway, open in a browser."""

    def __init__(self, driver: Chrome):
        self.driver = driver
        self.expected: tuple[str, ...] = ()

    def open(self, url, *, width=1400, height=1000, scheme="light"):
        self.look(width, height, scheme)
        self.driver.get(url)
        self.until(lambda: self.word != "Looking")
        return self

    def look(self, width, height=1000, scheme="light"):
        """Set how large the window is and which colours its reader prefers."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def until(self, holds):
        """Wait until it holds."""
        try:
            WebDriverWait(self.driver, PATIENCE_S, poll_frequency=0.05).until(lambda _driver: holds())
        except TimeoutException as problem:
            raise AssertionError(f"it never came; the page says {self.find('main').text[:400]}") from problem

    def until_says(self, *texts, of="says"):
        """Wait until an element has all these texts."""
        self.until(lambda: all(text in self.text(of) for text in texts))

    def text(self, name):
        """Return an element's text as it reads, whatever keeps numbers and units together."""
        return self.js(
            "return document.getElementById(arguments[0]).textContent.replaceAll('\\u00a0', ' ')", name
        )

    @property
    def word(self):
        return self.text("word")

    @property
    def tone(self):
        return self.js("return document.body.dataset.tone")

    def js(self, script, *given):
        return self.driver.execute_script(script, *given)

    def module(self, name, expression, *given):
        """Return what an expression over a module's exports, `it`, and `given` comes to."""
        script = (
            "const [path, given, done] = [arguments[0], arguments[1], arguments[2]];"
            f"import(path).then((it) => done(({expression})))"
        )
        return self.driver.execute_async_script(script, f"/status/assets/{name}", list(given))

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def click(self, selector):
        self.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", self.find(selector))
        self.find(selector).click()

    def console(self):
        """Return the warnings and errors of the console since the last look."""
        log = self.driver.get_log("browser")
        return [each["message"] for each in log if each["level"] in ("SEVERE", "WARNING")]

    def picture(self, path):
        """Write a picture of the whole page."""
        height = self.js("return document.documentElement.scrollHeight")
        width = self.js("return innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        taken = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
        )
        Path(path).write_bytes(base64.b64decode(taken["data"]))
