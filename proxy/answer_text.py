"""One answer's ids to the text that may be shown: detokenised, and ended by the first stop string."""

from collections.abc import Callable, Sequence

from proxy.detokenizer import Detokenizer
from proxy.stops import StopFilter


class AnswerText:
    """Feed it tokens; it returns text to show. `tokens` counts those fed, which is what usage reports.

    `made_chars` is how long the text of all tokens is so far, without a character that is unfinished: where
    the next token's text begins, or the character that it goes on with. `shown_chars` is how much of it
    was returned.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stops: tuple[str, ...], context: Sequence[int] = ()
    ) -> None:
        self._detokenizer = Detokenizer(decode, context)
        self._stops = StopFilter(stops)
        self.tokens = 0
        self.made_chars = 0
        self.shown_chars = 0

    @property
    def stopped(self) -> bool:
        """True once a stop string ended the text."""
        return self._stops.stopped

    def feed(self, token: int) -> str:
        self.tokens += 1
        made = self._detokenizer.feed(token)
        self.made_chars += len(made)
        return self._show(self._stops.feed(made))

    def finish(self) -> str:
        """Return what was held back, since no more tokens come."""
        return self._show(self._stops.feed(self._detokenizer.finish()) + self._stops.finish())

    def _show(self, text: str) -> str:
        self.shown_chars += len(text)
        return text
