"""Times of tokens, counted by lane and key class: what is told of every single token has to cost little.

A counter and a histogram of prometheus_client would take several times as long: they lock, and look through
their buckets one by one. These belong to one thread, the event loop's.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from shared.metrics_table import GAPS, TOKENS, TTFT, Metric


class Tally:
    """One histogram's counts; a value belongs to the first bucket whose bound it doesn't exceed."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self.counts = [0] * (len(self._bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Return (bound as a label, how many values don't exceed it), for each bound and the infinite one."""
        labels = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(labels, map(float, accumulate(self.counts)), strict=True))


class TokenTimes:
    """Of one lane and key class: when first tokens came, and how long after them each of the others."""

    __slots__ = ("first", "gaps")

    def __init__(self) -> None:
        self.first = Tally(TTFT.buckets)
        self.gaps = Tally(GAPS.buckets)

    @property
    def tokens(self) -> int:
        """How many came: each is an answer's first one, or has a gap before it."""
        return self.first.count + self.gaps.count


class TokenCollector(Collector):
    """Shows the times of all places, by (lane, key class)."""

    def __init__(self, times: Mapping[tuple[str, str], TokenTimes]) -> None:
        self._times = times

    def collect(self) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
        places = list(self._times.items())
        yield _histogram(TTFT, [(place, times.first) for place, times in places])
        yield _histogram(GAPS, [(place, times.gaps) for place, times in places])
        tokens = CounterMetricFamily(TOKENS.name, TOKENS.words, labels=TOKENS.labels)
        for place, times in places:
            tokens.add_metric(place, times.tokens)
        yield tokens


def _histogram(metric: Metric, tallies: list[tuple[tuple[str, str], Tally]]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric.name, metric.words, labels=metric.labels)
    for place, tally in tallies:
        family.add_metric(place, tally.buckets(), tally.sum)
    return family
