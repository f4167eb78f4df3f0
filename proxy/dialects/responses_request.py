"""Bytes to Parsed: the body of /v1/responses, every field checked, and what its answer repeats of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    FailFast,
    Field,
    PlainValidator,
    PrivateAttr,
    WithJsonSchema,
    model_validator,
)

from proxy.dialects.openai_thinking import Reasoning, ThinkingFields
from proxy.dialects.parts import JsonSchemaFields, Verbosity, shown_tools
from proxy.dialects.responses_items import InputItem, Item, messages_of
from proxy.dialects.responses_tools import CHOICE_SCHEMA, AnyTool, Called, Entry, Offered, loosened, offered
from proxy.fields import Fields, check, problem
from proxy.json_body import read_object
from proxy.request import ChatPrompt, Parsed, Shape
from proxy.session import CACHE_KEY_CHARS_MAX
from shared.limits import (
    CONTEXT_TOKENS_MAX,
    ITEM_ID_CHARS_MAX,
    MESSAGES_MAX,
    METADATA_KEY_CHARS_MAX,
    METADATA_MAX,
    METADATA_VALUE_CHARS_MAX,
    PENALTY_MAX,
    REPETITION_PENALTY_MAX,
    REPETITION_PENALTY_MIN,
    SEED_MAX,
    SEED_MIN,
    TEMPERATURE_MAX,
    TOOLS_MAX,
    TOP_LOGPROBS_MAX,
    VOCABULARY_MAX,
)
from shared.sampling import Sampling

ASKED: Final = "responses"  # where Parsed.extras have it
_LOGPROBS: Final = "message.output_text.logprobs"
_ENCRYPTED: Final = "reasoning.encrypted_content"
# Of these there is nothing to include: they are about what OpenAI's servers run, and about images.
_INCLUDES: Final = frozenset(
    {
        _LOGPROBS,
        _ENCRYPTED,
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
# Accepted and ignored: none of them changes a token of the answer.
HARMLESS: Final = frozenset(
    {
        "access_programs",
        "client_metadata",
        "image",
        "prompt_cache_options",
        "prompt_cache_retention",
    }
)
# Not supported, and accepted only with these values (or null), which ask for nothing. What is too long for
# the context is refused either way, so truncation "auto" drops nothing silently.
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "background": (False,),
    "background_options": (),
    "context_management": ([],),
    "conversation": (),
    "moderation": (),
    "moderation_policy": (),
    "prompt": (),
    "truncation": ("disabled", "auto"),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What is wanted of an answer beyond Parsed: to go on from `previous`, to be kept, and to be written so.

    `items` are the request's own, some perhaps references to kept ones; `repeated` is what a Response
    repeats of its request; `names` are the tools by what the model calls them. Those in `unsaid` needn't be
    strict.
    """

    items: tuple[Item, ...]
    instructions: str
    previous: str
    keeps: bool
    encrypts: bool
    repeated: Mapping[str, Any]
    names: Mapping[str, Called]
    unsaid: frozenset[str]

    @property
    def is_whole(self) -> bool:
        """Whether the conversation is all here, and nothing of it has to be looked up."""
        return not self.previous and all(item["type"] != "item_reference" for item in self.items)


def parse_response(body: bytes, seeds: Callable[[], int]) -> Parsed:
    """Parse the body of /v1/responses. `seeds` is asked when the client sends no seed.

    Where something is to be looked up first, the prompt is empty for now: see Conversations.
    """
    fields = check(ResponsesBody, read_object(body))
    use = fields.offer.use
    asked = fields.asked
    thinking = fields.thinking
    messages = messages_of(asked.items, asked.instructions) if asked.is_whole else ()
    return Parsed(
        endpoint="responses",
        model=fields.model,
        prompts=(
            ChatPrompt(messages, shown_tools(use), thinking, fields.chat_template_kwargs, param="input"),
        ),
        choices=1,
        max_tokens=fields.max_output_tokens,
        max_tokens_field="max_output_tokens",
        sampling=fields.sampling(seeds),
        stops=(),
        stream=fields.stream,
        include_usage=True,
        service_tier=fields.service_tier,
        prompt_cache_key=fields.prompt_cache_key,
        tools=use,
        shape=fields.text.shape,
        thinking=thinking,
        extras={ASKED: asked},
    )


def without_unsaid(parsed: Parsed, asked: Asked) -> Parsed:
    """Return a request whose tools are strict only where it says so: the model's calls follow no schema."""
    tools = tuple(
        replace(tool, strict=tool.strict and tool.name not in asked.unsaid) for tool in parsed.tools.tools
    )
    shown = tuple(loosened(tool, asked.unsaid) for tool in asked.repeated["tools"])
    asked = replace(asked, repeated={**asked.repeated, "tools": shown}, unsaid=frozenset())
    return replace(parsed, tools=replace(parsed.tools, tools=tools), extras={**parsed.extras, ASKED: asked})


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


def _included(value: Any) -> frozenset[str]:
    if not isinstance(value, list):
        raise problem("must be a list")
    for index, each in enumerate(value):
        if not isinstance(each, str) or each not in _INCLUDES:
            raise problem(f"must be one of {', '.join(sorted(_INCLUDES))}", str(index))
    return frozenset(value)


Included = Annotated[
    frozenset[str],
    PlainValidator(_included),
    WithJsonSchema({"type": "array", "items": {"type": "string", "enum": sorted(_INCLUDES)}}),
]


def _metadata(value: dict[str, str]) -> dict[str, str]:
    if len(value) > METADATA_MAX:
        raise problem(f"must have at most {METADATA_MAX} entries")
    for key, text in value.items():
        if len(key) > METADATA_KEY_CHARS_MAX or len(text) > METADATA_VALUE_CHARS_MAX:
            raise problem(
                f"must have keys of at most {METADATA_KEY_CHARS_MAX} characters "
                f"and values of at most {METADATA_VALUE_CHARS_MAX}"
            )
    return value


class _StreamOptions(Fields):
    harmless: ClassVar[frozenset[str]] = frozenset({"include_obfuscation", "include_usage"})


class _Reasoning(Reasoning):
    """How to think. There are no summaries: the thought itself is in the answer."""

    harmless: ClassVar[frozenset[str]] = frozenset({"context", "generate_summary", "summary"})
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {"exclude": (False,), "mode": ("standard",)}


class _SchemaFormat(JsonSchemaFields):
    type: Literal["json_schema"]

    @property
    def shown(self) -> dict[str, Any]:
        return {
            "type": "json_schema",
            "name": self.name,
            "description": self.description or None,
            "schema": self.schema_,
            "strict": self.strict,
        }


class _PlainFormat(Fields):
    type: Literal["text", "json_object"]

    @property
    def shown(self) -> dict[str, Any]:
        return {"type": self.type}


def _format(value: Any) -> _SchemaFormat | _PlainFormat:
    if not isinstance(value, dict):
        raise problem("must be an object")
    if value.get("type") == "json_schema":
        return _SchemaFormat.model_validate(value)
    if value.get("type") not in ("text", "json_object"):
        raise problem("must be text, json_object or json_schema", "type")
    return _PlainFormat.model_validate(value)


_Format = Annotated[
    _SchemaFormat | _PlainFormat,
    PlainValidator(_format, json_schema_input_type=_SchemaFormat | _PlainFormat),
]


class _Text(Fields):
    """What the text is to be. `verbosity` is a hint, which no template here has a variable for."""

    format: _Format | None = None
    verbosity: Verbosity = "medium"

    @property
    def shape(self) -> Shape | None:
        if isinstance(self.format, _SchemaFormat):
            return self.format.shape("text.format.schema")
        if self.format is None or self.format.type == "text":
            return None
        return Shape("json_object", "", "text.format")

    @property
    def shown(self) -> dict[str, Any]:
        format_ = {"type": "text"} if self.format is None else self.format.shown
        return {"format": format_, "verbosity": self.verbosity}


class _Sampled(Fields):
    """How to draw: OpenAI's two fields, and those that our other endpoints have besides."""

    temperature: float = Field(1.0, ge=0, le=TEMPERATURE_MAX)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, le=VOCABULARY_MAX, description="0 and -1 mean no limit")
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, ge=REPETITION_PENALTY_MIN, le=REPETITION_PENALTY_MAX)
    presence_penalty: float = Field(0.0, ge=-PENALTY_MAX, le=PENALTY_MAX)
    frequency_penalty: float = Field(0.0, ge=-PENALTY_MAX, le=PENALTY_MAX)
    seed: int | None = Field(None, ge=SEED_MIN, le=SEED_MAX)
    top_logprobs: int = Field(0, ge=0, le=TOP_LOGPROBS_MAX)
    include: Included = frozenset()

    @property
    def wants_logprobs(self) -> bool:
        return self.top_logprobs > 0 or _LOGPROBS in self.include

    def sampling(self, seeds: Callable[[], int]) -> Sampling:
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(0, self.top_k),
            min_p=self.min_p,
            seed=seeds() if self.seed is None else self.seed,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            top_logprobs=self.top_logprobs if self.wants_logprobs else -1,
        )


class ResponsesBody(_Sampled, ThinkingFields):
    """What the endpoint takes."""

    harmless: ClassVar[frozenset[str]] = HARMLESS
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = _NEUTRAL

    model: str = Field(min_length=1)
    input: Annotated[
        list[InputItem],
        FailFast(),
        Field(max_length=MESSAGES_MAX),
        BeforeValidator(_as_items, json_schema_input_type=str | list[InputItem]),
    ] = Field([])
    instructions: str = ""
    previous_response_id: str = Field("", max_length=ITEM_ID_CHARS_MAX)
    max_output_tokens: int | None = Field(None, ge=1, le=CONTEXT_TOKENS_MAX)
    max_tool_calls: int | None = Field(
        None, ge=1, le=CONTEXT_TOKENS_MAX, description="of tools run here, and none is"
    )
    tools: Annotated[list[AnyTool], Field(max_length=TOOLS_MAX), FailFast()] = Field([])
    tool_choice: Annotated[Any, WithJsonSchema(CHOICE_SCHEMA)] = None
    parallel_tool_calls: bool = True
    text: _Text = _Text()
    reasoning: _Reasoning = _Reasoning()
    metadata: Annotated[dict[str, str], AfterValidator(_metadata)] = Field({})
    store: bool = True
    stream: bool = False
    stream_options: _StreamOptions | None = None
    service_tier: str | None = None
    prompt_cache_key: str = Field("", max_length=CACHE_KEY_CHARS_MAX)
    safety_identifier: str | None = None
    user: str | None = None

    _offer: Offered = PrivateAttr()

    @model_validator(mode="after")
    def _tools_agree(self) -> Self:
        entries: list[Entry | None] = self.tools
        self._offer = offered(entries, self.tool_choice, parallel=self.parallel_tool_calls)
        return self

    @model_validator(mode="after")
    def _something_is_said(self) -> Self:
        if not (self.input or self.instructions or self.previous_response_id):
            raise problem("is required", "input")
        return self

    @model_validator(mode="after")
    def _logprobs_without_calls(self) -> Self:
        """Refuse both: a call's tokens have no place in an answer's texts."""
        if self.wants_logprobs and shown_tools(self._offer.use):
            at = "top_logprobs" if self.top_logprobs else "include"
            raise problem("isn't supported beside tools: log probabilities are of texts only", at)
        return self

    @property
    def offer(self) -> Offered:
        return self._offer

    @property
    def asked(self) -> Asked:
        return Asked(
            tuple(self.input),
            self.instructions,
            self.previous_response_id,
            self.store,
            _ENCRYPTED in self.include,
            self._repeated(),
            self._offer.names,
            self._offer.unsaid,
        )

    def _repeated(self) -> dict[str, Any]:
        return {
            "background": False,
            "instructions": self.instructions or None,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata,
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": self.previous_response_id or None,
            "prompt_cache_key": self.prompt_cache_key or None,
            "reasoning": {"effort": self.reasoning.effort, "summary": None},
            "safety_identifier": self.safety_identifier,
            "store": self.store,
            "temperature": self.temperature,
            "text": self.text.shown,
            "tool_choice": self._offer.choice,
            "tools": self._offer.shown,
            "top_logprobs": self.top_logprobs,
            "top_p": self.top_p,
            "truncation": "disabled",
            "user": self.user,
        }
