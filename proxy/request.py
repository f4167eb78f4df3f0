"""How far a request has come, as types: Parsed → Measured → Admitted.

Each step's output is the next one's only input, so what hasn't been measured can't be queued.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from proxy.authenticate import Caller
from shared.lane_settings import LaneSettings
from shared.sampling import Sampling

Endpoint = Literal["chat", "completions", "responses", "messages"]
ToolChoice = Literal["none", "auto", "required", "named"]
ShapeKind = Literal["json_object", "json_schema", "regex", "lark", "choice"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function of the client's that a model may call. `parameters` is the JSON schema of its arguments.

    With `strict` they always are as the schema says; without, the model is trusted to follow it. Where nobody
    said so it is only `wished`: a schema that can't be held to is no reason to refuse.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False
    wished: bool = False


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request and how they are to be used; `name` says which of them where one is "named".

    With "none" a model is shown no tools. Unless `parallel`, it makes one call at most.
    """

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = "auto"
    name: str = ""
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Shape:
    """What an answer's text has to be.

    `source` is a JSON schema, a regular expression, a grammar in Lark's language, or the allowed texts as a
    JSON list; empty for any JSON object. `param` names the client's field.
    """

    kind: ShapeKind
    source: str
    param: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a model is to think before it answers, where its template and format know that.

    `enabled` and `effort` None mean unsaid: as the template has it. At most `budget_tokens` are thought.
    """

    enabled: bool | None = None
    effort: str | None = None
    budget_tokens: int | None = None


NO_TOOLS: Final = ToolUse()
AS_EVER: Final = Thinking()


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template, checked, content flattened to text.

    They are in the form that templates expect, whatever the client's dialect was: `role` is system, user,
    assistant or tool; an assistant's `tool_calls` are OpenAI's, but for arguments, which are an object, and
    its thoughts are `reasoning_content`; a tool's result has `tool_call_id` and `name`. `options` are further
    variables of the template's. With `continues` the last one, an assistant's, is gone on with. `param` is
    what the dialect calls the messages.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[Tool, ...] = ()
    thinking: Thinking = AS_EVER
    options: Mapping[str, Any] = field(default_factory=dict)
    continues: bool = False
    param: str = "messages"


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A text to go on from; with a `suffix`, up to where that begins."""

    text: str
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class IdsPrompt:
    """Token ids to go on from."""

    ids: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | IdsPrompt


@dataclass(frozen=True, slots=True)
class Parsed:
    """A well-formed request: every field checked, nothing counted yet.

    `choices` answers are made for each of `prompts`; `sampling.seed` is the client's or a random one, so that
    a resumed answer meets the same noise; `sampling.choice` is 0 here. `max_tokens` and `service_tier` None
    mean unsaid, and so does an empty `prompt_cache_key`.

    With `takes_what_is_left` an answer has fewer than `max_tokens` where the context has less room; without,
    that is refused.

    `tools`, `shape` and `thinking` are what a grammar is made of; `extras` are what the dialect itself wants
    to know of the request when it writes the answer. `max_tokens_field` is what the client calls max_tokens.

    With `ignores_eos` no token ends an answer: it goes on up to its cap or a stop string. With
    `continuous_usage` each chunk of a stream says what was used so far.
    """

    endpoint: Endpoint
    model: str
    prompts: tuple[Prompt, ...]
    choices: int
    max_tokens: int | None
    sampling: Sampling
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    service_tier: str | None = None
    prompt_cache_key: str = ""
    tools: ToolUse = NO_TOOLS
    shape: Shape | None = None
    thinking: Thinking = AS_EVER
    extras: Mapping[str, Any] = field(default_factory=dict)
    max_tokens_field: str = "max_tokens"
    takes_what_is_left: bool = False
    ignores_eos: bool = False
    continuous_usage: bool = False

    @property
    def reads_format(self) -> bool:
        """Whether thoughts and calls are read out of the answers' text: where there is a conversation."""
        return all(isinstance(prompt, ChatPrompt) for prompt in self.prompts)

    @property
    def continues(self) -> bool:
        """Whether the answer goes on in a text of the assistant's that the prompt ends with."""
        return any(isinstance(prompt, ChatPrompt) and prompt.continues for prompt in self.prompts)

    @property
    def answers(self) -> int:
        return len(self.prompts) * self.choices


@dataclass(frozen=True, slots=True)
class Cap:
    """A number of tokens, and whose bound it is, in words."""

    tokens: int
    owner: str


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a request may have: who asks, in which lane it is served, and within which bounds.

    `context` bounds prompt and answer together; `max_tokens` what may be asked for, None for no more than
    the context; `deadline_s` is the longest wait for a start. Beginnings of its prompts are shared among
    requests of the same `salt` only.
    """

    caller: Caller
    lane: LaneSettings
    context: Cap
    max_tokens: Cap | None
    deadline_s: float
    salt: str = ""

    @property
    def max_tokens_default(self) -> int:
        """What an answer gets that asks for no number."""
        default = self.lane.max_tokens_default
        return default if self.max_tokens is None else min(default, self.max_tokens.tokens)


@dataclass(frozen=True, slots=True)
class Measured:
    """A request whose tokens are counted: ids, the answer's cap and a fingerprint for each prompt.

    And the names of each prompt's whole blocks, or none for all of them where they aren't known. `thinks`
    says that the prompt ends inside a thought, which the answer goes on with.
    """

    parsed: Parsed
    ticket: Ticket
    prompt_ids: tuple[tuple[int, ...], ...]
    max_tokens: tuple[int, ...]
    fingerprints: tuple[str, ...]
    names: tuple[tuple[int, ...], ...] = ()
    thinks: bool = False

    @property
    def tokens(self) -> int:
        """The most tokens that the request may take: each answer's prompt and cap."""
        pairs = zip(self.prompt_ids, self.max_tokens, strict=True)
        return self.parsed.choices * sum(len(ids) + most for ids, most in pairs)
