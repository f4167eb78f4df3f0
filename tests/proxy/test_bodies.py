"""Answers in OpenAI's shapes, read strictly by the types of OpenAI's own package."""

from dataclasses import replace

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from proxy.answer import Answer, Call, Text, Thought, Usage
from proxy.bodies import (
    ChatChunks,
    CompletionChunks,
    ServedModel,
    chat_completion,
    model,
    model_list,
    text_completion,
)
from proxy.dialects.dialect import Head

HEAD = Head(
    id="chatcmpl-1", created=1_760_000_000, model="demo", system_fingerprint="fp_1", service_tier="default"
)
CALLS = (Call("look", '{"at": "é"}'), Call("find", "{}"))
ANSWERS = [Answer((Text("one"),), "stop"), Answer((Text("two 漢"),), "length")]
USAGE = Usage(prompt_tokens=3, completion_tokens=9, cached_tokens=2, thought_tokens=4)
USAGE_BODY = {
    "prompt_tokens": 3,
    "completion_tokens": 9,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 2},
}
CHAT_USAGE_BODY = {**USAGE_BODY, "completion_tokens_details": {"reasoning_tokens": 4}}
THOUGHT_FIELDS = ["reasoning_content", "reasoning"]


def unknown_fields(value):
    """Return the names in a parsed body that OpenAI's types don't have."""
    if isinstance(value, list):
        return [name for each in value for name in unknown_fields(each)]
    if not isinstance(value, BaseModel):
        return []
    inner = [name for field in type(value).model_fields for name in unknown_fields(getattr(value, field))]
    return [*(value.model_extra or {}), *inner]


def read(kind, body, unknown=()):
    parsed = kind.model_validate(body, strict=True)
    assert unknown_fields(parsed) == list(unknown)
    assert body["system_fingerprint"] == "fp_1"
    assert (parsed.id, parsed.created, parsed.model) == (HEAD.id, HEAD.created, HEAD.model)
    return parsed


def test_a_whole_chat_answer():
    parsed = read(ChatCompletion, chat_completion(HEAD, ANSWERS, USAGE))
    assert [choice.index for choice in parsed.choices] == [0, 1]
    assert [choice.message.content for choice in parsed.choices] == ["one", "two 漢"]
    assert {choice.message.role for choice in parsed.choices} == {"assistant"}
    assert [choice.finish_reason for choice in parsed.choices] == ["stop", "length"]
    assert parsed.usage.model_dump(exclude_none=True) == CHAT_USAGE_BODY


def test_an_answer_with_calls_ends_by_them_and_has_each_under_an_id_of_its_own():
    answers = [Answer((Text("So: "), *CALLS), "stop"), Answer(CALLS, "stop"), Answer(CALLS[:1], "length")]
    parsed = read(ChatCompletion, chat_completion(HEAD, answers, USAGE))
    assert [choice.message.content for choice in parsed.choices] == ["So: ", None, None]
    assert [choice.finish_reason for choice in parsed.choices] == ["tool_calls", "tool_calls", "length"]
    calls = [call for choice in parsed.choices for call in choice.message.tool_calls]
    assert [(call.function.name, call.function.arguments) for call in calls[:2]] == [
        ("look", '{"at": "é"}'),
        ("find", "{}"),
    ]
    assert len({call.id for call in calls}) == 5


def test_another_answers_calls_have_other_ids():
    answer = [Answer(CALLS, "stop")]
    mine, other = (chat_completion(replace(HEAD, id=name), answer, USAGE) for name in ("a", "b"))
    ids = {each["id"] for body in (mine, other) for each in body["choices"][0]["message"]["tool_calls"]}
    assert len(ids) == 4


def test_thoughts_have_two_names_and_are_no_text():
    answers = [Answer((Thought("Hm. "), Text("Yes"), Thought("So.")), "stop")]
    message = read(ChatCompletion, chat_completion(HEAD, answers, USAGE), THOUGHT_FIELDS).choices[0].message
    assert (message.content, message.reasoning_content, message.reasoning) == ("Yes", "Hm. So.", "Hm. So.")


def test_the_older_way_has_one_call_in_place_of_a_list():
    body = chat_completion(HEAD, [Answer(CALLS, "stop")], USAGE, older_calls=True)
    (choice,) = read(ChatCompletion, body).choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("function_call", None)
    assert (choice.message.function_call.name, choice.message.content) == ("look", None)


def test_an_echo_comes_before_each_answers_text():
    body = text_completion(HEAD, ANSWERS, USAGE, ["A: ", "B: "])
    assert [choice.text for choice in read(Completion, body).choices] == ["A: one", "B: two 漢"]
    chunks = CompletionChunks(HEAD, include_usage=False, echoes=["A: ", "B: "])
    assert [read_text(each).text for each in chunks.opening(1)] == ["B: "]


def test_a_whole_text_completion():
    parsed = read(Completion, text_completion(HEAD, ANSWERS, USAGE))
    assert [choice.index for choice in parsed.choices] == [0, 1]
    assert [choice.text for choice in parsed.choices] == ["one", "two 漢"]
    assert [choice.finish_reason for choice in parsed.choices] == ["stop", "length"]
    assert parsed.usage.model_dump(exclude_none=True) == USAGE_BODY


def test_a_prompt_of_which_nothing_was_there_says_so():
    usage = read(ChatCompletion, chat_completion(HEAD, ANSWERS, Usage(3, 9))).usage
    assert usage.prompt_tokens_details.cached_tokens == 0


def test_a_chat_stream_begins_with_the_role_and_ends_with_an_empty_delta():
    chunks = ChatChunks(HEAD, include_usage=False)
    bodies = [*chunks.opening(1), chunks.text(1, "Hi"), chunks.ending(1, "stop")]
    choices = [read(ChatCompletionChunk, body).choices[0] for body in bodies]
    deltas = [choice.delta.model_dump(exclude_none=True) for choice in choices]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "Hi"}, {}]
    assert bodies[-1]["choices"][0]["delta"] == {}
    assert [choice.finish_reason for choice in choices] == [None, None, "stop"]
    assert {choice.index for choice in choices} == {1}


def test_a_streamed_call_is_named_first_and_has_its_arguments_in_the_next_chunk():
    chunks = ChatChunks(HEAD, include_usage=False)
    bodies = [*chunks.call(1, 0, CALLS[0]), *chunks.call(1, 1, CALLS[1]), chunks.ending(1, "stop", 2)]
    choices = [read(ChatCompletionChunk, body).choices[0] for body in bodies]
    first, rest, second, _ = [choice.delta.tool_calls[0] for choice in choices[:-1]]
    assert (first.index, first.type, first.function.name, first.function.arguments) == (
        0,
        "function",
        "look",
        "",
    )
    assert (rest.index, rest.id, rest.function.name, rest.function.arguments) == (
        0,
        None,
        None,
        '{"at": "é"}',
    )
    assert (second.index, second.function.name) == (1, "find")
    assert choices[-1].finish_reason == "tool_calls"
    whole = chat_completion(HEAD, [ANSWERS[0], Answer(CALLS, "stop")], USAGE)["choices"][1]["message"]
    assert [first.id, second.id] == [call["id"] for call in whole["tool_calls"]]


def test_a_streamed_thought_has_two_names_and_no_text():
    body = ChatChunks(HEAD, include_usage=False).thought(0, "Hm")
    delta = read(ChatCompletionChunk, body, THOUGHT_FIELDS).choices[0].delta
    assert (delta.content, delta.reasoning_content, delta.reasoning) == (None, "Hm", "Hm")


def test_a_streamed_call_the_older_way_is_one_without_a_number():
    chunks = ChatChunks(HEAD, include_usage=False, older_calls=True)
    bodies = [*chunks.call(0, 0, CALLS[0]), *chunks.call(0, 1, CALLS[1]), chunks.ending(0, "stop", 2)]
    choices = [read(ChatCompletionChunk, body).choices[0] for body in bodies]
    calls = [choice.delta.function_call for choice in choices[:-1]]
    assert [(call.name, call.arguments) for call in calls] == [("look", ""), (None, '{"at": "é"}')]
    assert choices[-1].finish_reason == "function_call"


def test_a_completion_stream_has_text_from_the_first_chunk_on():
    chunks = CompletionChunks(HEAD, include_usage=False)
    assert chunks.opening(0) == []
    text, ending = read_text(chunks.text(1, "Hi")), read_text(chunks.ending(1, "length"))
    assert (text.index, text.text, text.finish_reason) == (1, "Hi", None)
    assert (ending.index, ending.text, ending.finish_reason) == (1, "", "length")


def read_text(body):
    """Read a completion's chunk. OpenAI's type wants a reason in each, though its own streams send null."""
    assert set(body["choices"][0]) == {"index", "text", "logprobs", "finish_reason"}
    reason = body["choices"][0]["finish_reason"]
    ended = {**body, "choices": [{**body["choices"][0], "finish_reason": reason or "stop"}]}
    choice = read(Completion, ended).choices[0]
    choice.finish_reason = reason
    return choice


@pytest.mark.parametrize(
    ("chunks", "kind", "said"),
    [(ChatChunks, ChatCompletionChunk, CHAT_USAGE_BODY), (CompletionChunks, Completion, USAGE_BODY)],
)
def test_usage_comes_in_a_last_chunk_without_choices_and_is_null_before(chunks, kind, said):
    asked = chunks(HEAD, include_usage=True)
    before = [*asked.opening(0), asked.text(0, "Hi"), asked.ending(0, "stop")]
    assert [body["usage"] for body in before] == [None] * len(before)
    last = read(kind, asked.usage(USAGE))
    assert last.choices == []
    assert last.usage.model_dump(exclude_none=True) == said


@pytest.mark.parametrize("chunks", [ChatChunks, CompletionChunks])
def test_nothing_is_said_of_usage_when_nobody_asked(chunks):
    silent = chunks(HEAD, include_usage=False)
    bodies = [*silent.opening(0), silent.text(0, "Hi"), silent.ending(0, "stop")]
    assert all("usage" not in body for body in bodies)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (chat_completion(HEAD, ANSWERS, USAGE), "chat.completion"),
        (text_completion(HEAD, ANSWERS, USAGE), "text_completion"),
        (ChatChunks(HEAD, include_usage=True).text(0, "a"), "chat.completion.chunk"),
        (CompletionChunks(HEAD, include_usage=True).text(0, "a"), "text_completion"),
    ],
)
def test_each_body_names_its_kind(body, kind):
    assert body["object"] == kind


def test_the_models_are_a_list_of_models():
    served = [ServedModel("demo", 1_760_000_000), ServedModel("other", 5)]
    body = model_list(served)
    assert body == {"object": "list", "data": [model(each) for each in served]}
    parsed = [Model.model_validate(each, strict=True) for each in body["data"]]
    assert [(each.id, each.created, each.owned_by) for each in parsed] == [
        ("demo", 1_760_000_000, "forebay"),
        ("other", 5, "forebay"),
    ]
    assert unknown_fields(parsed) == []
