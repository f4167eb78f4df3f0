"""Bytes to Parsed: the bodies of /v1/messages and of its token count, every field checked."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from proxy.dialects.messages_content import conversation
from proxy.dialects.parts import Choice, Description, Name, Schema, schema_text, shown_tools, tool_use
from proxy.fields import Fields, check, problem
from proxy.json_body import read_object
from proxy.request import ChatPrompt, Parsed, Shape, Thinking, Tool, ToolChoice, ToolUse
from shared.limits import (
    CONTEXT_TOKENS_MAX,
    MESSAGES_MAX,
    STOP_CHARS_MAX,
    STOP_SEQUENCES_MAX,
    TOOLS_MAX,
    VOCABULARY_MAX,
)
from shared.sampling import Sampling

# Accepted and ignored: none of them changes a token of the answer.
HARMLESS: Final = frozenset(
    {
        "billing_policy",
        "cache_control",
        "diagnostics",
        "inference_geo",
        "metadata",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
# Not supported, and accepted only with these values (or null), which ask for nothing.
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "compaction": (),
    "container": (),
    "fallback_credit_token": (),
    "fallbacks": ([],),
    "mcp_servers": ([],),
    "thread": (),
}
_CHOICES: Final[Mapping[str, ToolChoice]] = {
    "auto": "auto",
    "any": "required",
    "tool": "named",
    "none": "none",
}
_PLACE_OF_SHAPE: Final = "output_config.format"
# These only forget what was said long before, to save room. Nothing is forgotten here.
_FORGETTING: Final = "clear_"
_OWN_TOOL: Final = "custom"
_EXAMPLES: Final = "\n\nExamples of its input:\n"


def parse_messages(body: bytes, seeds: Callable[[], int]) -> Parsed:
    """Parse the body of /v1/messages.

    Its clients have to say a number of tokens and mostly say the most that there can be, so an answer gets
    what the context has left, and says so where it is cut by that.
    """
    return _parsed(check(MessagesBody, read_object(body)), seeds)


def parse_count(body: bytes, seeds: Callable[[], int]) -> Parsed:
    """Parse the body of /v1/messages/count_tokens: the same, but no `max_tokens` is needed."""
    return replace(_parsed(check(CountBody, read_object(body)), seeds), max_tokens=None)


def _parsed(fields: "CountBody", seeds: Callable[[], int]) -> Parsed:
    messages, continues = conversation(fields.system, fields.messages)
    tools, thinking = fields.tool_use, fields.thinks
    prompt = ChatPrompt(messages, shown_tools(tools), thinking, continues=continues)
    sampling = Sampling(temperature=fields.temperature, top_p=fields.top_p, top_k=fields.top_k, seed=seeds())
    return Parsed(
        endpoint="messages",
        model=fields.model,
        prompts=(prompt,),
        choices=1,
        max_tokens=fields.max_tokens,
        sampling=sampling,
        stops=tuple(dict.fromkeys(fields.stop_sequences)),
        stream=fields.stream,
        include_usage=True,
        service_tier=fields.service_tier,
        tools=tools,
        shape=fields.shape,
        thinking=thinking,
        takes_what_is_left=True,
        extras={"shows_thoughts": fields.thinking is None or fields.thinking.display != "omitted"},
    )


def _no_wish(tier: Any) -> Any:
    """Return a tier, but None for what asks for no lane of its own."""
    return None if tier in ("auto", "standard_only") else tier


def _forgets_only(management: dict[str, Any]) -> dict[str, Any]:
    edits = management.get("edits") or []
    for name in management.keys() - {"edits"}:
        raise problem("is no field known here", name)
    if not isinstance(edits, list) or not all(isinstance(edit, dict) for edit in edits):
        raise problem("must be a list of objects", "edits")
    for index, edit in enumerate(edits):
        if not str(edit.get("type")).startswith(_FORGETTING):
            raise problem("isn't supported by this server; leave the edit out", f"edits.{index}.type")
    return management


def _clients_own(tool: Any) -> Any:
    """Refuse the vendor's own tools by their name, before their fields are called unknown."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in (None, _OWN_TOOL):
        raise problem(f"is {json.dumps(kind)[:100]}, a tool that this server doesn't have", "type")
    return tool


class _Tool(Fields):
    harmless: ClassVar[frozenset[str]] = frozenset({"cache_control", "eager_input_streaming", "type"})
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "allowed_callers": (["direct"], []),
        "defer_loading": (False,),
    }

    name: Name
    description: Description = ""
    input_schema: Schema
    strict: bool = False
    input_examples: tuple[dict[str, Any], ...] = Field((), max_length=TOOLS_MAX, strict=False)

    @property
    def tool(self) -> Tool:
        """Return the tool; examples of its input are part of how it is described."""
        shown = "\n".join(map(schema_text, self.input_examples))
        described = self.description + (_EXAMPLES + shown if shown else "")
        return Tool(self.name, described, self.input_schema, strict=self.strict)


class _ToolChoice(Fields):
    type: Literal["auto", "any", "tool", "none"]
    name: Annotated[str, Field(min_length=1)] | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _one_is_named(self) -> Self:
        if (self.type == "tool") != (self.name is not None):
            raise problem("is needed where the type is 'tool', and only there", "name")
        return self


class _Thinking(Fields):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(None, ge=1, le=CONTEXT_TOKENS_MAX)
    display: Literal["summarized", "omitted"] | None = None

    @model_validator(mode="after")
    def _budget_if_enabled(self) -> Self:
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise problem("is needed where the type is 'enabled', and only there", "budget_tokens")
        return self


class _JsonFormat(Fields):
    type: Literal["json_schema"]
    schema_: Schema = Field(alias="schema")

    @property
    def shape(self) -> Shape:
        return Shape("json_schema", schema_text(self.schema_), f"{_PLACE_OF_SHAPE}.schema")


class _OutputConfig(Fields):
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {"task_budget": ()}

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: _JsonFormat | None = None


# For the published description; messages_content says what is wrong with a block.
_CONTENT_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}},
        },
    ]
}
_MESSAGE_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": _CONTENT_SCHEMA},
}


class CountBody(Fields):
    """What a prompt is made of, and how an answer to it is drawn. `output_format` is an older name."""

    harmless: ClassVar[frozenset[str]] = HARMLESS
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = _NEUTRAL

    model: str = Field(min_length=1)
    messages: list[Annotated[Any, WithJsonSchema(_MESSAGE_SCHEMA)]] = Field(
        min_length=1, max_length=MESSAGES_MAX
    )
    system: Annotated[Any, WithJsonSchema(_CONTENT_SCHEMA)] = ""
    max_tokens: int | None = Field(None, ge=1, le=CONTEXT_TOKENS_MAX)
    temperature: float = Field(1.0, ge=0, le=1)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, le=VOCABULARY_MAX, description="0 means no limit")
    stop_sequences: list[Annotated[str, Field(min_length=1, max_length=STOP_CHARS_MAX)]] = Field(
        [], max_length=STOP_SEQUENCES_MAX
    )
    stream: bool = False
    tools: list[Annotated[_Tool, BeforeValidator(_clients_own)]] = Field([], max_length=TOOLS_MAX)
    tool_choice: _ToolChoice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig = _OutputConfig()
    output_format: _JsonFormat | None = None
    context_management: Annotated[dict[str, Any], AfterValidator(_forgets_only)] | None = None
    service_tier: Annotated[str | None, BeforeValidator(_no_wish)] = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.output_format is not None and self.output_config.format is not None:
            raise problem(f"is the older name of '{_PLACE_OF_SHAPE}'; send one of them", "output_format")
        _ = self.tool_use  # it raises what is wrong with it
        return self

    @property
    def tool_use(self) -> ToolUse:
        wish = self.tool_choice
        choice = Choice() if wish is None else Choice(_CHOICES[wish.type], wish.name or "")
        parallel = wish is None or not wish.disable_parallel_tool_use
        tools = tuple(each.tool for each in self.tools)
        return tool_use(tools, choice, parallel=parallel, choice_at="tool_choice")

    @property
    def shape(self) -> Shape | None:
        wished = self.output_config.format or self.output_format
        return None if wished is None else wished.shape

    @property
    def thinks(self) -> Thinking:
        """Return how to think. What thinks between its calls of tools only is left to the template."""
        effort, wish = self.output_config.effort, self.thinking
        if wish is None or wish.type == "between_tools":
            return Thinking(effort=effort)
        return Thinking(wish.type != "disabled", effort, wish.budget_tokens)


class MessagesBody(CountBody):
    """A request for an answer, which has to say how long that may get."""

    max_tokens: int = Field(ge=1, le=CONTEXT_TOKENS_MAX)
