"""Log probabilities over HTTP: OpenAI's shapes, streamed as whole, through stops, deaths and recordings."""

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from proxy import answer_logprobs
from tests.proxy.small_gateway import CHAT, COMPLETIONS, TEXT, chat, completion, gateway, ids
from tests.proxy.test_bodies import unknown_fields
from tests.waiting import until

PATHS = pytest.mark.parametrize("path", [CHAT, COMPLETIONS], ids=["chat", "completions"])


def body_of(path, tops, **fields):
    """Return a body that asks for so many alternatives."""
    if path == CHAT:
        return chat(logprobs=True, top_logprobs=tops, **fields)
    return completion(logprobs=tops, **fields)


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path) as running:
        await running.start_worker()
        yield running


def whole_entries(answered, index=0):
    """Return an answer's entries, as (token, logprob, alternatives by token) each."""
    return entries_of([answered.body["choices"][index]["logprobs"]])


def streamed_entries(answered, index=0):
    return entries_of([logprobs for _, logprobs in chunks_of(answered, index)])


def chunks_of(answered, index=0):
    """Return (text, log probabilities) of each chunk of a choice."""
    choices = [each for event in answered.events if event != "DONE" for each in event["choices"]]
    return [
        (each["delta"].get("content", "") if "delta" in each else each["text"], each["logprobs"])
        for each in choices
        if each["index"] == index
    ]


def entries_of(values):
    entries = []
    for value in values:
        if value is None:
            continue
        if "content" in value:
            assert value["refusal"] is None
            entries += [
                (
                    each["token"],
                    each["logprob"],
                    {top["token"]: top["logprob"] for top in each["top_logprobs"]},
                )
                for each in value["content"]
            ]
        else:
            tops = value["top_logprobs"] or [{}] * len(value["tokens"])
            entries += zip(value["tokens"], value["token_logprobs"], tops, strict=True)
    return entries


# --- shapes -------------------------------------------------------------------------------------------------


async def test_a_whole_chat_answer_is_as_openais_types_have_it(here):
    here.answer = lambda _submit: ids("a€")
    answered = await here.post(CHAT, body_of(CHAT, 2, max_tokens=20))
    parsed = ChatCompletion.model_validate(answered.body, strict=True)
    assert unknown_fields(parsed) == []
    content = parsed.choices[0].logprobs.content
    assert [each.token for each in content] == ["a", "\\xe2", "\\x82", "\\xac"]
    assert b"".join(bytes(each.bytes) for each in content).decode() == "a€"
    assert [each.logprob for each in content] == [-1.0, -2.0, -3.0, -4.0]
    first = content[0].top_logprobs
    assert [(each.logprob, each.bytes is None) for each in first] == [(-0.5, False), (-1.0, False)]
    assert first[1].token == "a"
    assert parsed.choices[0].logprobs.refusal is None


async def test_a_streams_chunks_are_as_openais_types_have_them(here):
    answered = await here.post(CHAT, body_of(CHAT, 1, max_tokens=20, stream=True))
    chunks = [ChatCompletionChunk.model_validate(each, strict=True) for each in answered.events[:-1]]
    assert unknown_fields(chunks) == []
    content = [each for chunk in chunks for each in getattr(chunk.choices[0].logprobs, "content", None) or ()]
    assert b"".join(bytes(each.bytes) for each in content).decode() == TEXT
    assert {len(each.top_logprobs) for each in content} == {1}


@pytest.mark.parametrize("tops", [0, 1, 5])
async def test_a_completion_is_as_openais_types_have_it(here, tops):
    here.answer = lambda _submit: ids("ab €c")
    answered = await here.post(COMPLETIONS, body_of(COMPLETIONS, tops, max_tokens=20))
    parsed = Completion.model_validate(answered.body, strict=True)
    assert unknown_fields(parsed) == []
    logprobs = parsed.choices[0].logprobs
    assert logprobs.tokens == ["a", "b", " ", "\\xe2", "\\x82", "\\xac", "c"]
    assert logprobs.token_logprobs == [-1.0 - index for index in range(7)]
    assert logprobs.text_offset == [0, 1, 2, 3, 3, 3, 4]
    if tops:
        assert {len(each) for each in logprobs.top_logprobs} == {
            max(2, tops)
        }  # the token itself is among them
        assert all(
            each[token] == number
            for each, token, number in zip(
                logprobs.top_logprobs, logprobs.tokens, logprobs.token_logprobs, strict=True
            )
        )
    else:
        assert logprobs.top_logprobs is None


@PATHS
@pytest.mark.parametrize("stream", [False, True])
async def test_who_does_not_ask_gets_null_and_costs_nothing(here, path, stream):
    plain = chat(max_tokens=20, stream=stream) if path == CHAT else completion(max_tokens=20, stream=stream)
    answered = await here.post(path, plain)
    values = (
        [value for _, value in chunks_of(answered)] if stream else [answered.body["choices"][0]["logprobs"]]
    )
    assert set(values) == {None}
    assert [submit.sampling.top_logprobs for submit in here.worker.submits] == [-1]


# --- streamed and whole -------------------------------------------------------------------------------------


@PATHS
@pytest.mark.parametrize(
    ("text", "stop"),
    [
        (TEXT, None),
        ("", None),
        ("a EN", "END"),
        ("a END of it", "END"),
        ("ab€ END of it", ["€ E", "END"]),
        ("EEEND", "END"),
        ("END", "END"),
        ("漢字漢", "字"),
        ("aEND", ["END FOO", "ND"]),
    ],
)
@pytest.mark.parametrize("cap", [2, 7, 30])
async def test_streamed_and_whole_have_the_same_entries(here, path, text, stop, cap):
    here.answer = lambda _submit: ids(text)
    body = body_of(path, 2, max_tokens=cap, stop=stop)
    whole = await here.post(path, body)
    streamed = await here.post(path, {**body, "stream": True})
    entries = whole_entries(whole)
    assert streamed_entries(streamed) == entries
    assert [number for _, number, _ in entries] == [-1.0 - index for index in range(len(entries))]
    if whole.text == text[: len(whole.text)] and "\ufffd" not in whole.text:
        stopped = whole.body["choices"][0]["finish_reason"] == "stop" and len(whole.text) < len(text)
        least = len(whole.text.encode())
        assert least <= len(entries) <= (least if stopped else cap)


@PATHS
async def test_a_chunk_carries_the_entries_of_the_text_that_begins_in_it(here, path):
    here.answer = lambda _submit: ids("a€ EN")
    streamed = await here.post(path, body_of(path, 0, max_tokens=20, stop="END", stream=True))
    chunks = [(text, len(entries_of([value]))) for text, value in chunks_of(streamed)]
    text_chunks = [chunk for chunk in chunks if chunk[0]]
    assert text_chunks == [("a", 1), ("€", 3), (" ", 1), ("EN", 2)]
    assert sum(count for _, count in chunks) == 7


@PATHS
async def test_entries_that_no_text_follows_come_with_the_end(here, path):
    special = 257  # <|im_start|>, which is no stop id of this tokenizer's model
    here.answer = lambda _submit: [*ids("a"), special, special]
    streamed = await here.post(path, body_of(path, 0, max_tokens=3, stream=True))
    chunks = [(text, [token for token, _, _ in entries_of([value])]) for text, value in chunks_of(streamed)]
    assert chunks[-2:] == [("a", ["a"]), ("", ["<|im_start|>"] * 2)]
    assert whole_entries(await here.post(path, body_of(path, 0, max_tokens=3))) == streamed_entries(streamed)


@PATHS
async def test_a_long_row_of_tokens_without_text_sends_its_entries_on_the_way(here, path, monkeypatch):
    monkeypatch.setattr(answer_logprobs, "WAITING_MAX", 8)
    special = 257
    here.answer = lambda _submit: [*ids("ab"), *[special] * 13]
    streamed = await here.post(path, body_of(path, 0, max_tokens=15, stream=True))
    chunks = [(text, len(entries_of([value]))) for text, value in chunks_of(streamed)]
    assert [count for _, count in chunks if count] == [1, 1, 9, 4]
    assert "".join(text for text, _ in chunks) == "ab"
    whole = await here.post(path, body_of(path, 0, max_tokens=15))
    assert whole_entries(whole) == streamed_entries(streamed)


# --- several answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_each_answer_of_several_has_its_own(here, stream):
    texts = {(0, 0): "abc", (0, 1): "d€", (1, 0): "", (1, 1): "stop it"}
    prompts = [ids("x"), ids("yz")]

    def answer(submit):
        return ids(texts[prompts.index(list(submit.prompt_ids)), submit.sampling.choice])

    here.answer = answer
    asks = completion(prompt=prompts, n=2, logprobs=1, max_tokens=9, stop=" i", stream=stream)
    answered = await here.post(COMPLETIONS, asks)
    of = streamed_entries if stream else whole_entries
    tokens = [[token for token, _, _ in of(answered, index)] for index in range(4)]
    assert tokens == [["a", "b", "c"], ["d", "\\xe2", "\\x82", "\\xac"], [], list("stop")]
    if not stream:
        assert answered.body["choices"][2]["logprobs"] == {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        assert answered.body["usage"]["completion_tokens"] >= 3 + 4 + 6


# --- what goes wrong ----------------------------------------------------------------------------------------


@PATHS
@pytest.mark.parametrize("stream", [False, True])
async def test_a_death_loses_no_entry_and_repeats_none(here, path, stream):
    undisturbed = whole_entries(await here.post(path, body_of(path, 2, max_tokens=20)))
    here.worker.pause_at = 5
    task = here.asking(path, body_of(path, 2, max_tokens=20, stream=stream))
    await until(lambda: here.paused_at(5))
    await here.replace_worker()
    answered = await task
    assert (streamed_entries if stream else whole_entries)(answered) == undisturbed
    assert len(undisturbed) == 12


@PATHS
async def test_a_worker_that_leaves_them_out_breaks_nothing(here, path):
    here.worker.leaves_out = lambda _submit, _index: True
    whole = await here.post(path, body_of(path, 2, max_tokens=20))
    streamed = await here.post(path, body_of(path, 2, max_tokens=20, stream=True))
    assert (whole.text, whole.body["choices"][0]["logprobs"]) == (TEXT, None)
    assert streamed.streamed() == (TEXT, "stop")
    assert {value for _, value in chunks_of(streamed)} == {None}


@PATHS
async def test_a_token_that_lacks_its_own_leaves_the_others_theirs(here, path):
    here.answer = lambda _submit: ids("abc")
    here.worker.leaves_out = lambda _submit, index: index == 1
    whole = await here.post(path, body_of(path, 1, max_tokens=20))
    streamed = await here.post(path, body_of(path, 1, max_tokens=20, stream=True))
    assert [token for token, _, _ in whole_entries(whole)] == ["a", "c"]
    assert streamed_entries(streamed) == whole_entries(whole)
    assert ("b", None) in chunks_of(streamed)


# --- recordings ---------------------------------------------------------------------------------------------


@PATHS
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_played_again_has_them_byte_for_byte(here, path, stream):
    body = body_of(path, 2, max_tokens=20, stream=stream)
    first = await here.post(path, body, headers={"Idempotency-Key": "k"})
    again = await here.post(path, body, headers={"Idempotency-Key": "k"})
    plain = await here.post(path, body)
    assert first.raw == again.raw
    assert (streamed_entries if stream else whole_entries)(again) == (
        streamed_entries if stream else whole_entries
    )(plain)
    other = await here.post(path, body_of(path, 1, max_tokens=20), headers={"Idempotency-Key": "k"})
    assert (other.status, other.error["code"]) == (422, "idempotency_key_reused")


# --- the options on their way -------------------------------------------------------------------------------


@PATHS
async def test_every_option_reaches_the_worker(here, path):
    fields = {
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"7": -100, "5": 1},
    }
    assert (await here.post(path, body_of(path, 3, max_tokens=2, n=2, **fields))).status == 200
    for choice, submit in enumerate(here.worker.submits):
        sampling = submit.sampling
        assert {name: getattr(sampling, name) for name in list(fields)[:3]} == dict(list(fields.items())[:3])
        assert [(each.token, each.bias) for each in sampling.logit_bias] == [(5, 1.0), (7, -100.0)]
        assert (sampling.top_logprobs, sampling.choice) == (3, choice)


@PATHS
async def test_a_bias_of_a_token_that_the_model_lacks_is_a_400_of_its_field(here, path):
    beyond = here.model.vocabulary
    answered = await here.post(path, body_of(path, 1, logit_bias={str(beyond): 5}))
    assert (answered.status, answered.error["param"]) == (400, "logit_bias")
    assert str(beyond) in answered.error["message"]
    assert here.worker.submits == []
