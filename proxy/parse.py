"""Bytes to Parsed: the bodies of the two OpenAI endpoints, every field checked.

`max_tokens` that a client leaves out stays None on both endpoints, and the gateway's own default applies; the
16 tokens that OpenAI documents for completions would cut nearly every answer.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import BeforeValidator, FailFast, Field, PlainValidator, model_validator

from proxy.fields import Fields, check, problem
from proxy.json_body import read_object
from proxy.request import ChatPrompt, Endpoint, IdsPrompt, Parsed, Prompt, TextPrompt
from proxy.session import CACHE_KEY_CHARS_MAX
from shared.errors import InvalidRequest
from shared.limits import (
    CHOICES_MAX,
    CONTEXT_TOKENS_MAX,
    LOGIT_BIAS_MAX,
    LOGIT_BIASES_MAX,
    MESSAGES_MAX,
    PENALTY_MAX,
    PROMPTS_MAX,
    REPETITION_PENALTY_MAX,
    REPETITION_PENALTY_MIN,
    SEED_MAX,
    SEED_MIN,
    SEQUENCES_PER_REQUEST_MAX,
    STOP_CHARS_MAX,
    STOPS_MAX,
    TEMPERATURE_MAX,
    TOP_LOGPROBS_MAX,
    VOCABULARY_MAX,
)
from shared.sampling import LogitBias, Sampling

# Accepted and ignored: none of them changes a token of the answer.
HARMLESS: Final = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_retention",
        "safety_identifier",
        "store",
        "user",
    }
)
# Not supported, and accepted only with these values (or null), which ask for nothing.
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {"best_of": (1,)}
_NEUTRAL_CHAT: Final[Mapping[str, tuple[object, ...]]] = {
    **_NEUTRAL,
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
_NEUTRAL_COMPLETION: Final[Mapping[str, tuple[object, ...]]] = {**_NEUTRAL, "echo": (False,), "suffix": ("",)}
# What clients send back when they append an answer to the conversation as they got it.
_NEUTRAL_MESSAGE: Final[Mapping[str, tuple[object, ...]]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "reasoning": (),
    "reasoning_content": (),
    "refusal": (),
    "tool_call_id": (),
    "tool_calls": ([],),
}
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_ID: Final = re.compile("[0-9]{1,16}")
_PROMPT_KINDS: Final = "must be a string, a list of strings, a list of token ids, or a list of such lists"


def parse_chat(body: bytes, seeds: Callable[[], int]) -> Parsed:
    """Parse the body of /v1/chat/completions. `seeds` is asked when the client sends no seed."""
    fields = check(_ChatBody, read_object(body))
    messages = tuple({"role": message.role, "content": message.content} for message in fields.messages)
    return _parsed("chat", fields, (ChatPrompt(messages),), fields.tokens_asked, seeds)


def parse_completion(body: bytes, seeds: Callable[[], int]) -> Parsed:
    """Parse the body of /v1/completions. `seeds` is asked when the client sends no seed."""
    fields = check(_CompletionBody, read_object(body))
    return _parsed("completions", fields, fields.prompt, fields.max_tokens, seeds)


def _parsed(
    endpoint: Endpoint,
    fields: "_ChatBody | _CompletionBody",
    prompts: tuple[Prompt, ...],
    max_tokens: int | None,
    seeds: Callable[[], int],
) -> Parsed:
    if len(prompts) * fields.n > SEQUENCES_PER_REQUEST_MAX:
        raise InvalidRequest(
            f"'n' asks for {len(prompts) * fields.n} answers over all prompts; "
            f"{SEQUENCES_PER_REQUEST_MAX} is the most for one request.",
            param="n",
        )
    return Parsed(
        endpoint=endpoint,
        model=fields.model,
        prompts=prompts,
        choices=fields.n,
        max_tokens=max_tokens,
        sampling=fields.sampling(seeds, fields.tops),
        stops=fields.stop,
        stream=fields.stream,
        include_usage=fields.stream_options is not None and fields.stream_options.include_usage,
        service_tier=fields.service_tier,
        prompt_cache_key=fields.prompt_cache_key,
    )


def _stops(value: Any) -> tuple[str, ...]:
    stops = value if isinstance(value, list) else [value]
    if any(type(stop) is not str for stop in stops):
        raise problem("must be a string or a list of strings")
    if len(stops) > STOPS_MAX:
        raise problem(f"must have at most {STOPS_MAX} strings")
    if not all(1 <= len(stop) <= STOP_CHARS_MAX for stop in stops):
        raise problem(f"must hold strings of 1 to {STOP_CHARS_MAX} characters")
    return tuple(dict.fromkeys(stops))


def _biases(value: Any) -> tuple[LogitBias, ...]:
    """Return the biases in the order of their ids: whoever asks for the same asks alike."""
    if not isinstance(value, dict):
        raise problem("must be an object of token ids and numbers")
    if len(value) > LOGIT_BIASES_MAX:
        raise problem(f"must have at most {LOGIT_BIASES_MAX} tokens")
    biases = {_biased_id(key): _bias(key, bias) for key, bias in value.items()}
    if len(biases) < len(value):
        raise problem("must name a token once; leading zeros make no other one")
    return tuple(LogitBias(token, bias) for token, bias in sorted(biases.items()))


def _biased_id(key: str) -> int:
    if not _ID.fullmatch(key) or int(key) >= VOCABULARY_MAX:
        raise problem(f"must have token ids in [0, {VOCABULARY_MAX}) for names")
    return int(key)


def _bias(key: str, value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= LOGIT_BIAS_MAX:
        raise problem(f"must be a number in [-{LOGIT_BIAS_MAX:g}, {LOGIT_BIAS_MAX:g}]", key)
    return float(value)


def _none_if_false(value: Any) -> Any:
    return None if value is False else value


def _role(value: Any) -> str:
    if value in ("tool", "function"):
        raise problem(f"isn't supported by this server with the value '{value}'")
    if not isinstance(value, str) or value not in _ROLES:
        raise problem(f"must be one of {', '.join(_ROLES)}")
    return _ROLES[value]


def _content(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise problem("must be a string or a list of text parts that isn't empty")
    return "".join(_part_text(part, str(index)) for index, part in enumerate(value))


def _part_text(part: Any, at: str) -> str:
    if not isinstance(part, dict):
        raise problem("must be an object", at)
    if part.get("type") != "text":
        raise problem("must be 'text', the only kind of content that this server supports", f"{at}.type")
    if not isinstance(part.get("text"), str):
        raise problem("must be a string", f"{at}.text")
    for name in part.keys() - {"type", "text"}:
        raise problem("is no field known here", f"{at}.{name}")
    return str(part["text"])


def _prompts(value: Any) -> tuple[Prompt, ...]:
    if isinstance(value, str):
        return (_text_prompt(value, ""),)
    if not isinstance(value, list):
        raise problem(_PROMPT_KINDS)
    if not value:
        raise problem("must not be empty")
    kinds = set(map(type, value))
    if kinds == {int}:
        return (_ids_prompt(value, ""),)
    if len(value) > PROMPTS_MAX:
        raise problem(f"must have at most {PROMPTS_MAX} prompts")
    if kinds == {str}:
        return tuple(_text_prompt(text, str(index)) for index, text in enumerate(value))
    if kinds == {list}:
        return tuple(_ids_prompt(ids, str(index)) for index, ids in enumerate(value))
    raise problem(_PROMPT_KINDS)


def _text_prompt(text: str, at: str) -> TextPrompt:
    if not text:
        raise problem("must not be empty", at)
    return TextPrompt(text)


def _ids_prompt(ids: list[Any], at: str) -> IdsPrompt:
    if not ids:
        raise problem("must not be empty", at)
    if set(map(type, ids)) != {int}:
        raise problem("must hold token ids, all integers", at)
    if min(ids) < 0 or max(ids) >= VOCABULARY_MAX:
        raise problem(f"must hold token ids in [0, {VOCABULARY_MAX})", at)
    return IdsPrompt(tuple(ids))


class _StreamOptions(Fields):
    include_usage: bool = False


class _Message(Fields):
    """One message; `name` is accepted and ignored, since chat templates have no place for it."""

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = _NEUTRAL_MESSAGE

    role: Annotated[str, PlainValidator(_role)]
    content: Annotated[str, PlainValidator(_content)]
    name: str = ""


class _Body(Fields):
    """What both endpoints take."""

    harmless: ClassVar[frozenset[str]] = HARMLESS

    model: str = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1, le=CONTEXT_TOKENS_MAX)
    temperature: float = Field(1.0, ge=0, le=TEMPERATURE_MAX)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, le=VOCABULARY_MAX, description="0 and -1 mean no limit")
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, ge=REPETITION_PENALTY_MIN, le=REPETITION_PENALTY_MAX)
    presence_penalty: float = Field(0.0, ge=-PENALTY_MAX, le=PENALTY_MAX)
    frequency_penalty: float = Field(0.0, ge=-PENALTY_MAX, le=PENALTY_MAX)
    logit_bias: Annotated[tuple[LogitBias, ...], PlainValidator(_biases)] = ()
    seed: int | None = Field(None, ge=SEED_MIN, le=SEED_MAX)
    stop: Annotated[tuple[str, ...], PlainValidator(_stops)] = ()
    n: int = Field(1, ge=1, le=CHOICES_MAX)
    stream: bool = False
    stream_options: _StreamOptions | None = None
    service_tier: str | None = None
    prompt_cache_key: str = Field("", max_length=CACHE_KEY_CHARS_MAX)

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise problem("is only allowed when 'stream' is true", "stream_options")
        return self

    def sampling(self, seeds: Callable[[], int], tops: int) -> Sampling:
        """Return how to draw; `tops` alternatives to a token are wanted, -1: no log probabilities."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(0, self.top_k),
            min_p=self.min_p,
            seed=seeds() if self.seed is None else self.seed,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            top_logprobs=tops,
        )


class _ChatBody(_Body):
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = _NEUTRAL_CHAT

    messages: Annotated[list[_Message], Field(min_length=1, max_length=MESSAGES_MAX), FailFast()]
    max_completion_tokens: int | None = Field(None, ge=1, le=CONTEXT_TOKENS_MAX)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=TOP_LOGPROBS_MAX)

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise problem("differs from 'max_tokens'; send one of them", "max_completion_tokens")
        return self

    @model_validator(mode="after")
    def _alternatives_need_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise problem("is only allowed when 'logprobs' is true", "top_logprobs")
        return self

    @property
    def tokens_asked(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def tops(self) -> int:
        return self.top_logprobs if self.logprobs else -1


class _CompletionBody(_Body):
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = _NEUTRAL_COMPLETION

    prompt: Annotated[tuple[Prompt, ...], PlainValidator(_prompts)]
    # Clients that ask both endpoints alike send chat's `false` for none.
    logprobs: Annotated[int | None, BeforeValidator(_none_if_false)] = Field(None, ge=0, le=TOP_LOGPROBS_MAX)

    @property
    def tops(self) -> int:
        return -1 if self.logprobs is None else self.logprobs
