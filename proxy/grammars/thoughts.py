"""Thoughts and free text as terms of a grammar: any tokens but a few.

Tokens are counted and let through by their ids. So a budget is exact, and what a model writes freely costs
the same as without a grammar.
"""

from collections.abc import Collection
from dataclasses import dataclass

from proxy.formats.format import Format
from proxy.request import Thinking


@dataclass(frozen=True, slots=True)
class Thoughts:
    """A request's thoughts: of which format, whether the prompt has begun one, and how they may be.

    `stops` are the ids that end an answer.
    """

    format: Format
    stops: Collection[int]
    thinking: Thinking
    opened: bool

    @property
    def ends(self) -> int | None:
        """The token with which thoughts end; None where that is a text of several."""
        return first_word(self.format, self.format.thought[1])

    @property
    def has_budget(self) -> bool:
        """Whether there is a budget that can be held to."""
        return self.format.thinks and self.thinking.budget_tokens is not None and self.ends is not None

    def terms(self, behind: str = "") -> str:
        """Return what stands before a text or calls: what is left of a thought, or a whole one, or none.

        None may begin where the client has turned thinking off or left it no token. `behind` are terms that
        follow a thought, if there is one.
        """
        if not self.format.thinks:
            return ""
        if self.opened:
            return f"{self._rest} {behind}"
        if self.thinking.enabled is False or self.thinking.budget_tokens == 0:
            return ""
        return f"({self.format.lark(self.format.thought[0])} {self._rest} {behind})?"

    @property
    def free(self) -> str:
        """Any text that begins no thought, where thoughts begin with a token of their own."""
        return any_tokens([*self.stops, *self._begins])

    def free_but(self, id_: int) -> str:
        """Any text without this token that begins no thought."""
        return any_tokens([*self.stops, *self._begins, id_])

    @property
    def _begins(self) -> tuple[int, ...]:
        word = self.format.thought[0]
        return (self.format.words[word],) if word in self.format.words else ()

    @property
    def _rest(self) -> str:
        ends = self.ends
        if ends is None:
            return "thought_text"
        closing = self.format.lark(self.format.thought[1])
        most = self.thinking.budget_tokens
        if most == 0:
            return closing
        return f"{any_tokens([*self.stops, ends], most)} {closing}"

    @property
    def rules(self) -> str:
        """Further rules that the terms need."""
        if not self.format.thinks or self.ends is not None:
            return ""
        # The shortest text with the closing words at its end: lazy.
        return f"thought_text[lazy]: /(?s:.*){in_regex(self.format.thought[1])}/\n"


def any_tokens(ids: Collection[int], most: int | None = None) -> str:
    """Return a term of any number of tokens, or at most so many, with none of these ids."""
    some = ",".join(map(str, sorted({*ids})))
    token = f"<[^{some}]>" if some else "<[*]>"
    return f"{token}*" if most is None else f"{token}{{0,{most}}}"


def first_word(format_: Format, text: str) -> int | None:
    """Return the id of the added word that a text begins with; None if it begins otherwise."""
    words = [word for word in format_.words if word and text.startswith(word)]
    return format_.words[max(words, key=len)] if words else None


def in_regex(text: str) -> str:
    """Return a text as a part of a regular expression between slashes that matches it alone."""
    return "".join(
        char if char.isalnum() else f"\\u{{{ord(char):x}}}"  # any other sign may mean something there
        for char in text
    )
