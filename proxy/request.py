"""How far a request has come, as types: Parsed → Measured → Admitted.

Each step's output is the next one's only input, so what hasn't been measured can't be queued.
"""

from dataclasses import dataclass
from typing import Any, Literal

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
    a resumed answer meets the same noise; `sampling.choice` is 0 here. `max_tokens` None means unsaid.
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

    @property
    def answers(self) -> int:
        return len(self.prompts) * self.choices


@dataclass(frozen=True, slots=True)
class Measured:
    """A request whose tokens are counted: ids and the answer's cap for each prompt, which fit the model."""

    parsed: Parsed
    prompt_ids: tuple[tuple[int, ...], ...]
    max_tokens: tuple[int, ...]
