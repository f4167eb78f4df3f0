"""POST /tokenize and /detokenize: what texts, conversations and ids are to the served model.

A conversation is given as to /v1/chat/completions, with any of that endpoint's fields, and comes to the ids
that a request with it is charged for.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Final, TypeVar

from pydantic import FailFast, Field

from proxy.dialects.openai_chat import ChatBody, parse_chat
from proxy.fields import Fields, check
from proxy.json_body import read_object
from proxy.measure import Measurer, refuse_hopeless
from proxy.request import Parsed, Prompt, TextPrompt, Ticket
from proxy.text_model import TextModel
from shared.errors import InvalidRequest, Overloaded
from shared.limits import CONTEXT_TOKENS_MAX, KIB, TOKENIZING_MAX, VOCABULARY_MAX
from shared.sampling import Sampling

ParsedT = TypeVar("ParsedT")

_OWN: Final = ("add_special_tokens", "return_token_strs")
_RETRY_S: Final = 1.0
_BODY_BYTES_SMALL: Final = 256 * KIB
_HARMLESS: Final = frozenset({"metadata", "user"})
_Id = Annotated[int, Field(ge=0, lt=VOCABULARY_MAX)]


class TextFields(Fields):
    """A text to be tokenised. With `add_special_tokens` as a completion's prompt is."""

    harmless: ClassVar[frozenset[str]] = _HARMLESS

    model: str | None = Field(None, min_length=1)
    prompt: str = Field(min_length=1)
    add_special_tokens: bool = True
    return_token_strs: bool = False


class ChatFormFields(ChatBody):
    """A conversation to be tokenised: a chat's fields. The template writes all special tokens itself."""

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {**ChatBody.neutral, "add_special_tokens": (False,)}

    model: str | None = Field(None, min_length=1)  # type: ignore[assignment]  # the served one is meant
    return_token_strs: bool = False


class IdsFields(Fields):
    """Ids whose text is wanted."""

    harmless: ClassVar[frozenset[str]] = _HARMLESS

    model: str | None = Field(None, min_length=1)
    tokens: Annotated[list[_Id], Field(max_length=CONTEXT_TOKENS_MAX), FailFast()]
    skip_special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class ToTokenize:
    """What is to be tokenised: `parsed` has one prompt. `special` is of no meaning to a conversation."""

    parsed: Parsed
    special: bool
    strings: bool


def parse_tokenize(body: bytes, model: str, seeds: Callable[[], int]) -> ToTokenize:
    """Parse the body of /tokenize; `model` is meant where it names none."""
    given = {name: value for name, value in read_object(body).items() if value is not None}
    if ("messages" in given) == ("prompt" in given):
        raise InvalidRequest("Send either 'prompt', a text, or 'messages'.", param="prompt")
    if "prompt" in given:
        fields = check(TextFields, given)
        return ToTokenize(
            _parsed(fields.model or model, TextPrompt(fields.prompt)),
            special=fields.add_special_tokens,
            strings=fields.return_token_strs,
        )
    strings = check(ChatFormFields, given).return_token_strs
    chat = {"model": model, **{name: value for name, value in given.items() if name not in _OWN}}
    parsed = parse_chat(json.dumps(chat).encode(), seeds)
    return ToTokenize(parsed, special=False, strings=strings)


def parse_detokenize(body: bytes) -> IdsFields:
    """Parse the body of /detokenize."""
    return check(IdsFields, read_object(body))


def _parsed(model: str, prompt: Prompt) -> Parsed:
    """Return a request that says nothing but a prompt."""
    return Parsed("completions", model, (prompt,), 1, None, Sampling(), (), stream=False, include_usage=False)


async def _parsed_beside(parse: Callable[[bytes], ParsedT], body: bytes) -> ParsedT:
    return parse(body) if len(body) <= _BODY_BYTES_SMALL else await asyncio.to_thread(parse, body)


class Tokenizing:
    """Tokenises for clients that only want to count, some at a time: it's the work of those that generate."""

    def __init__(self, measurer: Measurer, text_model: TextModel) -> None:
        self._measurer = measurer
        self._text_model = text_model
        self._at_work = 0

    async def asked(self, body: bytes, model: str, seeds: Callable[[], int]) -> ToTokenize:
        """Return what a body asks for; a large one is parsed beside the others' streams."""
        return await _parsed_beside(partial(parse_tokenize, model=model, seeds=seeds), body)

    async def ids_asked(self, body: bytes) -> IdsFields:
        return await _parsed_beside(parse_detokenize, body)

    async def tokenize(self, asked: ToTokenize, ticket: Ticket) -> dict[str, Any]:
        """Return the body of an answer. ContextTooLong for a prompt that is too long by any measure."""
        refuse_hopeless(replace(asked.parsed, max_tokens=None), ticket)
        with self._place():
            ids = await self._ids(asked)
        words = self._text_model.words(ids) if asked.strings else None
        most = ticket.context.tokens
        return {"count": len(ids), "max_model_len": most, "tokens": list(ids), "token_strs": words}

    async def _ids(self, asked: ToTokenize) -> tuple[int, ...]:
        (prompt,) = asked.parsed.prompts
        if isinstance(prompt, TextPrompt) and not asked.special:
            plain = partial(self._text_model.encode_text, special=False)
            return await self._measurer.in_thread(plain, prompt.text)
        return await self._measurer.encoded(prompt)

    async def detokenize(self, fields: IdsFields) -> dict[str, Any]:
        self._measurer.check_ids(fields.tokens, "tokens")
        decode = self._text_model.decode if fields.skip_special_tokens else self._text_model.decode_all
        with self._place():
            return {"prompt": await self._measurer.in_thread(decode, fields.tokens)}

    @contextmanager
    def _place(self) -> Iterator[None]:
        if self._at_work >= TOKENIZING_MAX:
            raise Overloaded("too many texts are being tokenised", retry_after_s=_RETRY_S)
        self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1
