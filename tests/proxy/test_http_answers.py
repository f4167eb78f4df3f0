"""Answers over HTTP: whole or streamed the same, with the vendor's shapes, from a real proxy."""

import asyncio

import pytest

from tests.proxy.small_gateway import CHAT, COMPLETIONS, TEXT, chat, completion, gateway, ids, request
from tests.waiting import until

ENDPOINTS = pytest.mark.parametrize(
    ("path", "body"), [(CHAT, chat), (COMPLETIONS, completion)], ids=["chat", "completions"]
)


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path) as running:
        await running.start_worker()
        yield running


@ENDPOINTS
@pytest.mark.parametrize(
    "text", [TEXT, "", "a", "😀😀", " lead", "\u200b", "tail \n"], ids=lambda text: f"{len(text)} chars"
)
async def test_streamed_and_whole_are_the_same_text(here, path, body, text):
    here.answer = lambda _submit: ids(text)
    whole = await here.post(path, body(max_tokens=20))
    streamed = await here.post(path, body(max_tokens=20, stream=True))
    assert (whole.status, streamed.status) == (200, 200)
    assert (whole.text, whole.body["choices"][0]["finish_reason"]) == (text, "stop")
    assert streamed.streamed() == (text, "stop")
    assert streamed.events[-1] == "DONE"
    assert streamed.events.count("DONE") == 1
    assert streamed.headers["Content-Type"] == "text/event-stream; charset=utf-8"


@ENDPOINTS
@pytest.mark.parametrize("cap", range(1, 13))
async def test_an_answer_cut_anywhere_never_shows_half_a_character(here, path, body, cap):
    here.answer = lambda _submit: ids("漢字é😀")
    whole = await here.post(path, body(max_tokens=cap))
    streamed = await here.post(path, body(max_tokens=cap, stream=True))
    assert whole.body["choices"][0]["finish_reason"] == ("length" if cap <= 12 else "stop")
    assert streamed.streamed() == (whole.text, "length")
    assert "漢字é😀".startswith(whole.text.rstrip("\ufffd"))
    assert whole.text.count("\ufffd") <= 1
    assert whole.body["usage"]["completion_tokens"] == cap


@ENDPOINTS
@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({}, False),
        ({"stream_options": {}}, False),
        ({"stream_options": None}, False),
        ({"stream_options": {"include_usage": False}}, False),
        ({"stream_options": {"include_usage": True}}, True),
    ],
    ids=str,
)
async def test_a_streams_usage_comes_only_when_asked_for(here, path, body, options, asked):
    whole = await here.post(path, body(max_tokens=20))
    streamed = await here.post(path, body(max_tokens=20, stream=True, **options))
    *chunks, last, done = streamed.events
    assert done == "DONE"
    if asked:
        assert (last["choices"], last["usage"]) == ([], whole.body["usage"])
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert last["choices"]
        assert all("usage" not in chunk for chunk in (*chunks, last))


async def test_usage_counts_each_prompt_once_and_every_answers_tokens(here):
    answered = await here.post(COMPLETIONS, completion(prompt=["ab", "abcd"], n=2, max_tokens=5))
    assert answered.body["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 20,
        "total_tokens": 26,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


# --- stop strings -------------------------------------------------------------------------------------------

STOPS = [
    ("at ", "cat cat", "c"),
    ("o 漢", TEXT, "hél"),
    (["cat c", "cat"], "a cat c", "a "),
    (["zz", "t"], "cat", "ca"),
    ("é", TEXT, "h"),
]


@ENDPOINTS
@pytest.mark.parametrize(("stop", "text", "shown"), STOPS)
async def test_a_stop_string_across_tokens_ends_the_answer_and_the_work(here, path, body, stop, text, shown):
    here.answer = lambda _submit: ids(text + " and so on and so on")
    whole = await here.post(path, body(max_tokens=30, stop=stop))
    streamed = await here.post(path, body(max_tokens=30, stop=stop, stream=True))
    assert (whole.text, whole.body["choices"][0]["finish_reason"]) == (shown, "stop")
    assert streamed.streamed() == (shown, "stop")
    assert streamed.events[-1] == "DONE"
    await here.idle()


async def test_a_stop_string_has_the_worker_cancel_the_row(here):
    here.answer = lambda _submit: ids("ab" + "c" * 40)
    here.worker.pause_at = 5
    await here.post(COMPLETIONS, completion(max_tokens=40, stop="b"))
    (submit,) = here.worker.submits
    await until(lambda: here.worker.cancelled == [submit.sequence])
    assert not here.worker.rows


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_a_stop_string_ends_leaves_the_batch_while_its_brothers_go_on(here, stream):
    here.answer = lambda submit: ids("ab stop") if submit.sampling.choice else ids("b" + "a" * 20)
    here.worker.pause_at = 6
    asked = here.asking(COMPLETIONS, completion(n=2, max_tokens=9, stop="b ", stream=stream))
    await until(lambda: len(here.worker.cancelled) == 1)
    assert here.live == 1
    here.worker.pause_at = None
    answered = await asked
    texts = [answered.streamed(index) for index in (0, 1)] if stream else texts_of(answered)
    assert texts == [("b" + "a" * 8, "length"), ("a", "stop")]
    stopped = next(submit.sequence for submit in here.worker.submits if submit.sampling.choice == 1)
    assert here.worker.cancelled == [stopped]


def texts_of(answered):
    return [(choice["text"], choice["finish_reason"]) for choice in answered.body["choices"]]


async def test_what_only_began_like_a_stop_string_is_shown_at_the_end(here):
    here.answer = lambda _submit: ids("a EN")
    answered = await here.post(CHAT, chat(max_tokens=20, stop="END", stream=True))
    assert answered.streamed() == ("a EN", "stop")


# --- several answers ----------------------------------------------------------------------------------------


def by_prompt_and_choice(submit):
    return ids(f"{submit.prompt_ids[-1]}/{submit.sampling.choice}")


@pytest.mark.parametrize("stream", [False, True])
async def test_n_answers_to_each_of_several_prompts_have_indices_of_their_own(here, stream):
    here.answer = by_prompt_and_choice
    prompts = [[65], [66], [67]]
    answered = await here.post(COMPLETIONS, completion(prompt=prompts, n=2, max_tokens=9, stream=stream))
    wanted = [f"{prompt[-1]}/{choice}" for prompt in prompts for choice in range(2)]
    if stream:
        assert [answered.streamed(index) for index in range(6)] == [(text, "stop") for text in wanted]
        assert answered.events[-1] == "DONE"
    else:
        assert [choice["text"] for choice in answered.body["choices"]] == wanted
        assert [choice["index"] for choice in answered.body["choices"]] == list(range(6))


async def test_n_answers_to_a_chat_share_a_seed_and_differ_in_choice(here):
    answered = await here.post(CHAT, chat(n=3, max_tokens=5, stream=True))
    assert [answered.streamed(index)[1] for index in range(3)] == ["length"] * 3
    roles = [event["choices"][0]["delta"] for event in answered.events[:3]]
    assert all(role["role"] == "assistant" for role in roles)
    assert [submit.sampling.choice for submit in here.worker.submits] == [0, 1, 2]
    assert len({submit.sampling.seed for submit in here.worker.submits}) == 1


async def test_a_client_without_a_seed_gets_another_each_time(here):
    for seed in (None, None, 7):
        await here.post(CHAT, chat(max_tokens=1, seed=seed))
    seeds = [submit.sampling.seed for submit in here.worker.submits]
    assert len(set(seeds)) == 3
    assert seeds[-1] == 7


async def test_many_at_once_each_get_their_own_answer(here):
    """More than there are slots, all under one request id, which the clients chose."""
    here.answer = lambda submit: submit.prompt_ids
    texts = [f"number {number}" for number in range(16)]
    headers = {"x-request-id": "same"}
    asked = [
        here.post(
            COMPLETIONS, completion(prompt=text, max_tokens=20, stream=number % 2 == 0), headers=headers
        )
        for number, text in enumerate(texts)
    ]
    answers = await asyncio.gather(*asked)
    said = [answer.streamed()[0] if number % 2 == 0 else answer.text for number, answer in enumerate(answers)]
    assert said == texts
    await here.idle()


# --- around the answer --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_says_what_it_went_through(here, stream):
    answered = await here.post(CHAT, chat(max_tokens=5, stream=stream), headers={"x-request-id": "mine-1"})
    assert answered.headers["x-request-id"] == "mine-1"
    assert answered.headers["x-forebay-attempts"] == "1"
    assert int(answered.headers["x-forebay-queue-ms"]) >= 0


@pytest.mark.parametrize("given", [None, "", "has space", "x" * 65, "ü"])
async def test_a_request_without_a_plain_id_gets_one(here, given):
    headers = {} if given is None else {"x-request-id": given}
    for answered in (await here.post(CHAT, chat(max_tokens=1), headers=headers), await here.get("/nowhere")):
        assert answered.headers["x-request-id"].startswith("req_")


async def test_the_model_is_listed_by_its_name(here):
    listed = (await here.get("/v1/models")).body
    assert [model["id"] for model in listed["data"]] == ["small"]
    assert listed["data"][0] == (await here.get("/v1/models/small")).body
    facts = listed["data"][0]["forebay"]
    assert (facts["context_tokens"], facts["rows"], facts["batches"]) == (64, 4, True)
    assert (facts["caches"], facts["kv_bits"], facts["one_row_because"]) == ("attention", 0, None)
    shared = [facts[name] for name in ("reuses_prompts", "shares_from_tokens", "not_shared_because")]
    assert shared == ["none", None, None]


async def test_a_body_in_chunks_is_read(here):
    async def parts():
        yield b'{"model": "small", "prompt": '
        yield b'"Hi", "max_tokens": 12}'

    headers = {"content-type": "application/json"}
    async with here.session.post(COMPLETIONS, data=parts(), headers=headers) as response:
        assert (response.status, (await response.json())["choices"][0]["text"]) == (200, TEXT)


async def test_a_client_that_waits_to_be_told_to_continue_is_told(here):
    reader, writer = await here.raw()
    raw = request(COMPLETIONS, completion(max_tokens=12), extra="Expect: 100-continue\r\n")
    head, body = raw.split(b"\r\n\r\n", 1)
    writer.write(head + b"\r\n\r\n")
    assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
    writer.write(body)
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()


async def test_a_body_that_does_not_say_what_it_is_is_taken_for_json(here):
    headers = {"content-type": "application/json; charset=utf-8"}
    assert (await here.post(CHAT, chat(max_tokens=1), headers=headers)).status == 200
    async with here.session.post(
        CHAT, data=b'{"model": "small"}', skip_auto_headers=["content-type"]
    ) as response:
        assert (response.status, (await response.json())["error"]["param"]) == (400, "messages")
