"""Orders on the public port: who may give them, that they do what the socket's do, and what a page can't."""

import asyncio

import pytest
from structlog.testing import capture_logs

from proxy.keys import KEY_FILE_NAME, KeyFile
from shared.messages import Restart
from tests.proxy.small_gateway import CHAT, NAME, Gateway, chat, let_end, occupied
from tests.proxy.test_http_admin import BAD, leave_as_planned, quarantined, supervisor_heard
from tests.waiting import until

LANES = [{"name": "interactive", "reserved_slots": 0}]
EVIL = "http" + "://evil.test"
ORDERS = {
    "reload": {},
    "restart": {"drain": False, "timeout_s": 600},
    "drain": {"on": True},
    "quarantine/clear": {"fingerprints": None},
}


@pytest.fixture
async def here(tmp_path):
    """A gateway with an admin key, `admin`, and no other: its door is open."""
    running = Gateway(tmp_path / NAME, LANES)
    running.admin = running.add_key("ops", admin=True)
    async with running:
        await running.start_worker(slots=1)
        yield running


async def order(here, name, body, **headers):
    return await here.post(f"/admin/{name}", body, headers={**here.admin, **headers})


# --- what they do -------------------------------------------------------------------------------------------


async def test_drains_restarts_and_reloads_do_what_they_do_on_the_socket(here):
    told = await order(here, "drain", {"on": True})
    assert (told.status, told.body["draining"]) == (200, True)
    assert (await here.post(CHAT, chat())).error["code"] == "draining"
    assert not (await order(here, "drain", {"on": False})).body["draining"]
    begun = await order(here, "restart", {"drain": True, "timeout_s": 600})
    assert (begun.status, begun.body["restart"]["old_epoch"]) == (202, 1)
    assert (await supervisor_heard(here, Restart)).epoch == 1
    assert (await order(here, "restart", {})).body == {"problem": "a restart is under way already"}
    await leave_as_planned(here)
    await until(lambda: here.proxy.admin._restart.over)
    status = await here.get("/admin/status", headers=here.admin)
    assert (status.body["restart"]["phase"], status.headers["Cache-Control"]) == ("done", "no-store")
    reloaded = await order(here, "reload", {})
    assert (reloaded.status, reloaded.body["keys"], reloaded.body["lanes"]) == (200, 1, ["interactive"])


async def test_the_quarantine_is_listed_and_cleared(here):
    quarantined(here, BAD)
    listed = await here.get("/admin/quarantine", headers=here.admin)
    assert [each["fingerprint"] for each in listed.body["entries"]] == [BAD]
    assert (await order(here, "quarantine/clear", {"fingerprints": [BAD]})).body["cleared"] == 1
    assert (await here.get("/admin/quarantine", headers=here.admin)).body == {"entries": []}


async def test_a_stop_is_not_taken_and_the_refusal_says_why(here):
    refused = await order(here, "stop", {"at_once": True})
    assert (refused.status, "`forebay stop`" in refused.body["problem"]) == (403, True)
    assert (await here.post("/admin/stop", {})).status == 401
    assert (await here.get("/admin/snapshot", headers=here.admin)).status == 404
    assert (await here.post(CHAT, chat())).status == 200


async def test_each_order_is_logged_with_the_keys_name_and_questions_are_not(here):
    with capture_logs() as lines:
        await order(here, "drain", {"on": False})
        await order(here, "drain", {})
        await here.get("/admin/status", headers=here.admin)
    assert [(line["order"], line["by"], line["status"]) for line in lines if line["event"] == "order"] == [
        ("drain", "ops", 200),
        ("drain", "ops", 400),
    ]


# --- who may ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*ORDERS, "stop"])
async def test_without_an_admin_key_nothing_is_ordered(here, name):
    ordinary, body = here.add_key("ci"), ORDERS.get(name, {})
    await here.proxy.admin.reload()
    admin_text = here.admin["Authorization"].removeprefix("Bearer ")
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer fb-aaaaaaaa-" + "x" * 43}, 401),
        ({"x-api-key": admin_text}, 401),
        ({"Authorization": "Basic YTpi"}, 401),
        (ordinary, 403),
    ):
        refused = await here.post(f"/admin/{name}", body, headers=headers)
        assert (refused.status, list(refused.body)) == (status, ["problem"])
        assert ("WWW-Authenticate" in refused.headers) == (status == 401)
    assert not here.proxy.dispatcher.draining
    assert here.proxy.admin._restart is None


@pytest.mark.parametrize("path", ["/admin/status", "/admin/quarantine"])
async def test_without_an_admin_key_nothing_is_told(here, path):
    assert (await here.get(path)).status == 401
    assert (await here.get(path, headers=here.admin)).status == 200


async def test_where_no_admin_key_exists_orders_are_refused_with_what_to_do(tmp_path):
    here = Gateway(tmp_path / NAME)
    ordinary = here.add_key("ci")
    async with here:
        for headers in ({}, ordinary):
            refused = await here.post("/admin/drain", {"on": True}, headers=headers)
            assert (refused.status, "forebay keys add NAME --admin" in refused.body["problem"]) == (403, True)
        assert not here.proxy.dispatcher.draining


async def test_an_admin_key_that_was_rotated_or_revoked_orders_nothing_after_the_reload(here, tmp_path):
    file = KeyFile(tmp_path / NAME / KEY_FILE_NAME)
    new = {"Authorization": f"Bearer {file.rotate('ops').text}"}
    assert (await order(here, "reload", {})).status == 200
    assert (await order(here, "reload", {})).status == 401
    file.revoke("ops")
    assert (await here.post("/admin/reload", {}, headers=new)).status == 200
    assert (await here.post("/admin/reload", {}, headers=new)).status == 403


async def test_an_admin_key_makes_no_requests_and_the_door_stays_open_for_others(here):
    refused = await here.post(CHAT, chat(), headers=here.admin)
    assert (refused.status, refused.error["code"]) == (403, "permission_denied")
    assert "'ops' is an admin key" in refused.error["message"]
    assert (await here.get("/v1/models", headers=here.admin)).status == 403
    assert (await here.post(CHAT, chat())).status == 200


# --- what can't be used -------------------------------------------------------------------------------------


async def test_what_a_page_of_another_origin_could_send_is_no_order(here):
    """Unasked, browsers send neither Authorization nor JSON elsewhere; OPTIONS is the question."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        refused = await here.post(
            "/admin/drain", b'{"on": true}', headers={**here.admin, "Content-Type": kind}
        )
        assert (refused.status, list(refused.body)) == (415, ["problem"])
    here.add_key("ci")
    await here.proxy.admin.reload()  # Until then the door is open, and takes nothing from that origin at all.
    asked = {"Origin": EVIL, "Access-Control-Request-Method": "POST"}
    async with here.session.options("/admin/drain", headers=asked) as answer:
        assert answer.status == 405
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    answered = await order(here, "drain", {"on": False}, Origin=EVIL)
    assert not [name for name in answered.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("drain", {}, 400),
        ("drain", {"on": "yes"}, 400),
        ("drain", b"{", 400),
        ("restart", {"timeout_s": 0}, 400),
        ("quarantine/clear", {"fingerprints": ["../x"]}, 400),
        ("drain", b'"' + b"x" * 100_000 + b'"', 413),
        ("nosuch", {}, 404),
        ("status", {}, 405),
    ],
)
async def test_a_body_or_a_url_that_is_no_order_is_refused_with_a_problem(here, path, body, status):
    headers = {**here.admin, "Content-Type": "application/json"}
    refused = await here.post(f"/admin/{path}", body, headers=headers)
    assert (refused.status, list(refused.body)) == (status, ["problem"])
    assert not here.proxy.dispatcher.draining


async def test_a_body_in_pieces_is_bounded_too(here):
    async def pieces():
        for _ in range(20):
            yield b" " * 8192

    headers = {**here.admin, "Content-Type": "application/json"}
    async with here.session.post("/admin/drain", data=pieces(), headers=headers) as answer:
        assert answer.status == 413


async def test_a_refused_order_is_no_refused_request(here):
    await here.post("/admin/drain", {"on": True})
    assert "invalid_api_key" not in (await here.get("/metrics")).raw.decode()
    tasks = await occupied(here)
    assert len(await let_end(here, tasks)) == 1
    await asyncio.gather(*tasks)
