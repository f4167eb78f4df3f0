"""The worker, and what it tells of prefills in a file: `python -m ops.prefixes.telling_worker FILE SPEC`.

It is worker.process in all else. Each line of the file is the JSON of a Told: the proxy is told the same, but
keeps only what admission needs.
"""

import json
import sys
import time
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from pathlib import Path

from worker import process
from worker.outbox import Outbox
from worker.plan import Chunk
from worker.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Told:
    """A sequence of `length` tokens, `cached` of them there already, has begun; or `tokens` were prefilled.

    `at` is by `time.time`.
    """

    at: float
    sequence: str
    attempt: int
    length: int
    cached: int
    tokens: int


def read_told(file: Path) -> list[Told]:
    """Return what was told, but for a line that a death has cut."""
    lines = file.read_text("utf-8").splitlines(keepends=True)
    return [Told(**json.loads(line)) for line in lines if line.endswith("\n")]


def telling(file: Path) -> type[Outbox]:
    """Return an outbox that tells a file as well."""

    class Telling(Outbox):
        def note_begun(self, sequence: Sequence) -> None:
            _append(file, [_told(sequence, 0)])
            super().note_begun(sequence)

        def note_prefills(self, chunks: Seq[Chunk], shares_ms: Seq[float]) -> None:
            _append(file, [_told(chunk.sequence, chunk.tokens) for chunk in chunks])
            super().note_prefills(chunks, shares_ms)

    return Telling


def _told(sequence: Sequence, tokens: int) -> Told:
    name, attempt, length = sequence.name, sequence.attempt, len(sequence.ids)
    return Told(time.time(), name, attempt, length, sequence.cached, tokens)


def _append(file: Path, lines: Iterable[Told]) -> None:
    with file.open("a", encoding="utf-8") as told:
        told.writelines(json.dumps(asdict(line)) + "\n" for line in lines)


def main() -> None:
    """Take the file from the front of the arguments; what is left is worker.process's own."""
    file = Path(sys.argv.pop(1))
    vars(process)["Outbox"] = telling(file)
    process.main()


if __name__ == "__main__":
    main()
