"""Metrics in Prometheus' text format, in small parts.

prometheus_client's own writer makes it in one piece, and checks every name of every line anew: with thousands
of lines the streams would stand still meanwhile, and twice as long.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

_LINES_AT_ONCE: Final = 256
_IN_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_IN_LABEL: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def text_of(family: Metric) -> Iterator[bytes]:
    """Yield one metric: counters, gauges and histograms are written here, and no timestamps."""
    name = f"{family.name}_total" if family.type == "counter" else family.name
    yield f"# HELP {name} {family.documentation.translate(_IN_HELP)}\n# TYPE {name} {family.type}\n".encode()
    samples = iter(family.samples)
    while lines := "".join(map(_line, islice(samples, _LINES_AT_ONCE))):
        yield lines.encode()


def _line(sample: Sample) -> str:
    value = floatToGoString(sample.value)  # type: ignore[no-untyped-call]  # it has no annotations
    if not sample.labels:
        return f"{sample.name} {value}\n"
    labels = [f'{name}="{word.translate(_IN_LABEL)}"' for name, word in sample.labels.items()]
    return f"{sample.name}{{{','.join(labels)}}} {value}\n"
