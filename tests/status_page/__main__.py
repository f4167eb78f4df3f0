"""How large the status page is and how soon it shows, in Chromium: `python -m tests.status_page [LOADS]`.

A gateway with a false worker and four running answers is loaded anew each time, with an empty cache. Bytes
are of all that one load fetches, figures included; paint and first numbers are from the navigation's start.
"""

import gzip
import logging
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Final

import structlog

from proxy.status.pages import _files
from tests.status_page.browser import Page, browser
from tests.status_page.stage import Stage

_LOADS: Final = 10
# Notes when the first number stands there.
_WATCH: Final = """
new MutationObserver(() => {
  const number = document.getElementById("n-speed");
  if (number && /[0-9]/.test(number.textContent)) window.firstNumbers ??= performance.now();
}).observe(document, {childList: true, subtree: true, characterData: true});
"""
_READ: Final = """
const paint = performance.getEntriesByName("first-contentful-paint")[0];
const loaded = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
const sum = (name) => loaded.reduce((all, each) => all + each[name], 0);
return paint && window.firstNumbers && document.querySelectorAll(".uplot").length === 4
  ? {paint_ms: paint.startTime, numbers_ms: window.firstNumbers, requests: loaded.length,
     plain: sum("decodedBodySize"), sent: sum("transferSize")} : null;
"""


def main() -> None:
    loads = int(sys.argv[1]) if len(sys.argv) > 1 else _LOADS
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(_sizes())
    with tempfile.TemporaryDirectory() as place, browser() as driver:
        stage = Stage(Path(place))
        try:
            _run(stage)
            page = Page(driver)
            driver.execute_cdp_cmd("Network.enable", {})
            driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
            driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _WATCH})
            taken = [_load(page, stage.here.url) for _ in range(loads)]
        finally:
            stage.close()
    last = taken[-1]
    print(f"{loads} loads: {last['requests']} requests, {last['plain']} bytes, {last['sent']} as sent")
    for name, words in (("paint_ms", "first contentful paint"), ("numbers_ms", "first numbers")):
        times = [each[name] for each in taken]
        print(f"{words}: median {statistics.median(times):.0f} ms, {min(times):.0f} to {max(times):.0f} ms")


def _sizes() -> str:
    """Return the size of the page's files, without the library's style sheet, which it doesn't load."""
    files = [body for name, _, body in _files() if name != "vendor/uplot.min.css"]
    plain, packed = sum(map(len, files)), sum(len(gzip.compress(each)) for each in files)
    return f"{len(files)} files: {plain} bytes, {packed} with gzip"


def _run(stage: Stage) -> None:
    stage.open()
    stage.answers(64)
    stage.worker(pause_at=5)
    stage.ask(4, max_tokens=300)
    stage.wait(lambda here: len(here.worker.rows) == 4)


def _load(page: Page, url: str) -> dict[str, float]:
    page.driver.get("about:blank")
    page.driver.get(url)
    page.until(lambda: page.js(_READ) is not None)
    return page.js(_READ)


if __name__ == "__main__":
    main()
