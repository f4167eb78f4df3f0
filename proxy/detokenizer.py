"""Token ids to text, one at a time, never half a character.

A token may hold part of a character, and a tokenizer may show a token differently at the start of a text (a
leading space goes). So a short window of ids is decoded with each new one, and what it adds to the text
already shown is new. A decoded text that ends in U+FFFD may be an unfinished character: it waits.
"""

from collections.abc import Callable, Sequence
from typing import Final

_UNKNOWN: Final = "\ufffd"
# UTF-8 takes at most 4 bytes, and byte-fallback tokenizers show an unfinished character as one U+FFFD a byte.
_UNFINISHED_CHARS_MAX: Final = 3
# Ids without a clean end of text between them before the window is cut. Valid text gets by with 3, unless
# its tokens themselves straddle characters.
_HELD_IDS_MAX: Final = 16
# Ids that a cut leaves: more than a character's bytes, so that the decoder finds its feet in them.
_KEPT_IDS: Final = 8


class Detokenizer:
    """The text of one answer as it grows.

    What `feed` and `finish` return adds up to `decode(all ids)`, if `decode` only ever adds to its text as
    ids are added (apart from a U+FFFD at the end). The window is bounded, so a token's cost is, too.

    `context` is what the answer continues, the prompt's ids; its text isn't shown. With it, a completion
    keeps the space before its first word, which a SentencePiece tokenizer drops where a text begins. A chat
    answer is a text of its own and has no context.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(context[-_KEPT_IDS:])
        self._text = decode(self._window) if self._window else ""  # of the window
        self._shown = self._text  # what of it is out
        self._clean = len(self._window)  # ids of the window up to its last clean end of text

    def feed(self, token: int) -> str:
        """Return the text that this token completes; often a token's own, sometimes nothing."""
        before = self._text
        self._window.append(token)
        self._text = self._decode(self._window)
        clean = not self._text.endswith(_UNKNOWN)
        new = self._show(self._showable(clean))
        if clean and new:
            self._forget(self._clean)
            self._clean = len(self._window)
        elif clean and before and self._text == before:
            self._window.pop()  # a special token: no text, and no context for the next one either
        elif self._held > _HELD_IDS_MAX:
            self._forget(len(self._window) - _KEPT_IDS)
        return new

    def finish(self) -> str:
        """Return what is still held back: at most an unfinished character, as U+FFFD.

        A byte-fallback decoder turns a whole run of bytes into U+FFFD when its last character is unfinished,
        also those already shown as text. Then the unfinished bytes are decoded on their own.
        """
        if self._clean and not self._text.startswith(self._shown):
            return self._decode(self._window[self._clean :])
        return self._show(len(self._text))

    @property
    def _held(self) -> int:
        return len(self._window) - self._clean

    def _showable(self, clean: bool) -> int:
        """Return how many of the window's characters won't change any more."""
        if clean:
            return len(self._text)
        surely = len(self._text.rstrip(_UNKNOWN))
        if self._held > _HELD_IDS_MAX:
            return max(surely, len(self._text) - _UNFINISHED_CHARS_MAX)
        return surely

    def _show(self, end: int) -> str:
        new = self._text[len(self._shown) : end]
        if new:
            self._shown = self._text[:end]
        return new

    def _forget(self, ids: int) -> None:
        """Drop ids from the window's front. What waits to be shown is the text's end, and stays so."""
        if ids == 0:
            return
        waiting = max(0, len(self._text) - len(self._shown))
        del self._window[:ids]
        self._clean = max(0, self._clean - ids)
        self._text = self._decode(self._window)
        self._shown = self._text[: max(0, len(self._text) - waiting)]
