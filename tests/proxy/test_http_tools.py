"""Calls and thoughts over HTTP: whole and streamed, as OpenAI's types and clients' habits want them."""

import itertools
from datetime import datetime

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from proxy.chat_template import ChatTemplate
from tests.proxy.small_format import SMALL
from tests.proxy.small_gateway import CHAT, chat, gateway, ids
from tests.proxy.small_tokenizers import CHATML
from tests.proxy.test_bodies import unknown_fields

NAMING = "{% for tool in tools or () %}{{ tool.function.name }}{% endfor %}"
ANSWER = '<Hm>So: [look{"at":"é"}][find{}]'
LOOK, FIND = ({"type": "function", "function": {"name": name}} for name in ("look", "find"))
THOUGHTS = {"reasoning", "reasoning_content"}


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path) as running:
        await running.start_worker()
        text_model = running.proxy.measurer._text_model
        text_model.format = SMALL
        text_model._template = ChatTemplate(NAMING + CHATML, {}, datetime.now)
        running.answer = lambda _submit: ids(ANSWER)
        yield running


def asked(**fields):
    return chat(max_tokens=34, tools=[LOOK, FIND], **fields)


async def whole(here, **fields):
    answered = await here.post(CHAT, asked(**fields))
    assert answered.status == 200, answered.raw
    parsed = ChatCompletion.model_validate(answered.body, strict=True)
    assert set(unknown_fields(parsed)) <= THOUGHTS
    return answered


async def streamed(here, **fields):
    """Return each choice's deltas and reasons, all chunks read strictly by OpenAI's type."""
    answered = await here.post(CHAT, asked(stream=True, **fields))
    assert answered.status == 200
    assert answered.events[-1] == "DONE"
    for event in answered.events[:-1]:
        assert set(unknown_fields(ChatCompletionChunk.model_validate(event, strict=True))) <= THOUGHTS
    return answered


def deltas(answered, index=0):
    choices = itertools.chain.from_iterable(event["choices"] for event in answered.events[:-1])
    return [choice["delta"] for choice in choices if choice["index"] == index]


def gathered(answered):
    """Return the answer that OpenAI's own client makes of a stream."""
    state = ChatCompletionStreamState()
    for event in answered.events[:-1]:
        state.handle_chunk(ChatCompletionChunk.model_validate(event))
    return state.get_final_completion()


async def test_an_answer_has_its_calls_beside_its_text(here):
    (choice,) = (await whole(here)).body["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert (message["content"], message["reasoning_content"], message["reasoning"]) == ("So: ", "Hm", "Hm")
    first, second = message["tool_calls"]
    assert first["function"] == {"name": "look", "arguments": '{"at":"é"}'}
    assert second["function"] == {"name": "find", "arguments": "{}"}
    assert first["id"] != second["id"]
    assert {call["type"] for call in (first, second)} == {"function"}
    assert all(call["id"].startswith("call_") and len(call["id"]) == 29 for call in (first, second))


async def test_an_answer_of_calls_only_has_no_text(here):
    here.answer = lambda _submit: ids("[find{}]")
    message = (await whole(here)).body["choices"][0]["message"]
    assert message["content"] is None
    assert THOUGHTS.isdisjoint(message)


async def test_an_answer_without_calls_has_no_key_for_them(here):
    here.answer = lambda _submit: ids("plain")
    (choice,) = (await whole(here)).body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "plain", "refusal": None}
    assert choice["finish_reason"] == "stop"


async def test_a_stream_says_who_is_called_before_its_arguments(here):
    first, *rest = deltas(await streamed(here))
    assert first == {"role": "assistant", "content": "", "refusal": None}
    assert all("role" not in delta for delta in rest)
    calls = [delta["tool_calls"] for delta in rest if "tool_calls" in delta]
    ((one,), (one_more,), (two,), (two_more,)) = calls
    assert (set(one), set(one["function"])) == ({"index", "id", "type", "function"}, {"name", "arguments"})
    assert (one["index"], one["function"]) == (0, {"name": "look", "arguments": ""})
    assert one_more == {"index": 0, "function": {"arguments": '{"at":"é"}'}}
    assert (two["index"], two["function"]["name"]) == (1, "find")
    assert two_more == {"index": 1, "function": {"arguments": "{}"}}
    assert rest[-1] == {}


async def test_a_stream_gathered_by_openais_client_is_the_whole_answer(here):
    answered = await streamed(here, n=2)
    for index, choice in enumerate((await whole(here, n=2)).body["choices"]):
        made = gathered(answered).choices[index]
        message = choice["message"]
        assert (made.message.content, made.finish_reason) == (message["content"], choice["finish_reason"])
        mine = [(call.function.name, call.function.arguments) for call in made.message.tool_calls]
        assert mine == [tuple(call["function"].values()) for call in message["tool_calls"]]
        thought = "".join(delta.get("reasoning_content", "") for delta in deltas(answered, index))
        assert thought == message["reasoning"]
    made_ids = [call.id for choice in gathered(answered).choices for call in choice.message.tool_calls]
    assert len(set(made_ids)) == 4


async def test_a_call_that_is_cut_off_stays_text(here):
    here.answer = lambda _submit: ids('So: [look{"at":1')
    (choice,) = (await whole(here)).body["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ('So: [look{"at":1', "stop")
    answered = await here.post(CHAT, asked(stream=True))
    assert answered.streamed() == ('So: [look{"at":1', "stop")


async def test_a_cut_answer_with_calls_says_that_it_was_cut(here):
    here.answer = lambda _submit: ids("[find{}] and so on")
    body = {**asked(), "max_tokens": 12}
    (choice,) = (await here.post(CHAT, body)).body["choices"]
    assert (len(choice["message"]["tool_calls"]), choice["finish_reason"]) == (1, "length")
    assert (await here.post(CHAT, {**body, "stream": True})).streamed()[1] == "length"


async def test_tools_that_may_not_be_called_are_not(here):
    (choice,) = (await whole(here, tool_choice="none")).body["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == ANSWER.removeprefix("<Hm>")


async def test_a_stop_string_ends_texts_and_no_calls(here):
    (choice,) = (await whole(here, stop="at")).body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (choice,) = (await whole(here, stop="o:")).body["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("S", "stop")
    assert "tool_calls" not in choice["message"]


async def test_usage_counts_thoughts_among_the_answers_tokens(here):
    usage = (await whole(here)).body["usage"]
    assert usage["completion_tokens"] == len(ids(ANSWER))
    assert usage["completion_tokens_details"] == {"reasoning_tokens": len("<Hm>") - 1}
    last = (await streamed(here, stream_options={"include_usage": True})).events[-2]
    assert (last["choices"], last["usage"]) == ([], usage)


async def test_each_tokens_log_probability_comes_once_whatever_the_token_is_of(here):
    made = (await whole(here, logprobs=True)).body["choices"][0]["logprobs"]["content"]
    answered = await streamed(here, logprobs=True)
    choices = [choice for event in answered.events[:-1] for choice in event["choices"]]
    parts = [choice["logprobs"]["content"] for choice in choices if choice["logprobs"] is not None]
    assert len(made) == len(ids(ANSWER))
    assert list(itertools.chain.from_iterable(parts)) == made


async def test_functions_are_answered_by_a_function_call(here):
    body = chat(max_tokens=34, functions=[{"name": "look"}, {"name": "find"}])
    answered = await here.post(CHAT, body)
    (choice,) = answered.body["choices"]
    assert unknown_fields(ChatCompletion.model_validate(answered.body, strict=True).choices[0].message) == [
        "reasoning_content",
        "reasoning",
    ]
    call = {"name": "look", "arguments": '{"at":"é"}'}
    assert (choice["message"]["function_call"], choice["finish_reason"]) == (call, "function_call")
    assert "tool_calls" not in choice["message"]
    answered = await here.post(CHAT, {**body, "stream": True})
    called = [delta["function_call"] for delta in deltas(answered) if "function_call" in delta]
    assert called == [{"name": "look", "arguments": ""}, {"arguments": '{"at":"é"}'}]
    assert answered.events[-2]["choices"][0]["finish_reason"] == "function_call"


async def test_a_conversation_with_calls_and_results_is_answered(here):
    here.answer = lambda _submit: ids("done")
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at":'}}],
    }
    result = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "sea"}]}
    turns = [{"role": "user", "content": "Hi"}, message, result]
    answered = await here.post(CHAT, {**chat(max_tokens=9, tools=[LOOK]), "messages": turns})
    assert (answered.status, answered.text) == (200, "done")
