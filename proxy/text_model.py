"""The text side of a model: its tokenizer, its chat template and the ids that end an answer. No MLX."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Self

from tokenizers import Tokenizer

from proxy.chat_template import ChatTemplate
from proxy.fill_in import FillIn
from proxy.formats.format import PLAIN, Format
from proxy.formats.table import format_of
from proxy.request import ChatPrompt
from proxy.spelling import Spelling
from shared.errors import InvalidRequest, ModelError
from shared.model_folder import ModelFolder

# Ends of a turn or of a text in the families that have them. They count only if the tokenizer calls them
# special. Words that may also stand inside an answer are left out, like <|end|>, which ends a gpt-oss
# model's thinking before its answer begins.
_TURN_ENDS: Final = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|end_of_turn|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
    }
)
_DEFAULT_TEMPLATE: Final = "default"


def _local_now() -> datetime:
    return datetime.now(UTC).astimezone()


@dataclass(frozen=True, slots=True)
class ChatFacts:
    """What a model's chat template can show: tools, a switch for thinking, and these efforts of it."""

    template: bool
    tools: bool
    thinking_switch: bool
    reasoning_efforts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EncodedChat:
    """A conversation's ids. `thinks` says that they end inside a thought, which the answer goes on with."""

    ids: tuple[int, ...]
    thinks: bool = False


class TextModel:
    """Text to ids and back. Its methods may run in any thread.

    `stop_ids` are: all that the model's configuration names, its tokenizer's eos_token, and special tokens
    known to end a turn (many configurations forget one of them). `spelling` knows what single tokens are.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, stop_ids: tuple[int, ...]
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self.stop_ids = stop_ids
        self.format: Format = PLAIN
        self.spelling = Spelling(tokenizer)
        self._fill_in = FillIn.of(tokenizer)

    @classmethod
    def load(
        cls, folder: ModelFolder, now: Callable[[], datetime] = _local_now, answer_format: str = ""
    ) -> Self:
        """Read tokenizer.json, tokenizer_config.json and chat_template.jinja. ModelError says what's wrong.

        `now` is what a template's strftime_now shows: by convention, local time. `answer_format` names how
        the model writes thoughts and calls; empty: as its template does.
        """
        tokenizer = _tokenizer(folder.path / "tokenizer.json")
        config = _config(folder.path / "tokenizer_config.json")
        words = _special_words(config)
        source = _template_source(folder.path, config)
        try:
            template = None if source is None else ChatTemplate(source, words, now)
        except ModelError as problem:
            raise ModelError(f"{folder.path}: {problem}") from problem
        model = cls(tokenizer, template, _stop_ids(tokenizer, folder, words))
        added = {token.content: id_ for id_, token in tokenizer.get_added_tokens_decoder().items()}
        model.format = format_of(source, added, answer_format)
        return model

    def encode_chat(self, prompt: ChatPrompt) -> EncodedChat:
        """Return the ids of messages in the template's words, which include its special tokens."""
        if self._template is None:
            message = "This model has no chat template; use /v1/completions."
            raise InvalidRequest(message, param="messages")
        text = self._template.render(prompt)
        begins = self.format.thought[0]
        thinks = bool(begins) and text.rstrip().endswith(begins.strip())
        return EncodedChat(tuple(self._tokenizer.encode(text, add_special_tokens=False).ids), thinks)

    @property
    def chat(self) -> ChatFacts:
        """What the template has variables for; nothing if there is none."""
        template = self._template
        if template is None:
            return ChatFacts(False, False, False, ())
        return ChatFacts(True, template.knows_tools, template.thinking_switch, template.efforts)

    def encode_text(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Return the ids of a plain text, with what the tokenizer puts before one (often bos_token).

        Unless `special`: then it's the text's own ids only.
        """
        return tuple(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def encode_between(self, text: str, suffix: str) -> tuple[int, ...]:
        """Return the ids of a prompt for what stands between two texts; InvalidRequest if the model can't."""
        if self._fill_in is None:
            message = "'suffix' needs a model that fills in between two texts, which this one doesn't."
            raise InvalidRequest(message, param="suffix")
        return self._fill_in.ids(self._tokenizer, text, suffix)

    def words(self, ids: Sequence[int]) -> list[str]:
        """Return what the vocabulary calls each id, "" where it has no word."""
        return [self._tokenizer.id_to_token(id_) or "" for id_ in ids]

    def decoder(self, format_: Format) -> Callable[[Sequence[int]], str]:
        """Return what turns ids into the text that a format's reader sees: its marks are in it."""
        marks = {
            id_: word for word in format_.marks if (id_ := self._tokenizer.token_to_id(word)) is not None
        }
        return self.decode if not marks else partial(self._decode_with, marks)

    def _decode_with(self, marks: Mapping[int, str], ids: Sequence[int]) -> str:
        texts: list[str] = []
        for is_mark, part in groupby(ids, marks.__contains__):
            alike = list(part)
            texts += [marks[id_] for id_ in alike] if is_mark else [self.decode(alike)]
        return "".join(texts)

    def decode_all(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens written out; ids that the tokenizer lacks have no text."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens; ids that the tokenizer lacks have no text."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)


def _tokenizer(file: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as problem:  # the library raises nothing more exact
        raise ModelError(f"{file}: not readable as a tokenizer: {problem}") from problem
    # Left-overs of training: they would silently cut a prompt, or fill it up.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as problem:
        raise ModelError(f"{file}: not readable as JSON: {problem}") from problem
    if not isinstance(content, dict):
        raise ModelError(f"{file}: not a JSON object")
    return content


def _special_words(config: dict[str, Any]) -> dict[str, str]:
    """Return bos_token, eos_token and the like as strings; in the file they may be objects with `content`."""
    words: dict[str, str] = {}
    for key, value in config.items():
        word = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(word, str):
            words[key] = word
    return words


def _template_source(path: Path, config: dict[str, Any]) -> str | None:
    """Return the template's text: the file of its own wins over the configuration's entry."""
    file = path / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text("utf-8")
        except (OSError, ValueError) as problem:
            raise ModelError(f"{file}: not readable as text: {problem}") from problem
    entry = config.get("chat_template")
    if isinstance(entry, list):
        named = {each.get("name"): each.get("template") for each in entry if isinstance(each, dict)}
        entry = named.get(_DEFAULT_TEMPLATE)
    if entry is not None and not isinstance(entry, str):
        raise ModelError(f"{path}: tokenizer_config.json has a chat_template that is no text")
    return entry


def _stop_ids(tokenizer: Tokenizer, folder: ModelFolder, words: dict[str, str]) -> tuple[int, ...]:
    found = {
        id_
        for id_, token in tokenizer.get_added_tokens_decoder().items()
        if token.special and token.content in _TURN_ENDS
    }
    eos = tokenizer.token_to_id(words.get("eos_token", ""))
    if eos is not None:
        found.add(eos)
    # A tokenizer may have more words than the model has ids.
    return tuple(sorted({*folder.stop_ids, *(id_ for id_ in found if id_ < folder.vocabulary)}))
