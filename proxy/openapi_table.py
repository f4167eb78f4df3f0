"""Every public URL as the description has it: one line each, with the class that parses its body."""

from dataclasses import dataclass
from typing import Final, Literal

from proxy.dialects.messages_parse import CountBody, MessagesBody
from proxy.dialects.openai_chat import ChatBody
from proxy.dialects.openai_completions import CompletionBody
from proxy.dialects.responses_request import ResponsesBody
from proxy.embeddings import EmbeddingBody
from proxy.fields import Fields
from proxy.tokenize import ChatFormFields, IdsFields, TextFields

Method = Literal["get", "post", "delete"]

# Statuses that any request to a URL may be refused with.
_EVERY: Final = (400, 413, 417)
_ASKED: Final = (*_EVERY, 401, 403, 404)
_SENT: Final = (*_ASKED, 408, 415, 429, 500, 503)
_GENERATED: Final = (*_SENT, 422)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of a URL. `fields` parses its body; None if it takes none. `also` parses another form of it.

    `name` begins the names of its schemas, `answer` is the schema of what comes back. With `streams` that may
    be events instead. `vendor` says whose error bodies it has; `is_open` that it asks for no key.
    """

    method: Method
    path: str
    name: str
    summary: str
    answer: str
    fields: type[Fields] | None = None
    also: type[Fields] | None = None
    streams: bool = False
    generates: bool = False
    vendor: Literal["openai", "anthropic"] = "openai"
    is_open: bool = False
    media: str = "application/json"

    @property
    def statuses(self) -> tuple[int, ...]:
        """Return the statuses of its refusals."""
        if self.is_open:
            return _EVERY
        if self.fields is None:
            return _ASKED
        statuses = _GENERATED if self.generates else _SENT
        return tuple(529 if each == 503 and self.vendor == "anthropic" else each for each in statuses)


def _generating(
    path: str, name: str, summary: str, fields: type[Fields], vendor: str = "openai"
) -> Operation:
    return Operation(
        "post",
        path,
        name,
        summary,
        f"{name}Answer",
        fields,
        streams=True,
        generates=True,
        vendor="anthropic" if vendor == "anthropic" else "openai",
    )


OPERATIONS: Final[tuple[Operation, ...]] = (
    _generating("/v1/chat/completions", "Chat", "Answer a conversation, in OpenAI's shape", ChatBody),
    _generating("/v1/completions", "Completion", "Go on with a text, in OpenAI's shape", CompletionBody),
    _generating(
        "/v1/messages", "Message", "Answer a conversation, in Anthropic's shape", MessagesBody, "anthropic"
    ),
    _generating("/v1/responses", "Response", "Answer, in the shape of OpenAI's responses", ResponsesBody),
    Operation("get", "/v1/responses/{id}", "StoredResponse", "Return a stored response", "ResponseAnswer"),
    Operation("delete", "/v1/responses/{id}", "Forget", "Forget a stored response", "Deleted"),
    Operation(
        "get", "/v1/responses/{id}/input_items", "InputItems", "List what a response was asked", "Items"
    ),
    Operation(
        "post",
        "/v1/responses/{id}/cancel",
        "Cancel",
        "Refused: nothing runs in the background",
        "ResponseAnswer",
    ),
    Operation(
        "post",
        "/v1/embeddings",
        "Embedding",
        "Refused: the model that is served makes text",
        "EmbeddingAnswer",
        EmbeddingBody,
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        "Count",
        "Count a conversation's tokens, in Anthropic's shape",
        "CountAnswer",
        CountBody,
        vendor="anthropic",
    ),
    Operation(
        "post",
        "/tokenize",
        "Tokenize",
        "Return the token ids of a text or of a conversation",
        "TokenizeAnswer",
        TextFields,
        ChatFormFields,
    ),
    Operation(
        "post", "/detokenize", "Detokenize", "Return the text of token ids", "DetokenizeAnswer", IdsFields
    ),
    Operation("get", "/v1/models", "Models", "List the model that is served, under its names", "ModelList"),
    Operation("get", "/v1/models/{id}", "Model", "Say what is true of the served model", "Model"),
    Operation("get", "/health/live", "Live", "Whether the gateway runs", "Live", is_open=True),
    Operation(
        "get", "/health/ready", "Ready", "Whether a request would be answered now", "Ready", is_open=True
    ),
    Operation("get", "/", "StatusPage", "The status page", "Words", is_open=True, media="text/html"),
    Operation("get", "/status", "Status", "The same, as JSON", "Snapshot", is_open=True),
    Operation("get", "/status/history", "History", "Its last quarter of an hour", "History", is_open=True),
    Operation("get", "/metrics", "Metrics", "Prometheus' metrics", "Words", is_open=True, media="text/plain"),
    Operation("get", "/openapi.json", "Description", "This description", "Described", is_open=True),
    Operation("get", "/docs", "Page", "It, for people", "Words", is_open=True, media="text/html"),
)
