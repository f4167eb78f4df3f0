"""Parsed to Measured: tokenises in threads of its own, and refuses what exceeds the request's bounds."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, TypeVar

from proxy.answer_bytes import entry_bytes
from proxy.fingerprint import fingerprints
from proxy.grammars.composer import Composer
from proxy.request import ChatPrompt, IdsPrompt, Measured, Parsed, Prompt, TextPrompt, Ticket
from proxy.text_model import EncodedChat, TextModel
from shared.config import ProxySettings
from shared.errors import ContextTooLong, InvalidRequest
from shared.limits import MIB
from shared.model_facts import ModelFacts
from shared.model_folder import ModelFolder
from shared.prefix_chain import keys_of, name_of, root_key

GivenT = TypeVar("GivenT")
MadeT = TypeVar("MadeT")

# Far above any real text (about 4). Vocabularies have longer words, but those are runs of spaces or dashes,
# and a text of nothing else is no prompt.
_CHARS_PER_TOKEN_MAX: Final = 64
# How much of what all clients may leave unread one whole answer's log probabilities may be.
_WHOLE_SHARE: Final = 4


class Measurer:
    """Counts tokens off the event loop. The tokenizer lets go of the interpreter lock while it works.

    `facts` returns the last worker's, None before the first: by them the blocks of a prompt get the names
    that the worker gives them. It is called in any thread.
    """

    def __init__(
        self,
        text_model: TextModel,
        folder: ModelFolder,
        settings: ProxySettings,
        facts: Callable[[], ModelFacts | None] = lambda: None,
    ) -> None:
        self._text_model = text_model
        self._facts = facts
        self._vocabulary = folder.vocabulary
        self._composer = Composer(text_model, folder.vocabulary)
        self._whole_bytes_max = settings.undelivered_mb * MIB // _WHOLE_SHARE
        self._threads = ThreadPoolExecutor(settings.tokenizer_threads, thread_name_prefix="tokenizer")

    async def measure(self, parsed: Parsed, ticket: Ticket) -> Measured:
        """Return the request with its prompts' ids and its answers' caps.

        Raises ContextTooLong if prompt and answer don't fit, InvalidRequest if the prompt can't be tokenised,
        an id isn't the model's, a shape or a strict tool's schema can't be held to, an answer that is held to
        one is to go on behind it, or a whole body may have more log probabilities than are sent at once.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._measure, parsed, ticket)

    async def encoded(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the ids that a request with this prompt is charged for; InvalidRequest as `measure`."""
        encoded = await self.in_thread(self._encoded, prompt)
        return encoded.ids

    async def in_thread(self, call: Callable[[GivenT], MadeT], given: GivenT) -> MadeT:
        """Do other work with the tokenizer where measuring is done."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, given)

    def check_ids(self, ids: Sequence[int], field: str) -> None:
        """Raise InvalidRequest if an id isn't the model's."""
        self._check_id(max(ids, default=0), field)

    def close(self) -> None:
        """Give the threads back; what waits for one is cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _measure(self, parsed: Parsed, ticket: Ticket) -> Measured:
        self._check_biases(parsed)
        encoded = tuple(map(self._encoded, parsed.prompts))
        prompt_ids = tuple(each.ids for each in encoded)
        caps = tuple(
            _cap(len(ids), parsed, _field(prompt), ticket)
            for ids, prompt in zip(prompt_ids, parsed.prompts, strict=True)
        )
        self._check_whole(parsed, parsed.choices * sum(caps))
        thinks = any(each.thinks for each in encoded)
        parsed = self._with_grammar(parsed, thinks=thinks)
        prints = fingerprints(prompt_ids, caps, parsed.sampling, ignores_eos=parsed.ignores_eos)
        names = self._names(prompt_ids, ticket.salt)
        return Measured(parsed, ticket, prompt_ids, caps, prints, names, thinks)

    def _with_grammar(self, parsed: Parsed, *, thinks: bool) -> Parsed:
        grammar = self._composer.grammar(parsed, thinks=thinks)
        if grammar and parsed.ignores_eos:
            raise InvalidRequest(
                "'ignore_eos' can't be had with a given form, strict tools, calls that have to be made, or a "
                "budget of thoughts: such an answer ends where its grammar ends.",
                param="ignore_eos",
            )
        return replace(parsed, sampling=replace(parsed.sampling, grammar=grammar)) if grammar else parsed

    def _names(self, prompts: tuple[tuple[int, ...], ...], salt: str) -> tuple[tuple[int, ...], ...]:
        """Return the names of each prompt's whole blocks; of a model that can't use them again, none."""
        facts = self._facts()
        if facts is None or facts.reuse == "none":
            return ()
        root = root_key(facts.fingerprint, facts.kv_bits, salt=salt)
        return tuple(tuple(map(name_of, keys_of(root, ids))) for ids in prompts)

    def _encoded(self, prompt: Prompt) -> EncodedChat:
        match prompt:
            case ChatPrompt():
                encoded = self._text_model.encode_chat(prompt)
            case TextPrompt(text, ""):
                encoded = EncodedChat(self._text_model.encode_text(text))
            case TextPrompt(text, suffix):
                encoded = EncodedChat(self._text_model.encode_between(text, suffix))
            case IdsPrompt(given):
                encoded = EncodedChat(given)
        field = _field(prompt)
        if not encoded.ids:
            raise InvalidRequest(f"'{field}' holds nothing that the model's tokenizer knows.", param=field)
        self._check_id(max(encoded.ids), field)
        return encoded

    def _check_biases(self, parsed: Parsed) -> None:
        if parsed.sampling.logit_bias:
            self._check_id(max(each.token for each in parsed.sampling.logit_bias), "logit_bias")

    def _check_whole(self, parsed: Parsed, tokens: int) -> None:
        """Refuse a whole body that its client might be cut off for: all of it waits to be read at once."""
        most = tokens * entry_bytes(parsed.sampling)
        # A stream of /v1/responses ends with the whole response.
        is_cut_up = parsed.stream and parsed.endpoint != "responses"
        if is_cut_up or most <= self._whole_bytes_max:
            return
        tops = parsed.endpoint != "completions" and parsed.sampling.top_logprobs > 0
        field = "top_logprobs" if tops else "logprobs"
        raise InvalidRequest(
            f"'{field}' may come to {most / MIB:.1f} MiB for {tokens} tokens; "
            f"{self._whole_bytes_max / MIB:.1f} MiB is the most that is sent at once. "
            f"{'Ask' if parsed.stream else 'Stream it, or ask'} for fewer tokens or alternatives.",
            param=field,
        )

    def _check_id(self, id_: int, field: str) -> None:
        if id_ >= self._vocabulary:
            raise InvalidRequest(
                f"'{field}' has token id {id_}; this model's ids are below {self._vocabulary}.", param=field
            )


def refuse_hopeless(parsed: Parsed, ticket: Ticket) -> None:
    """Raise for a request that is too long by any measure, before it is tokenised or queued.

    Raises InvalidRequest if it asks for more tokens than its lane or key may, ContextTooLong for a prompt.
    """
    asked, most = parsed.max_tokens, ticket.max_tokens
    if asked is not None and most is not None and asked > most.tokens:
        raise InvalidRequest(
            f"{most.owner} allows answers of at most {most.tokens} tokens; you asked for {asked}.",
            param=parsed.max_tokens_field,
        )
    for prompt in parsed.prompts:
        chars = _chars(prompt)
        if chars > ticket.context.tokens * _CHARS_PER_TOKEN_MAX:
            raise ContextTooLong(
                f"{_context(ticket)}; the prompt alone has {chars} characters.", param=_field(prompt)
            )


def _cap(prompt_tokens: int, parsed: Parsed, field: str, ticket: Ticket) -> int:
    """Return the most tokens that the answer may have."""
    context, asked = ticket.context.tokens, parsed.max_tokens
    if prompt_tokens >= context:
        raise ContextTooLong(
            f"{_context(ticket)}; the prompt alone has {prompt_tokens}.",
            param=field,
        )
    if asked is None:
        return min(ticket.max_tokens_default, context - prompt_tokens)
    if parsed.takes_what_is_left:
        return min(asked, context - prompt_tokens)
    if prompt_tokens + asked > context:
        raise ContextTooLong(
            f"{_context(ticket)}; you asked for {prompt_tokens + asked}: "
            f"{prompt_tokens} in the prompt and {asked} for the answer.",
            param=parsed.max_tokens_field,
        )
    return asked


def _context(ticket: Ticket) -> str:
    return f"{ticket.context.owner} allows a context of {ticket.context.tokens} tokens, answer included"


def _chars(prompt: Prompt) -> int:
    match prompt:
        case ChatPrompt():
            said = [value for message in prompt.messages for key, value in message.items() if key != "role"]
            shown = [(tool.name, tool.description, tool.parameters) for tool in prompt.tools]
            return _chars_within((said, shown))
        case TextPrompt(text, suffix):
            return len(text) + len(suffix)
        case IdsPrompt():
            return 0


def _chars_within(value: Any) -> int:
    """Return the characters of all texts in a value that came from a body, whose depth is bounded."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_chars_within, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_chars_within, value))
    return 0


def _field(prompt: Prompt) -> str:
    return prompt.param if isinstance(prompt, ChatPrompt) else "prompt"
