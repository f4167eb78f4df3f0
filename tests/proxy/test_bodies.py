"""Answers in OpenAI's shapes, read strictly by the types of OpenAI's own package."""

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from proxy.answer import Answer, Text, Usage
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
ANSWERS = [Answer((Text("one"),), "stop"), Answer((Text("two 漢"),), "length")]
USAGE = Usage(prompt_tokens=3, completion_tokens=9, cached_tokens=2)
USAGE_BODY = {
    "prompt_tokens": 3,
    "completion_tokens": 9,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 2},
}


def unknown_fields(value):
    """Return the names in a parsed body that OpenAI's types don't have."""
    if isinstance(value, list):
        return [name for each in value for name in unknown_fields(each)]
    if not isinstance(value, BaseModel):
        return []
    inner = [name for field in type(value).model_fields for name in unknown_fields(getattr(value, field))]
    return [*(value.model_extra or {}), *inner]


def read(kind, body):
    parsed = kind.model_validate(body, strict=True)
    assert unknown_fields(parsed) == []
    assert body["system_fingerprint"] == "fp_1"
    assert (parsed.id, parsed.created, parsed.model) == (HEAD.id, HEAD.created, HEAD.model)
    return parsed


def test_a_whole_chat_answer():
    parsed = read(ChatCompletion, chat_completion(HEAD, ANSWERS, USAGE))
    assert [choice.index for choice in parsed.choices] == [0, 1]
    assert [choice.message.content for choice in parsed.choices] == ["one", "two 漢"]
    assert {choice.message.role for choice in parsed.choices} == {"assistant"}
    assert [choice.finish_reason for choice in parsed.choices] == ["stop", "length"]
    assert parsed.usage.model_dump(exclude_none=True) == USAGE_BODY


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
    ("chunks", "kind"), [(ChatChunks, ChatCompletionChunk), (CompletionChunks, Completion)]
)
def test_usage_comes_in_a_last_chunk_without_choices_and_is_null_before(chunks, kind):
    asked = chunks(HEAD, include_usage=True)
    before = [*asked.opening(0), asked.text(0, "Hi"), asked.ending(0, "stop")]
    assert [body["usage"] for body in before] == [None] * len(before)
    last = read(kind, asked.usage(USAGE))
    assert last.choices == []
    assert last.usage.model_dump(exclude_none=True) == USAGE_BODY


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
