"""How a model is to think, in the ways that OpenAI's clients and those of open models say it.

OpenAI's `reasoning_effort`; `enable_thinking` and `thinking_budget` of Qwen's service; OpenRouter's
`reasoning`; and `chat_template_kwargs`, variables of the chat template's that vLLM's clients send.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar, get_args

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from proxy.dialects.parts import Effort
from proxy.fields import Fields, problem
from proxy.request import Thinking
from shared.limits import CONTEXT_TOKENS_MAX, TEMPLATE_OPTION_CHARS_MAX, TEMPLATE_OPTIONS_MAX

ValueT = TypeVar("ValueT")

_OPTIONS: Final = "chat_template_kwargs"
_OPTION_NAME: Final = re.compile("[A-Za-z][A-Za-z0-9_]{0,63}")
# What a template is given anyway.
_NOT_OPTIONS: Final = frozenset({"add_generation_prompt", "continue_final_message", "messages", "tools"})
_EFFORTS: Final[tuple[str, ...]] = get_args(Effort)
# Variables that say whether to think. Templates of different families read different ones.
_SWITCHES: Final = ("enable_thinking", "thinking")


def _options(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise problem("must be an object")
    if len(value) > TEMPLATE_OPTIONS_MAX:
        raise problem(f"must have at most {TEMPLATE_OPTIONS_MAX} names")
    for name, option in value.items():
        if not _OPTION_NAME.fullmatch(name):
            raise problem("must have names of at most 64 letters, digits and '_'")
        if name in _NOT_OPTIONS:
            raise problem("can't be set here", name)
        _check_option(name, option)
    return value


def _check_option(name: str, option: Any) -> None:
    items = option if isinstance(option, list) else [option]
    if any(isinstance(item, list | dict) for item in items):
        raise problem("must be a plain value or a list of plain values", name)
    if name in _SWITCHES and type(option) is not bool:
        raise problem("must be true or false", name)
    if len(json.dumps(option)) > TEMPLATE_OPTION_CHARS_MAX:
        raise problem(f"must have at most {TEMPLATE_OPTION_CHARS_MAX} characters as JSON", name)


Options = Annotated[dict[str, Any], PlainValidator(_options), WithJsonSchema({"type": "object"})]
Budget = Annotated[int, Field(ge=1, le=CONTEXT_TOKENS_MAX)]


class Reasoning(Fields):
    """OpenRouter's object."""

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {"exclude": (False,), "summary": ("auto",)}

    effort: Effort | None = None
    max_tokens: Budget | None = None
    enabled: bool | None = None


class ThinkingFields(Fields):
    """All fields that say how to think; those that say the same thing must not differ."""

    reasoning_effort: Effort | None = None
    reasoning: Reasoning = Reasoning()
    enable_thinking: bool | None = None
    thinking_budget: Budget | None = None
    chat_template_kwargs: Options = Field({})

    @property
    def thinking(self) -> Thinking:
        effort = _agreed(self._efforts)
        return Thinking(
            enabled=_agreed(self._switches),
            effort=None if effort == "none" else effort,
            budget_tokens=_agreed(self._budgets),
        )

    @model_validator(mode="after")
    def _no_two_wishes(self) -> Self:
        thinking = self.thinking
        if thinking.enabled is False and thinking.budget_tokens is not None:
            raise problem("is given, and no thinking is wished", _first(self._budgets))
        return self

    @property
    def _efforts(self) -> dict[str, str | None]:
        of_template = self.chat_template_kwargs.get("reasoning_effort")
        return {
            "reasoning_effort": self.reasoning_effort,
            "reasoning.effort": self.reasoning.effort,
            f"{_OPTIONS}.reasoning_effort": of_template if of_template in _EFFORTS else None,
        }

    @property
    def _switches(self) -> dict[str, bool | None]:
        efforts = {name: False for name, effort in self._efforts.items() if effort == "none"}
        options = {f"{_OPTIONS}.{name}": self.chat_template_kwargs.get(name) for name in _SWITCHES}
        own = {"enable_thinking": self.enable_thinking, "reasoning.enabled": self.reasoning.enabled}
        return {**efforts, **own, **options}

    @property
    def _budgets(self) -> dict[str, int | None]:
        return {"thinking_budget": self.thinking_budget, "reasoning.max_tokens": self.reasoning.max_tokens}


def _agreed(wishes: Mapping[str, ValueT | None]) -> ValueT | None:
    """Return what all fields say that say something."""
    said = {field: value for field, value in wishes.items() if value is not None}
    first = next(iter(said), "")
    for field, value in said.items():
        if value != said[first]:
            raise problem(f"says something else than '{first}'", field)
    return said.get(first)


def _first(wishes: Mapping[str, object]) -> str:
    said: Iterable[str] = (field for field, value in wishes.items() if value is not None)
    return next(iter(said))
