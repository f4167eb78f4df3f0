"""How far a request has come, as types: Parsed → Measured → Admitted.

Each step's output is the next one's only input, so what hasn't been measured can't be queued.
"""

from dataclasses import dataclass
from typing import Any, Literal

from proxy.authenticate import Caller
from shared.lane_settings import LaneSettings
from shared.sampling import Sampling

Endpoint = Literal["chat", "completions"]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template, as the client sent them: checked, content flattened to text."""

    messages: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A text to go on from."""

    text: str


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

    And the names of each prompt's whole blocks, or none for all of them where they aren't known.
    """

    parsed: Parsed
    ticket: Ticket
    prompt_ids: tuple[tuple[int, ...], ...]
    max_tokens: tuple[int, ...]
    fingerprints: tuple[str, ...]
    names: tuple[tuple[int, ...], ...] = ()

    @property
    def tokens(self) -> int:
        """The most tokens that the request may take: each answer's prompt and cap."""
        pairs = zip(self.prompt_ids, self.max_tokens, strict=True)
        return self.parsed.choices * sum(len(ids) + most for ids, most in pairs)
