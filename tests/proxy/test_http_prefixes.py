"""Beginnings of prompts over HTTP: what answers, log, metrics and health say of them, and whose they are."""

import contextlib
from dataclasses import asdict

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from proxy.session import mark_of
from shared.codec import encode
from shared.messages import Progress
from shared.readings import MemoryReading, PrefixReading
from tests.proxy.small_gateway import CHAT, COMPLETIONS, NAME, Gateway, chat, completion, gateway
from tests.waiting import until

ENDPOINTS = pytest.mark.parametrize(
    ("path", "body"), [(CHAT, chat), (COMPLETIONS, completion)], ids=["chat", "completions"]
)
STREAMED_OR_NOT = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path) as running:
        await running.start_worker()
        yield running


def cached(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


def usage_of(answered, *, stream):
    return answered.events[-2]["usage"] if stream else answered.body["usage"]


async def metrics(here):
    """Return every sample as {(name, values of its labels): value}."""
    raw = (await here.get("/metrics")).raw.decode()
    families = text_string_to_metric_families(raw)
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


@contextlib.contextmanager
def request_lines():
    """Collect the log's lines about requests for an answer."""
    lines = []
    with capture_logs() as logs:
        yield lines
    lines += [line for line in logs if line["event"] == "request" and line["path"].startswith("/v1/")]


# --- usage --------------------------------------------------------------------------------------------------


@ENDPOINTS
@STREAMED_OR_NOT
async def test_usage_says_how_much_of_the_prompt_was_there_already(here, path, body, stream):
    here.worker.cached = lambda submit: len(submit.prompt_ids) - 1
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    usage = usage_of(await here.post(path, body(max_tokens=5, **options)), stream=stream)
    assert cached(usage) == usage["prompt_tokens"] - 1
    here.worker.cached = lambda _submit: 0
    assert cached(usage_of(await here.post(path, body(max_tokens=5, **options)), stream=stream)) == 0


async def test_choices_that_have_their_prompt_from_the_first_one_do_not_say_it_was_there(here):
    here.worker.cached = lambda submit: len(submit.prompt_ids) - 1 if submit.sampling.choice else 1
    answered = await here.post(COMPLETIONS, completion(prompt=["abcd", "abcdef"], n=2, max_tokens=5))
    usage = answered.body["usage"]
    assert (usage["prompt_tokens"], cached(usage)) == (10, 2)


async def test_what_a_resume_finds_again_is_not_what_the_client_is_told(here):
    here.worker.cached = lambda _submit: 1
    here.worker.pause_at = 3
    asked = here.asking(COMPLETIONS, completion(prompt="abcdef", max_tokens=8))
    await until(lambda: here.live == 1 and here.paused_at(3))
    await here.kill_worker()
    await here.start_worker()
    here.worker.cached = lambda submit: len(submit.prompt_ids)
    answered = await asked
    assert (answered.headers["x-forebay-attempts"], cached(answered.body["usage"])) == ("2", 1)


async def test_a_replayed_answer_says_what_its_run_found(here):
    here.worker.cached = lambda _submit: 1
    key = {"Idempotency-Key": "one"}
    first = await here.post(COMPLETIONS, completion(max_tokens=5), headers=key)
    here.worker.cached = lambda _submit: 0
    again = await here.post(COMPLETIONS, completion(max_tokens=5), headers=key)
    assert again.raw == first.raw
    assert cached(again.body["usage"]) == 1


# --- metrics, health, log -----------------------------------------------------------------------------------


async def test_prompts_are_counted_by_lane_and_in_health_once_they_have_been_begun(here):
    here.worker.cached = lambda _submit: 1
    await here.post(COMPLETIONS, completion(prompt=["abcd", "ab"], n=2, max_tokens=5))
    await here.post(COMPLETIONS, completion(prompt="abc", max_tokens=5, service_tier="flex"))
    await here.post(COMPLETIONS, completion(prompt="abc", max_tokens=5, temperature=-1))
    samples = await metrics(here)
    counts = {key: value for key, value in samples.items() if key[0].startswith("forebay_prompt_tokens")}
    assert {key: value for key, value in counts.items() if "_created" not in key[0]} == {
        ("forebay_prompt_tokens_total", "interactive", ""): 6,
        ("forebay_prompt_tokens_total", "batch", ""): 3,
        ("forebay_prompt_tokens_cached_total", "interactive", ""): 2,
        ("forebay_prompt_tokens_cached_total", "batch", ""): 1,
    }
    ready = (await here.get("/health/ready")).body
    assert (ready["prompt_tokens"], ready["cached_tokens"]) == (9, 3)


async def test_the_prompt_of_a_client_that_leaves_counts(here):
    here.worker.cached = lambda _submit: 2
    here.worker.pause_at = 1
    asked = here.asking(COMPLETIONS, completion(prompt="abc"))
    await until(lambda: here.live == 1 and here.paused_at(1))
    asked.cancel()
    await here.idle()
    samples = await metrics(here)
    assert samples["forebay_prompt_tokens_total", "interactive", ""] == 3
    assert samples["forebay_prompt_tokens_cached_total", "interactive", ""] == 2


async def test_what_the_worker_keeps_is_in_metrics_and_health(here):
    reading = PrefixReading(1, 2, 3, 4, 5, 6, 7, 8)
    assert (await here.get("/health/ready")).body["worker"]["prefixes"] is None
    memory = MemoryReading(0, 0, 0, 0)
    progress = Progress(1, 1, "idle", 0.0, 0, (), 0, 1 << 20, 0, 0, False, memory, reading)
    here.proxy.link.take(b"w-0-1", encode(progress))
    assert (await here.get("/health/ready")).body["worker"]["prefixes"] == asdict(reading)
    samples = await metrics(here)
    assert samples["forebay_prefix_kept_bytes",] == 1
    assert samples["forebay_prefix_evictions_total",] == 4
    await here.kill_worker()
    samples = await metrics(here)
    assert samples["forebay_prefix_kept_bytes",] == 0
    assert samples["forebay_prefix_evictions_total",] == 4


async def test_the_log_says_what_was_there_of_a_prompt_and_nothing_of_requests_without_one(here):
    here.worker.cached = lambda _submit: 2
    with request_lines() as lines:
        await here.post(COMPLETIONS, completion(prompt="abc", max_tokens=5))
        await here.post(COMPLETIONS, completion(temperature=-1))
    answered, refused = lines
    assert (answered["prompt_tokens"], answered["cached_tokens"]) == (3, 2)
    assert not {"prompt_tokens", "cached_tokens", "session"} & set(refused)


# --- routing keys -------------------------------------------------------------------------------------------


@ENDPOINTS
@pytest.mark.parametrize(
    ("header", "field", "counts"),
    [("s-1", None, "s-1"), (None, "k 1\n", "k 1\n"), ("s-1", "k", "s-1")],
    ids=["header", "field", "both"],
)
async def test_requests_of_a_session_have_its_mark_in_the_log_and_never_its_name(
    here, path, body, header, field, counts
):
    headers = {} if header is None else {"x-forebay-session": header}
    given = {} if field is None else {"prompt_cache_key": field}
    with request_lines() as lines:
        answered = await here.post(path, body(max_tokens=5, **given), headers=headers)
    assert (answered.status, [line["session"] for line in lines]) == (200, [mark_of(counts)])


@ENDPOINTS
async def test_a_routing_key_that_is_none_is_a_400_that_names_it(here, path, body):
    by_field = await here.post(path, body(prompt_cache_key="x" * 1025))
    assert (by_field.status, by_field.error["param"]) == (400, "prompt_cache_key")
    by_header = await here.post(path, body(), headers={"x-forebay-session": "x" * 257})
    assert (by_header.status, by_header.error["param"]) == (400, "x-forebay-session")


async def test_a_bad_session_of_a_request_with_an_idempotency_key_is_not_stored(here):
    headers = {"Idempotency-Key": "one"}
    bad = await here.post(CHAT, chat(max_tokens=5), headers={**headers, "x-forebay-session": "ü"})
    assert (bad.status, (await here.post(CHAT, chat(max_tokens=5), headers=headers)).status) == (400, 200)


@pytest.mark.parametrize("retention", ["in_memory", "in-memory", "24h", None])
async def test_a_wish_for_how_long_prompts_are_kept_changes_nothing(here, retention):
    answered = await here.post(CHAT, chat(max_tokens=5, prompt_cache_retention=retention))
    assert answered.status == 200


# --- whose they are -----------------------------------------------------------------------------------------


async def test_the_worker_is_told_whose_beginnings_may_be_shared(tmp_path):
    here = Gateway(tmp_path / NAME)
    shy = here.add_key("shy", private_prefixes=True)
    other, third = here.add_key("other"), here.add_key("third")
    async with here:
        await here.start_worker()
        for headers in (shy, other, third, shy):
            assert (await here.post(CHAT, chat(max_tokens=2), headers=headers)).status == 200
        key_id = shy["Authorization"].split("-")[1]
        assert [submit.salt for submit in here.worker.submits] == [key_id, "", "", key_id]


async def test_where_prefixes_are_private_every_key_has_its_own_and_the_nameless_share_one(tmp_path):
    async with gateway(tmp_path, private_prefixes=True) as here:
        await here.start_worker()
        await here.post(CHAT, chat(max_tokens=2))
        assert [submit.salt for submit in here.worker.submits] == [""]
