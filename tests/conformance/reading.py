"""What a client reads, by the vendors' own types and nothing beside them: bodies, chunks, events, errors."""

import functools
import json
from collections.abc import Iterator
from typing import Literal

import anthropic.types
from openai.types import Completion, CompletionChoice, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

Message = anthropic.types.Message
MessageEvent = anthropic.types.RawMessageStreamEvent
# What the ecosystem reads beside OpenAI's own fields: thoughts under both of their names, facts of a model.
# And what OpenAI documents, but its package has no place for.
_BESIDE = {
    "ChatCompletionMessage.reasoning_content",
    "ChatCompletionMessage.reasoning",
    "ChoiceDelta.reasoning_content",
    "ChoiceDelta.reasoning",
    "Model.forebay",
    "Response.store",
    "ResponseCustomToolCall.status",
    "ResponseFunctionCallArgumentsDoneEvent.name",
}


class _ChunkChoice(CompletionChoice):
    finish_reason: Literal["stop", "length", "content_filter"] | None


class _CompletionChunk(Completion):
    choices: list[_ChunkChoice]


@functools.cache
def _adapter(kind) -> TypeAdapter:
    return TypeAdapter(kind)


def strictly(kind, body):
    """Return a body as one of the vendors' types: every value of its type, and no field that it lacks."""
    read = _adapter(kind).validate_json(json.dumps(body), strict=True)
    unknown = sorted(set(_unknown(read)) - _BESIDE)
    assert not unknown, f"no fields of the vendor's: {unknown}"
    return read


def _unknown(value) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from (f"{type(value).__name__}.{name}" for name in value.model_extra or ())
        for name in type(value).model_fields:
            yield from _unknown(getattr(value, name))
    elif isinstance(value, list):
        for each in value:
            yield from _unknown(each)


def _answered(answered, kind: str):
    assert answered.status == 200, answered.raw
    assert answered.headers["Content-Type"].startswith(kind), answered.headers
    return answered


def whole(kind, answered):
    """Return a whole answer's body as this type."""
    return strictly(kind, _answered(answered, "application/json").body)


def chat_of(answered) -> ChatCompletion:
    return whole(ChatCompletion, answered)


def completion_of(answered) -> Completion:
    return whole(Completion, answered)


def response_of(answered) -> Response:
    return whole(Response, answered)


def message_of(answered) -> Message:
    return whole(Message, answered)


def model_of(body) -> Model:
    return strictly(Model, body)


def embedding_of(answered) -> CreateEmbeddingResponse:
    return whole(CreateEmbeddingResponse, answered)


# --- streams ------------------------------------------------------------------------------------------------


def _chunks(kind, answered) -> list:
    _answered(answered, "text/event-stream")
    lines = [block for block in answered.blocks if not block.startswith(":")]
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    *chunks, done = [line.removeprefix("data: ") for line in lines]
    assert done == "[DONE]", done
    return [strictly(kind, json.loads(chunk)) for chunk in chunks]


def chunks_of(answered) -> list[ChatCompletionChunk]:
    """Return the chunks of a chat's stream, which has to end with [DONE]."""
    return _chunks(ChatCompletionChunk, answered)


def completion_chunks_of(answered) -> list[Completion]:
    """Return a completion's chunks. Their type is a whole one's, whose reason is never null."""
    return _chunks(_CompletionChunk, answered)


def _named_events(kind, answered) -> list:
    """Return the events of a stream in which each is named by its type."""
    _answered(answered, "text/event-stream")
    events = []
    for block in answered.blocks:
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}", block
        events.append(body)
    return [strictly(kind, body) for body in events if body["type"] != "ping"]


def response_events_of(answered) -> list[ResponseStreamEvent]:
    """Return a response's events, which have to be numbered from 0."""
    events = _named_events(ResponseStreamEvent, answered)
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(len(events))), numbers
    return events


def message_events_of(answered) -> list[MessageEvent]:
    return _named_events(MessageEvent, answered)


# --- errors -------------------------------------------------------------------------------------------------


def refused(answered, status: int, param: str | None = ..., code: str | None = ...) -> str:
    """Check that a request was refused in OpenAI's shape; return what is said."""
    assert answered.status == status, (answered.status, answered.raw)
    assert answered.headers["Content-Type"].startswith("application/json")
    assert set(answered.body) == {"error"}
    assert set(answered.error) == {"message", "type", "param", "code"}
    assert answered.error["message"].strip()
    assert answered.headers["x-request-id"]
    if param is not ...:
        assert answered.error["param"] == param, answered.error
    if code is not ...:
        assert answered.error["code"] == code, answered.error
    return answered.error["message"]


def refused_as(answered, status: int, kind: str) -> str:
    """Check that a request was refused in Anthropic's shape; return what is said."""
    assert answered.status == status, (answered.status, answered.raw)
    error = strictly(anthropic.types.ErrorResponse, answered.body)
    assert error.error.type == kind
    assert error.request_id == answered.headers["request-id"]
    assert error.error.message.strip()
    return error.error.message
