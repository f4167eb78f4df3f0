"""What this process takes of the machine: read by psutil, which can do so on macOS as well as on Linux."""

import gc
from collections.abc import Iterator

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from shared.metrics_table import BEGAN, CPU, GC_FREED, GC_RUNS, GC_STUCK, OPEN_FDS, RESIDENT


class ProcessReadings(Collector):
    """Reads it at each scrape; what the system doesn't tell is left out."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        yield from self._of_process()
        generations = gc.get_stats()
        for metric, part in (
            (GC_RUNS, "collections"),
            (GC_FREED, "collected"),
            (GC_STUCK, "uncollectable"),
        ):
            family = CounterMetricFamily(metric.name, metric.words, labels=metric.labels)
            for number, told in enumerate(generations):
                family.add_metric([str(number)], told[part])
            yield family

    def _of_process(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        try:
            with self._process.oneshot():
                times = self._process.cpu_times()
                values = (
                    (RESIDENT, self._process.memory_info().rss),
                    (OPEN_FDS, self._process.num_fds()),
                    (BEGAN, self._process.create_time()),
                )
        except (psutil.Error, OSError):
            return
        yield CounterMetricFamily(CPU.name, CPU.words, value=times.user + times.system)
        for metric, value in values:
            yield GaugeMetricFamily(metric.name, metric.words, value=value)
