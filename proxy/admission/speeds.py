"""How fast the worker is, as its own reports say: moving averages, and the lengths of past answers."""

import bisect
from collections import deque
from typing import Final

_ALPHA: Final = 0.1
_SAMPLES_KEPT: Final = 512
_LENGTHS_NEEDED: Final = 8
_SHARE_TOKENS_MIN: Final = 16
_QUANTILE: Final = 0.8
_TOKENS_UNSEEN: Final = 128


class Speeds:
    """Milliseconds of a prefilled token and of a decode step, by its number of rows."""

    def __init__(self) -> None:
        self.prefill_ms_per_token = 1.0
        self._step_ms: dict[int, float] = {}
        self._step_ms_unseen = 50.0

    def worker_came(self, prefill_ms_per_token: float, decode_ms_per_step: float) -> None:
        """Start from what a worker's warm-up measured, unless another life was seen at work already."""
        if not self._step_ms:
            self.prefill_ms_per_token = prefill_ms_per_token
            self._step_ms_unseen = decode_ms_per_step

    def stepped(self, rows: int, step_ms: float) -> None:
        self._step_ms[rows] = _blend(self._step_ms.get(rows, step_ms), step_ms)

    def prefilled(self, tokens: int, gpu_ms: float) -> None:
        """Learn from a piece of prefill; of very few tokens there is nothing to learn."""
        if tokens >= _SHARE_TOKENS_MIN:
            self.prefill_ms_per_token = _blend(self.prefill_ms_per_token, gpu_ms / tokens)

    def step_ms(self, rows: int) -> float:
        """Return a step's time at a number of rows, or at the nearest one seen."""
        if not self._step_ms:
            return self._step_ms_unseen
        return self._step_ms[min(self._step_ms, key=lambda seen: (abs(seen - rows), seen))]

    def prefill_ms(self, tokens: int) -> float:
        return tokens * self.prefill_ms_per_token


class Samples:
    """The last values of something, kept sorted too: quantiles cost a look-up."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, value: int) -> None:
        if len(self._latest) == _SAMPLES_KEPT:
            del self._sorted[bisect.bisect_left(self._sorted, self._latest.popleft())]
        self._latest.append(value)
        bisect.insort(self._sorted, value)

    def quantile(self, share: float, above: int = -1, samples_min: int = 1) -> int | None:
        """Return a quantile of the values over `above`; None if there are fewer than `samples_min`."""
        place = bisect.bisect_right(self._sorted, above)
        further = len(self._sorted) - place
        if further < samples_min:
            return None
        return self._sorted[place + int(share * (further - 1))]


class Lengths:
    """How many tokens a lane's last answers had: what is left of a running one is a quantile of these."""

    def __init__(self) -> None:
        self._samples = Samples()

    def answered(self, tokens: int) -> None:
        self._samples.add(tokens)

    def remaining(self, emitted: int, max_tokens: int) -> int:
        """Return the p80 of the tokens still to come, of answers that got as far as this one.

        Where few answers did, as many as it has had, and at least _TOKENS_UNSEEN.
        """
        length = self._samples.quantile(_QUANTILE, above=emitted, samples_min=_LENGTHS_NEEDED)
        left = max(_TOKENS_UNSEEN, emitted) if length is None else length - emitted
        return min(max_tokens - emitted, left)


def _blend(old: float, new: float) -> float:
    return old + _ALPHA * (new - old)
