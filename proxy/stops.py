"""Stop strings: the text ends before the first one, however it is cut into tokens."""


class StopFilter:
    """Passes text on until a stop string appears; the stop and what follows it are never shown.

    The stop that *begins* first wins, so the answer is a function of the text alone, not of its pieces. While
    a longer stop that began earlier may still come to be, the decision waits. Held back is only the longest
    end of the text that begins a stop: less than the longest stop.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        assert all(stops), "an empty stop would match anywhere; the parser refuses it"
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self._matched: str | None = None

    @property
    def stopped(self) -> bool:
        """True once a stop is found; nothing is shown after that."""
        return self._matched is not None

    @property
    def matched(self) -> str | None:
        """The stop that was found; of several that begin at one place, the one that ended first."""
        return self._matched

    def feed(self, text: str) -> str:
        """Return what can be shown now."""
        if not self._stops:
            return text
        if self.stopped:
            return ""
        text = self._held + text
        found = self._first_stop(text)
        beginning = self._first_beginning(text)
        if found is not None and found <= beginning:
            return self._stop(text, found)
        self._held = text[beginning:]
        return text[:beginning]

    def finish(self) -> str:
        """Return the rest, since no more text comes that could complete a stop."""
        text, self._held = self._held, ""
        found = self._first_stop(text)
        return text if found is None else self._stop(text, found)

    def _stop(self, text: str, at: int) -> str:
        self._matched = min((stop for stop in self._stops if text.startswith(stop, at)), key=len)
        self._held = ""
        return text[:at]

    def _first_stop(self, text: str) -> int | None:
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        return min(places, default=None)

    def _first_beginning(self, text: str) -> int:
        """Return where the longest end of `text` begins that is the beginning of a stop, else its length."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                return start
        return len(text)
