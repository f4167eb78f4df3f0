"""The body of /v1/completions to Parsed, every field checked."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema, model_validator

from proxy.dialects.openai_fields import BodyFields
from proxy.fields import check, problem
from proxy.json_body import read_object
from proxy.request import IdsPrompt, Parsed, Prompt, TextPrompt
from shared.limits import PROMPTS_MAX, TOP_LOGPROBS_MAX, VOCABULARY_MAX

# In Parsed.extras: an answer is to begin with its prompt.
ECHO: Final = "echo"
_PROMPT_KINDS: Final = "must be a string, a list of strings, a list of token ids, or a list of such lists"


def parse_completion(body: bytes, seeds: Callable[[], int]) -> Parsed:
    """Parse the body of /v1/completions. `seeds` is asked when the client sends no seed."""
    fields = check(CompletionBody, read_object(body))
    extras = {ECHO: True} if fields.echo else {}
    return fields.parsed("completions", fields.prompts, fields.sampling(seeds, fields.tops), extras)


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


def _none_if_false(value: Any) -> Any:
    return None if value is False else value


_IDS: Final = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "exclusiveMaximum": VOCABULARY_MAX},
    "minItems": 1,
}
_TEXT: Final = {"type": "string", "minLength": 1}
_SEVERAL: Final = {"type": "array", "minItems": 1, "maxItems": PROMPTS_MAX}
Prompts = Annotated[
    tuple[Prompt, ...],
    PlainValidator(_prompts),
    WithJsonSchema({"anyOf": [_TEXT, {**_SEVERAL, "items": _TEXT}, _IDS, {**_SEVERAL, "items": _IDS}]}),
]


class CompletionBody(BodyFields):
    """What completions take. With a `suffix` the answer is what stands between it and the prompt."""

    prompt: Prompts
    suffix: str = ""
    echo: bool = False
    # Clients that ask both endpoints alike send chat's `false` for none.
    logprobs: Annotated[int | None, BeforeValidator(_none_if_false)] = Field(None, ge=0, le=TOP_LOGPROBS_MAX)

    @property
    def tops(self) -> int:
        return -1 if self.logprobs is None else self.logprobs

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        if not self.suffix:
            return self.prompt
        return tuple(
            replace(each, suffix=self.suffix) for each in self.prompt if isinstance(each, TextPrompt)
        )

    @model_validator(mode="after")
    def _prompts_that_are_texts(self) -> Self:
        texts = all(isinstance(each, TextPrompt) for each in self.prompt)
        for field, wished in (("suffix", bool(self.suffix)), ("echo", self.echo)):
            if wished and not texts:
                raise problem("needs prompts that are texts, not token ids", field)
        if self.echo and self.logprobs is not None:
            message = "can't be had with 'logprobs': a prompt's tokens have no log probabilities here"
            raise problem(message, "echo")
        return self
