"""One answer's ids to the pieces that may be shown: detokenised, read by format, ended by a stop string."""

from collections.abc import Callable, Sequence

from proxy.answer import Piece, Text
from proxy.detokenizer import Detokenizer
from proxy.formats.format import PlainReader, Reader
from proxy.stops import StopFilter


class AnswerText:
    """Feed it tokens; it returns pieces to show. `tokens` counts those fed, which is what usage reports.

    `made_chars` is how long the text of all tokens is so far, marks and all, without a character that is
    unfinished: where the next token's text begins, or the character that it goes on with. `shown_chars` is
    how much of it was decided about: shown, or read as marks. Stop strings end texts, not thoughts or calls.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stops: tuple[str, ...],
        context: Sequence[int] = (),
        reader: Reader | None = None,
    ) -> None:
        self._detokenizer = Detokenizer(decode, context)
        self._reader = reader if reader is not None else PlainReader()
        self._stops = StopFilter(stops)
        self._held_chars = 0  # by the stop filter, or cut off by it
        self.tokens = 0
        self.thought_tokens = 0
        self.made_chars = 0

    @property
    def shown_chars(self) -> int:
        return self.made_chars - self._reader.held_chars - self._held_chars

    @property
    def stopped(self) -> bool:
        """True once a stop string ended the text."""
        return self._stops.stopped

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text."""
        return self._stops.matched

    def feed(self, token: int) -> list[Piece]:
        self.tokens += 1
        self.thought_tokens += self._reader.is_thinking
        made = self._detokenizer.feed(token)
        self.made_chars += len(made)
        return self._shown(self._reader.feed(made))

    def finish(self) -> list[Piece]:
        """Return what was held back, since no more tokens come."""
        made = self._detokenizer.finish()
        self.made_chars += len(made)
        pieces = self._shown([*self._reader.feed(made), *self._reader.finish()])
        return pieces if self.stopped else [*pieces, *self._rest()]

    def _shown(self, pieces: list[Piece]) -> list[Piece]:
        """Return what of these may be shown: no text from a stop string on, and nothing behind it."""
        shown: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Text):
                shown += self._filtered(piece.text)
            else:
                shown += self._rest()
                shown += () if self.stopped else (piece,)
            if self.stopped:
                break
        return shown

    def _filtered(self, text: str) -> list[Piece]:
        shown = self._stops.feed(text)
        self._held_chars += len(text) - len(shown)
        return [Text(shown)] if shown else []

    def _rest(self) -> list[Piece]:
        """Return the text that might have become a stop string, since no more of it comes."""
        rest = self._stops.finish()
        self._held_chars -= len(rest)
        return [Text(rest)] if rest else []
