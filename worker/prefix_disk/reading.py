"""Reading blocks for callers that don't wait: a thread, and what they have in hand meanwhile."""

import contextlib
import queue
import threading
from collections.abc import Sequence
from typing import Final

from shared.limits import SLOTS_MAX
from worker.prefix_disk.block_file import BadFileError, Seal
from worker.prefix_disk.files import BlockFiles
from worker.prefix_disk.records import Entry, Record
from worker.prefix_disk.state import TierState

_READINGS_MAX: Final = 2 * SLOTS_MAX


class Reading:
    """`records` are the beginning of what was asked for, up to the first block that is bad or gone.

    They may be looked at once it is `done`; it always will be, whatever a disk does that doesn't hang.
    """

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._done = threading.Event()
        self._cancelled = False

    @property
    def done(self) -> bool:
        return self._done.is_set()

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        """Read no more of it: nobody waits."""
        self._cancelled = True

    def finish(self) -> None:
        self._done.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is done; False if it isn't by then."""
        return self._done.wait(timeout_s)


class ReadingThread:
    """Reads what is asked for, one Reading after the other and each up to `bytes_max`."""

    def __init__(self, state: TierState, files: BlockFiles, seal: Seal, bytes_max: int) -> None:
        self._state, self._files, self._seal = state, files, seal
        self._bytes_max = bytes_max
        self._jobs: queue.SimpleQueue[tuple[Reading, Sequence[Entry]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="prefixes from disk", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def read(self, entries: Sequence[Entry]) -> Reading:
        """Have these read, in this order; one Reading too many is done at once, with nothing."""
        reading, state = Reading(), self._state
        with state.changed:
            if state.closing or not self._thread.is_alive() or state.readings_open >= _READINGS_MAX:
                reading.finish()
            else:
                state.readings_open += 1
                self._jobs.put((reading, tuple(entries)))
        return reading

    def end(self) -> None:
        """Finish what was asked for, and end. The state says by then that the tier is closing."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            reading, entries = job
            try:
                self._serve(reading, entries)
            finally:
                reading.finish()
                with self._state.changed:
                    self._state.readings_open -= 1
                    self._state.changed.notify_all()

    def _serve(self, reading: Reading, entries: Sequence[Entry]) -> None:
        nbytes = 0
        for entry in entries:
            nbytes += entry.nbytes
            if reading.cancelled or self._state.closing or nbytes > self._bytes_max:
                return
            record = self._read_one(entry)
            if record is None:
                return
            reading.records.append(record)

    def _read_one(self, entry: Entry) -> Record | None:
        """Return a block that is sound and the one that was asked for."""
        state = self._state
        try:
            record = self._seal.open(self._files.read(entry.key), entry.key)
        except FileNotFoundError:
            with state.changed:
                state.look_again = True
            state.forget(entry.key)
            return None
        except BadFileError as problem:
            self._give_up(entry.key, str(problem))
            return None
        except (OSError, MemoryError):
            return None  # The file may be as good as ever.
        if (record.parent, record.ids) != (entry.parent, entry.ids):
            self._give_up(entry.key, "a block of other tokens")
            return None
        self._files.used(entry.key, state.now())
        with state.changed:
            state.reads += 1
        return record

    def _give_up(self, key: bytes, problem: str) -> None:
        """Remove a bad file, and forget what is built on it."""
        with contextlib.suppress(OSError):
            self._files.remove(self._files.path(key))
        self._state.forget(key)
        self._state.count_bad(problem)
