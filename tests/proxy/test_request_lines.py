"""The log's line of a request: what it says of each outcome, and what it never says."""

import asyncio
import logging
import re
from dataclasses import fields
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from proxy.request_line import RequestLine
from shared import logs
from shared.config import LogSettings, Settings
from tests.proxy.small_gateway import (
    CHAT,
    COMPLETIONS,
    NAME,
    TEXT,
    Gateway,
    chat,
    completion,
    gateway,
    ids,
    occupied,
)
from tests.waiting import until

TOKENS = len(ids(TEXT))
DOCUMENT = Path(__file__).parents[2] / "ops" / "logs.md"
LANES = [{"name": "interactive", "reserved_slots": 0}]


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path, lanes=LANES) as running:
        await running.start_worker(slots=1)
        yield running


@pytest.fixture
def said():
    """Return the lines of requests so far."""
    with capture_logs() as lines:
        yield lambda: [line for line in lines if line["event"] == "request"]


# --- outcomes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_is_answered(here, said, stream):
    here.worker.cached = lambda _submit: 1
    await here.post(COMPLETIONS, completion(stream=stream), headers={"x-request-id": "mine"})
    await until(said)
    (line,) = said()
    times = {name: line.pop(name) for name in ("queue_ms", "ttft_ms", "total_ms")}
    assert 0 <= times["queue_ms"] <= times["ttft_ms"] <= times["total_ms"]
    assert line == {
        "event": "request",
        "log_level": "info",
        "id": "mine",
        "method": "POST",
        "path": COMPLETIONS,
        "status": 200,
        "outcome": "completed",
        "lane": "interactive",
        "streamed": stream,
        "prompt_tokens": 2,
        "cached_tokens": 1,
        "output_tokens": TOKENS,
        "finish_reason": "stop",
        "attempts": 1,
        "parks": 0,
    }


async def test_answers_that_end_for_different_reasons_are_mixed(here, said):
    here.answer = lambda submit: ids("x" * 9) if submit.sequence.endswith("/0") else ids("y")
    await here.post(COMPLETIONS, completion(n=2, max_tokens=5))
    assert (said()[0]["finish_reason"], said()[0]["output_tokens"]) == ("mixed", 6)


async def test_a_stop_string_is_a_stop(here, said):
    await here.post(COMPLETIONS, completion(stop="o"))
    assert (said()[0]["outcome"], said()[0]["finish_reason"]) == ("completed", "stop")


async def test_a_request_that_is_refused_says_by_what_code_at_info(here, said):
    await here.post(CHAT, chat(temperature=-1))
    await here.post(CHAT, chat(model="other"))
    await here.get("/nosuch")
    here.proxy.dispatcher.draining = True
    await here.post(CHAT, chat())
    assert [(line["outcome"], line["status"], line["code"], line["log_level"]) for line in said()] == [
        ("refused", 400, "invalid_request_error", "info"),
        ("refused", 404, "model_not_found", "info"),
        ("refused", 404, "route_not_found", "info"),
        ("refused", 503, "draining", "info"),
    ]


async def test_what_waited_in_vain_is_refused_and_what_had_begun_is_failed(here, said):
    tasks = await occupied(here, queued=1, stream=True)
    here.proxy.dispatcher.fail_all(
        here.proxy.dispatcher._deaths.crashed(next(iter(here.proxy.dispatcher._live)), "x")
    )
    await asyncio.gather(*tasks)
    await until(lambda: len(said()) == 2)
    by_status = {line["status"]: (line["outcome"], line["code"]) for line in said()}
    assert by_status == {200: ("failed", "worker_crashed"), 503: ("refused", "worker_crashed")}


async def test_a_fault_of_the_gateways_own_is_failed(here, said):
    here.proxy.measurer.measure = None
    await here.post(CHAT, chat())
    assert [(line["outcome"], line["status"], line["code"]) for line in said()] == [
        ("failed", 500, "server_error")
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves(here, said, stream):
    (task,) = await occupied(here, stream=stream)
    task.cancel()
    await until(said)
    (line,) = said()
    assert (line["outcome"], line["status"], line["output_tokens"]) == ("left", 499, 1)
    assert not {"code", "finish_reason"} & set(line)


async def test_an_answer_that_survived_a_death_says_so(here, said):
    here.worker.pause_at = 3
    task = here.asking(CHAT, chat())
    await until(lambda: here.paused_at(3))
    await here.replace_worker()
    await task
    assert (said()[0]["outcome"], said()[0]["attempts"]) == ("completed", 2)


async def test_a_replayed_answer_is_marked(here, said):
    for _ in range(2):
        await here.post(CHAT, chat(), headers={"Idempotency-Key": "k"})
    first, second = said()
    assert ("replayed" in first, second["replayed"], second["outcome"]) == (False, True, "completed")


async def test_the_line_has_the_keys_name_and_class(tmp_path, said):
    here = Gateway(tmp_path / NAME)
    key = here.add_key("Müller's laptop", key_class="team-a")
    async with here:
        await here.start_worker()
        await here.post(CHAT, chat(), headers=key)
        await here.post(CHAT, chat())
    known, unknown = said()
    assert (known["key"], known["key_class"]) == ("Müller's laptop", "team-a")
    assert ("key" in unknown, unknown["code"]) == (False, "invalid_api_key")


async def test_what_machines_ask_all_the_time_is_at_debug(here, said):
    for path in (
        "/",
        "/health/live",
        "/health/ready",
        "/metrics",
        "/status",
        "/status/history",
        "/admin/status",
    ):
        await here.get(path)
    assert {line["log_level"] for line in said()} == {"debug"}
    await here.get("/v1/models")
    assert said()[-1]["log_level"] == "info"


# --- prompts ------------------------------------------------------------------------------------------------

SECRET = "the code is 4711"


async def ask_secrets(here):
    said = [{"role": "system", "content": SECRET}, {"role": "user", "content": "Hi xx"}]
    await here.post(CHAT, chat(messages=said, max_tokens=5))
    await here.post(COMPLETIONS, completion(prompt=[SECRET, "b"], max_tokens=5))
    await here.post(CHAT, chat(messages=said, temperature=-1))
    here.proxy.measurer.measure = None
    await here.post(CHAT, chat(messages=said))


async def test_no_word_of_a_prompt_is_in_the_log_at_any_level(here):
    with capture_logs() as lines:
        await ask_secrets(here)
    assert len([line for line in lines if line["event"] == "request"]) == 4
    assert "4711" not in repr(lines)


class Telling(Gateway):
    def read(self):
        settings = super().read()
        return settings.model_copy(update={"log": LogSettings(prompts=True)})


async def test_where_it_is_asked_for_a_line_has_the_beginning_of_the_prompt_and_a_warning_says_so(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("proxy.request_line.PROMPT_CHARS_MAX", 32)
    with capture_logs() as lines:
        async with Telling(tmp_path / NAME, LANES) as here:
            await here.start_worker()
            await ask_secrets(here)
    assert [line["log_level"] for line in lines if "log.prompts" in line["event"]] == ["warning"]
    chatted, completed, refused, _ = (line for line in lines if line["event"] == "request")
    assert chatted["prompt"].startswith(f"system: {SECRET}\nuser: H")
    assert len(chatted["prompt"]) == 32
    assert completed["prompt"] == f"{SECRET}\nb"
    assert "prompt" not in refused


# --- the form -----------------------------------------------------------------------------------------------


@pytest.fixture
def own_logs():
    """Let a test configure logging."""
    root = logging.getLogger()
    before = list(root.handlers)
    yield
    structlog.reset_defaults()
    root.handlers[:] = before


@pytest.mark.usefixtures("own_logs")
async def test_no_path_and_no_header_forges_a_line(here, capsys):
    logs.configure(LogSettings())
    reader, writer = await here.raw()
    target = b"/v1/%0A12:00:00%20forged%1B[2K"
    writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nx-request-id: a\x9b2Kb\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    writer.close()
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "path='/v1/\\n12:00:00 forged\\x1b[2K'" in line and "id=req_" in line]
    assert all(line.isprintable() for line in said)


def named(heading):
    """Return the fields in the table under a heading of the document."""
    part = DOCUMENT.read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([a-z_]+)` \|", part, re.MULTILINE)


def test_the_document_names_every_field_and_no_other():
    assert named("A request: `event` is `request`") == [field.name for field in fields(RequestLine)]
    assert named("Every line") == list(logs.COMMON_FIELDS)


def test_logs_say_no_prompts_unless_asked():
    assert Settings.load().log.prompts is False
