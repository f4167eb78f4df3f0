"""Keeps the manifest true: which rows run on the device, written down before they do.

A step is read while the next one runs, so the rows of both are in it, each with the index of the token that
its newest step is to make.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq

from shared.messages import ManifestRow
from worker.plan import Chunk
from worker.sequence import Sequence

Rows = dict[Sequence, ManifestRow]


class Running:
    """Is told what is about to run and what was read; `write` is ManifestWriter's.

    Between two pieces of a prefill what is written stays, since the loop goes on with it at once.
    """

    def __init__(self, write: Callable[[Seq[ManifestRow]], None]) -> None:
        self._write = write
        self._steps: deque[Rows] = deque()
        self._written: list[ManifestRow] = []

    def begin(self, sequence: Sequence) -> None:
        """Take note that what is kept of a prompt is made ready next, while nothing else is under way."""
        self._note({sequence: _row(sequence, sequence.settled, True)})

    def prefill(self, chunks: Seq[Chunk]) -> None:
        """Take note that these chunks are prefilled next."""
        self._note({chunk.sequence: _row(chunk.sequence, chunk.sequence.settled, True) for chunk in chunks})

    def launch(self, rows: Seq[Sequence]) -> None:
        """Take note that a step of these rows, which count it as launched already, is launched next."""
        self._steps.append({sequence: _row(sequence, sequence.launched - 1, False) for sequence in rows})
        self._note({})

    def read(self) -> None:
        """Take note that the steps under way run, and nothing else: the oldest is waited for next."""
        self._note({})

    def was_read(self) -> None:
        """Forget the oldest step under way."""
        self._steps.popleft()

    def rest(self) -> None:
        """Nothing is under way and nothing is to come: a death from here on is nobody's."""
        assert not self._steps, "a step is under way"
        self._note({})

    def _note(self, rows: Rows) -> None:
        together: Rows = {}
        for step in self._steps:
            together |= step
        written = list((together | rows).values())
        if written != self._written:
            self._written = written
            self._write(written)


def _row(sequence: Sequence, index: int, prefilling: bool) -> ManifestRow:
    return ManifestRow(sequence.name, sequence.attempt, index, prefilling)
