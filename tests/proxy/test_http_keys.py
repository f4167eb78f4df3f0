"""Keys over HTTP: who is let in, what a key is held to, and that whatever it took is given back."""

import asyncio
import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.failures import failure_response
from shared.errors import RateLimited
from shared.model_folder import DEMO_MODEL_NAME
from tests.proxy.small_gateway import CHAT, COMPLETIONS, NAME, TEXT, Gateway, chat, completion, gateway, ids
from tests.waiting import until

TOKENS = len(ids(TEXT))
PROMPT = 2  # tokens of a completion's prompt here
LANE = "x-forebay-lane"
STREAMED_OR_NOT = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@contextlib.asynccontextmanager
async def guarded(tmp_path, lanes=None, name=NAME, slots=4, **bounds):
    """Run a gateway with a worker and one key, `ci`; `key` of it holds the headers that show the key."""
    here = Gateway(tmp_path / name, lanes)
    here.key = here.add_key("ci", **bounds)
    async with here:
        await here.start_worker(slots=slots)
        yield here
        assert {use.live for use in uses(here)} <= {0}


def uses(here):
    return here.proxy.quotas._uses.values()


def check_refusal(answered, status, code, param=None):
    assert (answered.status, answered.error["code"], answered.error["param"]) == (status, code, param)
    assert answered.headers["x-forebay-dropped-reason"] == (code or "invalid_request_error")
    assert answered.headers["x-request-id"]
    assert ("Retry-After" in answered.headers) == (status in {429, 503})
    if status == 429:
        assert answered.error["type"] == "rate_limit_error"
        assert 1 <= int(answered.headers["Retry-After"]) <= 60
    else:
        assert answered.headers["x-should-retry"] == "false"


async def occupied(here, **asked):
    """Have one answer run that doesn't end."""
    here.worker.pause_at = 1
    task = here.asking(COMPLETIONS, completion(**asked), headers=here.key)
    await until(lambda: here.worker.paused_at(1))
    return task


# --- who --------------------------------------------------------------------------------------------------


async def test_either_header_shows_a_key(tmp_path):
    async with guarded(tmp_path) as here:
        text = here.key["Authorization"].removeprefix("Bearer ")
        for headers in (here.key, {"x-api-key": text}, {"authorization": f"bearer {text}"}):
            assert (await here.post(CHAT, chat(), headers=headers)).text == TEXT


BAD = {
    "none": {},
    "unknown": {"Authorization": "Bearer fb-aaaaaaaa-" + "x" * 43},
    "not a key": {"x-api-key": "sk-123"},
    "another scheme": {"Authorization": "Basic YTpi"},
    "endless": {"Authorization": "Bearer " + "x" * 4000},
}


@pytest.mark.parametrize("headers", BAD.values(), ids=BAD.keys())
async def test_without_a_good_key_nothing_is_answered_or_even_read(tmp_path, headers):
    async with guarded(tmp_path) as here:
        for path, body in ((CHAT, chat()), (COMPLETIONS, completion(stream=True)), (CHAT, {"no": "sense"})):
            answered = await here.post(path, body, headers=headers)
            check_refusal(answered, 401, "invalid_api_key")
            assert LANE not in answered.headers
        check_refusal(await here.get("/v1/models", headers=headers), 401, "invalid_api_key")
        check_refusal(await here.get("/v1/models/small", headers=headers), 401, "invalid_api_key")
        assert here.worker.submits == []
        for open_door in ("/health/live", "/health/ready", "/metrics"):
            assert (await here.get(open_door, headers=headers)).status == 200


async def test_a_key_is_in_no_answer(tmp_path):
    async with guarded(tmp_path) as here:
        wrong = "fb-aaaaaaaa-" + "x" * 43
        for answered in (
            await here.post(CHAT, chat(), headers={"x-api-key": wrong}),
            await here.get("/metrics", headers=here.key),
        ):
            assert wrong.encode() not in answered.raw
            assert here.key["Authorization"][7:].encode() not in answered.raw


# --- models -------------------------------------------------------------------------------------------------


async def test_a_key_for_other_models_may_not_use_this_one_nor_see_it(tmp_path):
    async with guarded(tmp_path, models=("other",)) as here:
        check_refusal(await here.post(CHAT, chat(), headers=here.key), 403, "permission_denied", "model")
        check_refusal(await here.get("/v1/models/small", headers=here.key), 403, "permission_denied", "model")
        assert (await here.get("/v1/models", headers=here.key)).body["data"] == []
        absent = await here.post(CHAT, chat(model="other"), headers=here.key)
        check_refusal(absent, 404, "model_not_found", "model")


@pytest.mark.parametrize("allowed", ["demo", DEMO_MODEL_NAME])
async def test_a_key_for_one_name_of_the_model_may_use_each_of_its_names(tmp_path, allowed):
    async with guarded(tmp_path, name=DEMO_MODEL_NAME, models=(allowed,)) as here:
        for name in ("demo", DEMO_MODEL_NAME):
            answered = await here.post(CHAT, chat(model=name), headers=here.key)
            assert (answered.status, answered.body["model"]) == (200, name)
            assert (await here.get(f"/v1/models/{name}", headers=here.key)).body["id"] == name
        listed = (await here.get("/v1/models", headers=here.key)).body["data"]
        assert {model["id"] for model in listed} == {"demo", DEMO_MODEL_NAME}
        check_refusal(
            await here.post(CHAT, chat(model="x"), headers=here.key), 403, "permission_denied", "model"
        )


# --- lane and caps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [{}, {"service_tier": "priority"}, {"service_tier": "default"}])
@pytest.mark.parametrize("header", [{}, {LANE: "interactive"}])
async def test_nothing_that_is_asked_raises_a_key_above_its_lane(tmp_path, asked, header):
    async with guarded(tmp_path, lane="batch") as here:
        answered = await here.post(CHAT, chat(**asked), headers={**here.key, **header})
        assert (answered.headers[LANE], answered.body["service_tier"]) == ("batch", "flex")
        assert here.worker.submits[0].rank == 1


async def test_a_keys_own_caps_hold_and_the_refusal_says_whose_they_are(tmp_path):
    async with guarded(tmp_path, max_tokens=10, context_tokens=20) as here:
        for asked, status in ((9, 200), (10, 200), (11, 400)):
            answered = await here.post(COMPLETIONS, completion(max_tokens=asked), headers=here.key)
            assert answered.status == status
        check_refusal(answered, 400, None, "max_tokens")
        assert re.search(r"This API key .* 10 .* 11", answered.error["message"])
        for prompt, status in ((9, 200), (10, 200), (11, 400)):
            body = completion(prompt="x" * prompt, max_tokens=10)
            answered = await here.post(COMPLETIONS, body, headers=here.key)
            assert answered.status == status
        check_refusal(answered, 400, "context_length_exceeded", "max_tokens")
        assert re.search(r"This API key .* 20 .* 21", answered.error["message"])
        assert answered.headers[LANE] == "interactive"
        await here.post(COMPLETIONS, completion(), headers=here.key)
        assert here.worker.submits[-1].max_tokens == 10


# --- quotas -------------------------------------------------------------------------------------------------


def remaining(answered, what):
    return int(answered.headers[f"x-ratelimit-remaining-{what}"])


@STREAMED_OR_NOT
async def test_what_a_key_has_left_is_said_with_an_answer(tmp_path, stream):
    async with guarded(tmp_path, requests_per_minute=9, tokens_per_minute=60) as here:
        answered = await here.post(COMPLETIONS, completion(max_tokens=30, stream=stream), headers=here.key)
        assert answered.headers["x-ratelimit-limit-requests"] == "9"
        assert answered.headers["x-ratelimit-limit-tokens"] == "60"
        assert remaining(answered, "requests") == 8
        # A stream's headers leave while its answer runs; a whole one's know what was used.
        used = PROMPT + (30 if stream else TOKENS)
        assert 60 - used <= remaining(answered, "tokens") <= 60 - used + 1
        assert re.fullmatch(r"[0-9]+(ms|s)", answered.headers["x-ratelimit-reset-tokens"])


async def test_a_key_without_bounds_is_told_of_none(tmp_path):
    async with guarded(tmp_path) as here:
        answered = await here.post(CHAT, chat(), headers=here.key)
        assert not [name for name in answered.headers if name.lower().startswith("x-ratelimit")]


async def test_one_request_over_a_minutes_is_refused_and_told_exactly_when_to_come_back(tmp_path):
    async with guarded(tmp_path, requests_per_minute=2) as here:
        for _ in range(2):
            assert (await here.post(CHAT, chat(), headers=here.key)).status == 200
        (use,) = uses(here)
        refused = await here.post(CHAT, chat(), headers=here.key)
        exact_s = use.requests.wait_s(1, 2, here.proxy.link._clock.now())
        check_refusal(refused, 429, "rate_limit_exceeded")
        assert remaining(refused, "requests") == 0
        assert int(refused.headers["Retry-After"]) >= exact_s > 20
        assert int(refused.headers["retry-after-ms"]) >= 1000 * exact_s


@given(wait_s=st.floats(0, 60), jitter=st.floats(0.8, 1.2))
def test_a_key_is_never_told_to_come_back_too_early(wait_s, jitter):
    headers = failure_response(RateLimited("", retry_after_s=wait_s), lambda: jitter).headers
    assert wait_s <= int(headers["Retry-After"]) <= 60
    assert 1000 * wait_s <= int(headers["retry-after-ms"]) <= 60_000


async def test_tokens_that_were_not_used_are_given_back_at_the_end(tmp_path):
    async with guarded(tmp_path, tokens_per_minute=60) as here:
        task = await occupied(here, max_tokens=40)
        refused = await here.post(COMPLETIONS, completion(max_tokens=40), headers=here.key)
        check_refusal(refused, 429, "rate_limit_exceeded")
        assert 18 <= remaining(refused, "tokens") <= 20
        assert refused.headers[LANE] == "interactive"
        here.worker.pause_at = None
        assert 46 <= remaining(await task, "tokens") <= 48
        assert (await here.post(COMPLETIONS, completion(max_tokens=40), headers=here.key)).status == 200


async def test_what_can_never_pass_is_a_400(tmp_path):
    async with guarded(tmp_path, tokens_per_minute=30) as here:
        answered = await here.post(COMPLETIONS, completion(max_tokens=40), headers=here.key)
        check_refusal(answered, 400, None, "max_tokens")
        assert remaining(answered, "tokens") == 30


@STREAMED_OR_NOT
async def test_who_waited_in_vain_pays_no_token(tmp_path, stream):
    async with guarded(tmp_path, tokens_per_minute=100, slots=1) as here:
        here.worker.pause_at = 1
        task = here.asking(COMPLETIONS, completion(max_tokens=38), headers=here.key)
        await until(lambda: here.worker.paused_at(1))
        here.proxy.dispatcher.admission.state.calibration.factor = 0.0  # it is promised a row at once
        body = completion(prompt="x" * 20, max_tokens=20, stream=stream)
        late = await here.post(COMPLETIONS, body, headers={**here.key, "x-slo-ttft-ms": "150"})
        assert (late.status, late.error["code"]) == (503, "queue_timeout")
        assert remaining(late, "tokens") >= 60
        here.worker.pause_at = None
        await task


# --- requests at a time -------------------------------------------------------------------------------------


async def test_one_more_at_a_time_is_refused_and_a_place_is_free_when_one_ends(tmp_path):
    async with guarded(tmp_path, concurrent_max=1) as here:
        task = await occupied(here)
        check_refusal(await here.post(CHAT, chat(), headers=here.key), 429, "rate_limit_exceeded")
        here.worker.pause_at = None
        assert (await task).text == TEXT
        assert (await here.post(CHAT, chat(), headers=here.key)).status == 200


@STREAMED_OR_NOT
async def test_whoever_leaves_gives_its_place_back(tmp_path, stream):
    async with guarded(tmp_path, concurrent_max=1) as here:
        task = await occupied(here, stream=stream)
        task.cancel()
        await until(lambda: {use.live for use in uses(here)} == {0})
        here.worker.pause_at = None
        assert (await here.post(CHAT, chat(), headers=here.key)).status == 200


async def test_every_refusal_gives_its_place_back(tmp_path):
    lanes = [{"name": "interactive", "queue_places": 4, "max_tokens": 50}]
    async with guarded(tmp_path, lanes=lanes, concurrent_max=1, tokens_per_minute=40) as here:
        refused = [
            (b"{", {}, 400),
            (chat(no_such_field=1), {}, 400),
            (chat(model="other"), {}, 404),
            (chat(service_tier="scale"), {}, 400),
            (chat(), {LANE: "nosuch"}, 400),
            (chat(max_tokens=51), {}, 400),
            (chat(n=5, max_tokens=1), {}, 400),
            (chat(messages=[{"role": "user", "content": "x" * 99}]), {}, 400),
            (chat(max_tokens=40), {}, 400),
        ]
        for body, headers, status in refused:
            given = {**here.key, "content-type": "application/json", **headers}
            assert (await here.post(CHAT, body, headers=given)).status == status
        here.answer = lambda _submit: "this model can't"
        assert (await here.post(CHAT, chat(max_tokens=1), headers=here.key)).status == 400
        here.answer = lambda _submit: ids(TEXT)
        await here.kill_worker()
        here.proxy.dispatcher.draining = True
        assert (await here.post(CHAT, chat(max_tokens=1), headers=here.key)).status == 503
        here.proxy.dispatcher.draining = False
        here.proxy.measurer.measure = None  # a bug of ours
        ours = await here.post(CHAT, chat(max_tokens=1), headers=here.key)
        assert (ours.status, ours.error["code"]) == (500, None)
        assert (ours.headers[LANE], ours.headers["x-forebay-attempts"]) == ("interactive", "0")
        assert "x-request-id" in ours.headers


async def test_a_body_that_never_comes_gives_its_place_back(tmp_path):
    async with guarded(tmp_path, concurrent_max=1) as here:
        _, writer = await here.raw()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
        writer.write((head + f"Authorization: {here.key['Authorization']}\r\n\r\n{{").encode())
        await until(lambda: {use.live for use in uses(here)} == {1})
        writer.close()
        await until(lambda: {use.live for use in uses(here)} == {0})


# --- the queue ----------------------------------------------------------------------------------------------


async def test_a_key_that_fills_its_share_of_the_queue_is_refused_and_others_are_not(tmp_path):
    here = Gateway(tmp_path / NAME, [{"name": "interactive", "queue_places": 16}])
    greedy, other = here.add_key("greedy"), here.add_key("other")
    async with here:
        await here.start_worker(slots=1, pause_at=1)
        tasks = [here.asking(COMPLETIONS, completion(), headers=greedy)]
        await until(lambda: here.worker.paused_at(1))
        tasks += [here.asking(COMPLETIONS, completion(), headers=greedy) for _ in range(4)]
        await until(lambda: here.live == 5)
        refused = await here.post(COMPLETIONS, completion(), headers=greedy)
        check_refusal(refused, 429, "rate_limit_exceeded")
        assert refused.headers[LANE] == "interactive"
        tasks.append(here.asking(COMPLETIONS, completion(), headers=other))
        await until(lambda: here.live == 6)
        here.worker.pause_at = None
        assert {answered.status for answered in await asyncio.gather(*tasks)} == {200}
        await here.idle()


async def test_without_any_key_the_door_is_open_to_whoever_reaches_it(tmp_path):
    async with gateway(tmp_path) as here:
        await here.start_worker()
        for headers in ({}, {"Authorization": "Bearer anything"}):
            assert (await here.post(CHAT, chat(), headers=headers)).status == 200
