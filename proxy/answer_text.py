"""One answer's ids to the text that may be shown: detokenised, and ended by the first stop string."""

from collections.abc import Callable, Sequence

from proxy.detokenizer import Detokenizer
from proxy.stops import StopFilter


class AnswerText:
    """Feed it tokens; it returns text to show. `tokens` counts those fed, which is what usage reports."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stops: tuple[str, ...], context: Sequence[int] = ()
    ) -> None:
        self._detokenizer = Detokenizer(decode, context)
        self._stops = StopFilter(stops)
        self.tokens = 0

    @property
    def stopped(self) -> bool:
        """True once a stop string ended the text."""
        return self._stops.stopped

    def feed(self, token: int) -> str:
        self.tokens += 1
        return self._stops.feed(self._detokenizer.feed(token))

    def finish(self) -> str:
        """Return what was held back, since no more tokens come."""
        return self._stops.feed(self._detokenizer.finish()) + self._stops.finish()
