"""Log probabilities of one answer's tokens: each token's entry, as JSON, with the text that it belongs to.

An entry is due once the shown text goes beyond where its token's text begins, so one whose text is held back
waits with it. When a stop string ends the text, what isn't due by then belongs to what was cut off and is
dropped. So a stream and a whole body have the same entries, each once and in order. More than WAITING_MAX
don't wait, whatever their text: a model may make tokens without any for long.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from proxy.spelling import Spelling
from shared.messages import RowLogprobs

# As many tokens as the longest stop string has characters, at four to a token.
WAITING_MAX: Final = 64

# The parts of one entry, as JSON.
Entry = tuple[str, ...]


class Form(Protocol):
    """How an endpoint writes log probabilities. `begins` is the place in the text where a token's begins."""

    def entry(self, begins: int, token: int, record: RowLogprobs) -> Entry: ...
    def value(self, entries: Sequence[Entry]) -> str: ...


class ChatForm:
    """An object for each token, with its alternatives in it."""

    def __init__(self, spelling: Spelling) -> None:
        self._word = spelling.word

    def entry(self, begins: int, token: int, record: RowLogprobs) -> Entry:  # noqa: ARG002 (Form's signature)
        pairs = zip(record.top_ids, record.top_logprobs, strict=True)
        tops = ",".join(f"{self._start(top, logprob)}}}" for top, logprob in pairs)
        return (f'{self._start(token, record.logprob)},"top_logprobs":[{tops}]}}',)

    def value(self, entries: Sequence[Entry]) -> str:
        return f'{{"content":[{",".join(entry for (entry,) in entries)}],"refusal":null}}'

    def _start(self, token: int, logprob: float) -> str:
        word = self._word(token)
        return f'{{"token":{word.text},"logprob":{logprob!r},"bytes":{word.raw}'


class CompletionForm:
    """Four lists, with an item for each token: its text, its number, its alternatives, where it begins.

    The alternatives of a token are an object by their texts, the token itself among them, even where it is
    one more than was asked for. `text_offset` counts the characters of the answer's text.
    """

    def __init__(self, spelling: Spelling, tops: int) -> None:
        self._word = spelling.word
        self._tops = tops

    def entry(self, begins: int, token: int, record: RowLogprobs) -> Entry:
        own = self._word(token).text
        return (own, repr(record.logprob), self._alternatives(own, record), str(begins))

    def value(self, entries: Sequence[Entry]) -> str:
        tokens, logprobs, tops, offsets = (
            f"[{','.join(entry[column] for entry in entries)}]" for column in range(4)
        )
        tops = tops if self._tops else "null"
        return (
            f'{{"tokens":{tokens},"token_logprobs":{logprobs},"top_logprobs":{tops},"text_offset":{offsets}}}'
        )

    def _alternatives(self, own: str, record: RowLogprobs) -> str:
        """Return the object. Two ids may have the same text: the first, which is the likelier, counts."""
        if not self._tops:
            return ""
        by_text: dict[str, float] = {}
        for top, logprob in zip(record.top_ids, record.top_logprobs, strict=True):
            by_text.setdefault(self._word(top).text, logprob)
        by_text.setdefault(own, record.logprob)
        return f"{{{','.join(f'{text}:{logprob!r}' for text, logprob in by_text.items())}}}"


@dataclass(frozen=True, slots=True)
class _Waiting:
    begins: int
    token: int
    record: RowLogprobs


class AnswerLogprobs:
    """One answer's entries. `lacking` counts tokens that came without a record, which have none."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._waiting: deque[_Waiting] = deque()
        self.lacking = 0

    def came(self, begins: int, token: int, record: RowLogprobs | None) -> None:
        """Take a token whose text begins at this place."""
        if record is None:
            self.lacking += 1
        else:
            self._waiting.append(_Waiting(begins, token, record))

    def due(self, shown_chars: int) -> tuple[Entry, ...]:
        """Return the entries of tokens whose text has begun to be shown, once each; all if too many wait."""
        if len(self._waiting) > WAITING_MAX:
            return self.rest()
        entries = []
        while self._waiting and self._waiting[0].begins < shown_chars:
            entries.append(self._entry())
        return tuple(entries)

    def rest(self) -> tuple[Entry, ...]:
        """Return all entries that are left."""
        return tuple(self._entry() for _ in range(len(self._waiting)))

    def _entry(self) -> Entry:
        first = self._waiting.popleft()
        return self._form.entry(first.begins, first.token, first.record)
