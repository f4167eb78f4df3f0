"""The status page's files as they are served: kinds, headers, tags; and that all of them are its own."""

import gzip
import re
from importlib import resources

import pytest

from proxy.status.pages import _files
from tests.proxy.small_gateway import gateway

ASSETS = resources.files("proxy.status") / "assets"
FILES = {name: (kind, body) for name, kind, body in _files()}
OWN = [name for name in FILES if not name.startswith("vendor/")]
UPLOT = "vendor/uplot.iife.min.js"
BYTES_MAX = 125_000


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path) as running:
        yield running


def address(name):
    return "/" if name == "index.html" else f"/status/assets/{name}"


@pytest.mark.parametrize("name", sorted(FILES))
async def test_a_file_is_served_as_what_it_is_and_nothing_else_may_run_beside_it(here, name):
    kind, body = FILES[name]
    answered = await here.get(address(name))
    assert (answered.status, answered.raw) == (200, body)
    assert answered.headers["Content-Type"] == f"{kind}; charset=utf-8"
    policy = answered.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answered.headers["X-Content-Type-Options"] == "nosniff"
    assert (answered.headers["Cache-Control"], answered.headers["Vary"]) == ("no-cache", "Accept-Encoding")


@pytest.mark.parametrize("given", ["W/{}", "{}", '"other", W/{}', "*"])
async def test_who_has_a_file_already_isn_t_sent_it_again(here, given):
    tag = (await here.get("/")).headers["ETag"]
    assert tag.startswith('W/"'), "what is sent is compressed for some"
    again = await here.get("/", headers={"If-None-Match": given.format(tag.removeprefix("W/"))})
    assert (again.status, again.raw, again.headers["ETag"]) == (304, b"", tag)
    other = await here.get("/", headers={"If-None-Match": '"0000000000000000"'})
    assert (other.status, other.raw) == (200, FILES["index.html"][1])


async def test_files_and_figures_are_sent_compressed_to_who_reads_that(here):
    for path in ("/", address(UPLOT), "/status"):
        answered = await here.get(path, headers={"Accept-Encoding": "gzip"})
        assert answered.headers["Content-Encoding"] == "gzip"
        plain = await here.get(path, headers={"Accept-Encoding": "identity"})
        assert "Content-Encoding" not in plain.headers


async def test_head_tells_the_headers_alone(here):
    for path in ("/", "/status", "/status/history", address("page.js")):
        async with here.session.head(path) as response:
            assert (response.status, await response.read()) == (200, b"")


@pytest.mark.parametrize(
    "path",
    ["/status/assets/", "/status/assets/no.js", "/status/assets/../pages.py", "/status/assets/index.html"],
)
async def test_what_isn_t_there_is_a_404_like_any_other(here, path):
    answered = await here.get(path)
    assert (answered.status, answered.error["code"]) == (404, "route_not_found")


async def test_figures_are_kept_by_nobody_and_nothing_can_be_posted(here):
    answered = await here.get("/status")
    assert answered.headers["Cache-Control"] == "no-store"
    assert answered.headers["Content-Type"].startswith("application/json")
    assert (await here.post("/", {})).status == 405


def test_every_file_that_is_named_is_there_and_every_own_file_is_named_by_another():
    named = set()
    for name in OWN:
        named |= set(re.findall(r"/status/assets/([\w./-]+)", FILES[name][1].decode()))
    assert named <= set(FILES)
    assert set(OWN) - named == {"index.html"}


def test_the_page_has_no_script_style_or_handler_in_its_markup():
    markup = FILES["index.html"][1].decode()
    assert re.findall(r"<script(?![^>]*\bsrc=)[^>]*>|<style|\sstyle=|\son\w+=|javascript:", markup) == []
    for name in OWN:
        assert (
            re.findall(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", FILES[name][1].decode()
            )
            == []
        )


def test_each_own_file_says_in_its_first_lines_what_it_is_for_and_is_no_longer_than_a_file_may_be():
    for name in OWN:
        lines = FILES[name][1].decode().splitlines()
        assert any(line.lstrip().startswith(("//", "/*", "<!-- ")) for line in lines[:2]), name
        assert len(lines) <= 400, name


def test_all_that_the_page_loads_is_small():
    loaded = [FILES[name][1] for name in (*OWN, UPLOT)]
    assert sum(map(len, loaded)) <= BYTES_MAX
    assert sum(len(gzip.compress(body)) for body in loaded) <= BYTES_MAX / 2
