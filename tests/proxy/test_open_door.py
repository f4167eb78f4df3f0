"""An open gateway and other people's web pages: which Host and Origin come in."""

import pytest
from multidict import CIMultiDict

from proxy.open_door import OpenDoor, host_name
from shared.config import Settings
from shared.errors import PermissionDenied, SettingsError
from tests.proxy.small_gateway import CHAT, NAME, Gateway, chat, gateway

EVIL = {"Host": "evil.test:8000"}
NAMES = ("studio.test", "Tailnet.Test")


def page(host, scheme="http"):
    """Return the origin of a page; no file of this project has an address outside this machine."""
    return f"{scheme}://{host}"


def comes_in(headers, *, is_open=True):
    try:
        OpenDoor(NAMES, lambda: is_open).check(CIMultiDict(headers))
    except PermissionDenied:
        return False
    return True


@pytest.mark.parametrize(
    "host",
    [
        "",
        "127.0.0.1:8000",
        "127.0.0.1",
        "[::1]:8000",
        "[::ffff:127.0.0.1]",
        "192.0.2.7:8000",
        "localhost:8000",
        "LOCALHOST.",
        "forebay.localhost:8000",
        "gateway",
        "host.docker.internal:8000",
        "host.containers.internal",
        "studio.test:8000",
        "STUDIO.test",
        "tailnet.test",
    ],
)
def test_a_host_that_no_page_from_elsewhere_can_have_comes_in(host):
    assert comes_in({"Host": host})


@pytest.mark.parametrize(
    "host",
    [
        "evil.test:8000",
        "evil.test",
        "127.0.0.1.evil.test",
        "localhost.evil.test",
        "internal.evil.test",
        "docker.internal.evil.test",
        "a.local",
    ],
)
def test_a_host_that_a_page_may_have_brought_along_does_not(host):
    assert not comes_in({"Host": host})
    assert comes_in({"Host": host}, is_open=False)


@pytest.mark.parametrize(
    "origin",
    [
        "http://127.0.0.1:8000",
        "http://127.0.0.1:3000",
        "http://localhost:3000",
        "https://[::1]:9",
        page("app.localhost"),
        page("studio.test", "https"),
        "app://obsidian.md",
        "vscode-webview://x",
        "chrome-extension://abc",
    ],
)
def test_pages_of_this_machine_and_applications_come_in(origin):
    assert comes_in({"Host": "127.0.0.1:8000", "Origin": origin})


@pytest.mark.parametrize(
    "origin",
    [
        page("evil.test"),
        page("evil.test:8000", "https"),
        "null",
        page("192.0.2.7"),
        page("host.docker.internal"),
        "http://localhost.evil.test",
        "http://",
    ],
)
def test_pages_of_other_origins_do_not(origin):
    assert not comes_in({"Host": "127.0.0.1:8000", "Origin": origin})
    assert comes_in({"Host": "127.0.0.1:8000", "Origin": origin}, is_open=False)


def test_the_gateways_own_page_comes_in_under_any_of_its_names():
    assert comes_in({"Host": "gateway:8000", "Origin": "http://gateway:8000"})
    assert not comes_in({"Host": "gateway:8000", "Origin": "http://gateway:9000"})


@pytest.mark.parametrize("host", ["[::1", "a:b:c", "]", "a\x00b", "x" * 9000])
def test_what_is_no_host_harms_nobody(host):
    assert isinstance(host_name(host), str)
    comes_in({"Host": host, "Origin": f"http://{host}"})


async def test_without_keys_a_rebound_page_reads_nothing_and_is_told_what_to_do(tmp_path):
    async with gateway(tmp_path) as here:
        await here.start_worker()
        for path in ("/", "/status", "/metrics", "/v1/models", "/docs", "/health/live"):
            refused = await here.get(path, headers=EVIL)
            assert (refused.status, refused.error["code"]) == (403, "permission_denied")
        assert "proxy.host_names" in refused.error["message"]
        assert (await here.post(CHAT, chat(), headers=EVIL)).status == 403
        untyped = b'{"model": "small", "messages": [{"role": "user", "content": "Hi"}]}'
        sent = await here.post(
            CHAT, untyped, headers={"Origin": page("evil.test")}, skip_auto_headers=["Content-Type"]
        )
        assert (sent.status, here.worker.submits) == (403, [])
        assert (await here.post(CHAT, chat())).status == 200


async def test_names_are_settings(tmp_path):
    async with gateway(tmp_path, host_names=["evil.test"]) as here:
        assert (await here.get("/health/live", headers=EVIL)).status == 200


async def test_with_a_key_any_host_comes_in_and_an_admin_key_is_none(tmp_path):
    here = Gateway(tmp_path / NAME)
    here.add_key("ops", admin=True)
    async with here:
        assert (await here.get("/health/live", headers=EVIL)).status == 403
        here.add_key("ci")
        await here.proxy.admin.reload()
        assert (await here.get("/health/live", headers=EVIL)).status == 200


def test_names_are_bounded():
    with pytest.raises(SettingsError, match="host_names"):
        Settings.load(proxy={"host_names": ["x"] * 65})
