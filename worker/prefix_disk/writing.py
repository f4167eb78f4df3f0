"""The thread that takes the folder, scans it, writes to it and keeps it within its bounds."""

import contextlib
import threading
from typing import Final

from worker.prefix_disk.block_file import BadFileError, Seal
from worker.prefix_disk.day_budget import Spent, from_text, to_text
from worker.prefix_disk.files import BlockFiles
from worker.prefix_disk.index import Stranger
from worker.prefix_disk.records import Entry, Record
from worker.prefix_disk.state import TierState

_NOT_OURS: Final = "another process has the folder of prefixes; nothing is kept on disk meanwhile"
_FAILED: Final = "the disk of prefixes fails; it is left alone for a while"


class WritingThread:
    """Does one thing after the other; what a disk refuses ends what is done, not the thread."""

    def __init__(self, state: TierState, files: BlockFiles, seal: Seal) -> None:
        self._state, self._files, self._seal = state, files, seal
        self._thread = threading.Thread(target=self._run, name="prefixes to disk", daemon=True)
        self._held = self._scanned = False
        self._asked = self._seen = 0

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was due was done, or at least tried. False if that takes longer."""
        state = self._state
        with state.changed:
            self._asked += 1
            mine = self._asked
            state.changed.notify_all()
            return state.changed.wait_for(lambda: self._has_done(mine) and not state.readings_open, timeout_s)

    def _has_done(self, asked: int) -> bool:
        return self._state.stopped or (self._seen >= asked and not self._state.work_waits())

    # --- its turns ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            self._end()

    def _turn(self) -> bool:
        """Do all that is due, then wait for more. False: it is time to end."""
        state = self._state
        with state.changed:
            asked = self._asked
        try:
            while self._do_next():
                pass
        except OSError as problem:
            with state.changed:
                state.failures += 1
            state.rest(_FAILED, problem=str(problem))
        with state.changed:
            self._seen = asked
            state.changed.notify_all()
            if not (state.closing or state.work_waits() or self._asked > asked):
                state.changed.wait(state.rest_s() or None)
            return not state.ends() and not (state.closing and state.rest_s() > 0)

    def _do_next(self) -> bool:
        """Do one thing that is due; False if there is none. Raises OSError."""
        state = self._state
        with state.changed:
            if state.ends() or state.rest_s():
                return False
            doomed, look, waits = bool(state.doomed), state.look_again, bool(state.queue)
        if not self._held:
            return self._take_folder()
        if not self._scanned:
            self._scan()
        elif look:
            self._look()
        elif doomed:
            self._remove_doomed()
        elif waits:
            self._write_first()
        else:
            return False
        return True

    def _end(self) -> None:
        state = self._state
        with state.changed:
            state.closing = state.stopped = True
            state.queue.clear()
            spent, self._seen = state.budget.exactly(), self._asked
            state.changed.notify_all()
        if self._held and spent is not None:
            with contextlib.suppress(OSError):
                self._files.write_count(to_text(spent))
        self._files.leave()

    # --- the folder ---------------------------------------------------------------------------------------

    def _take_folder(self) -> bool:
        state = self._state
        if not self._files.take():
            state.rest(_NOT_OURS)
            return False
        self._held = True
        saved = self._files.read_count()
        with state.changed:
            if saved is None:
                state.budget.saved(Spent(state.today(), 0))
            else:
                state.budget.adopt(from_text(saved, state.today()))
        return True

    def _lose_folder(self) -> None:
        """Begin anew: somebody removed the folder, and perhaps the lock with it."""
        state = self._state
        state.log.warning("the folder of prefixes is gone; it is made again", folder=str(self._files.own))
        self._files.leave()
        self._held = self._scanned = False
        with state.changed:
            state.index.clear()

    def _scan(self) -> None:
        state = self._state
        strangers = self._files.strangers()
        with state.changed:
            state.index.clear()
            state.index.set_strangers(strangers)
        spoiled = []
        for found in self._files.scan():
            try:
                entry = self._seal.entry(found.beginning, found.nbytes, found.key)
            except BadFileError as problem:
                spoiled.append(found.key)
                with contextlib.suppress(OSError):
                    self._files.remove(self._files.path(found.key))
                state.count_bad(str(problem))
                continue
            with state.changed:
                if state.ends():
                    return
                state.index.add(entry, min(found.used, state.now()))
        for key in spoiled:
            state.forget(key)
        self._make_room()
        self._scanned = True

    def _look(self) -> None:
        """See what is still there, after something wasn't."""
        state = self._state
        with state.changed:
            state.look_again = False
        if not self._files.stands():
            self._lose_folder()
            return
        there = self._files.keys()
        with state.changed:
            state.index.keep_only(there)

    def _remove_doomed(self) -> None:
        state = self._state
        with state.changed:
            key = state.doomed.popleft()
            if key in state.index:
                return
        self._files.remove(self._files.path(key))

    # --- a block ------------------------------------------------------------------------------------------

    def _write_first(self) -> None:
        state = self._state
        if not self._files.stands():
            self._lose_folder()
            return
        with state.changed:
            if not state.queue:
                return
            record = state.queue.first()
        written = None
        try:
            written = self._put(record)
        except (IsADirectoryError, NotADirectoryError, FileExistsError) as problem:
            # Something else has the file's place. It isn't ours, and says nothing about the rest of the disk.
            state.count_bad(str(problem))
        with state.changed:
            state.queue.done(record, written=written is not None)
            if written is not None:
                state.index.add(written, state.now())
                state.writes += 1
        if written is not None:
            state.recovered()

    def _put(self, record: Record) -> Entry | None:
        """Write a block; None if there is no room for it, on disk or in the day. Raises OSError."""
        state = self._state
        pieces = self._seal.close(record)
        nbytes = sum(len(piece) for piece in pieces)
        with state.changed:
            state.index.touch([record.parent], state.now())
            if state.lost(record.parent) or state.budget.left(state.today()) < nbytes:
                return None
        if not self._make_room(nbytes, 1, keep=record.parent):
            return None
        with state.changed:
            ahead = state.budget.spend(state.today(), nbytes)
        if ahead is not None:
            self._files.write_count(to_text(ahead))
            with state.changed:
                state.budget.saved(ahead)
        self._files.put(record.key, pieces, state.now())
        snapshot = bool(record.snapshot)
        return Entry(record.key, record.parent, record.ids, record.cuttable, snapshot, nbytes)

    def _make_room(self, nbytes: int = 0, blocks: int = 0, *, keep: bytes | None = None) -> bool:
        """Evict until so much more fits; False if only `keep` could go for it. Raises OSError."""
        state = self._state
        while True:
            with state.changed:
                if state.index.fits(nbytes, blocks):
                    return True
                victim = state.index.victim(nbytes)
            if victim is None or victim == keep:
                return False
            if isinstance(victim, Stranger):
                self._files.remove_stranger(victim.path)
                with state.changed:
                    state.index.remove_stranger()
            else:
                self._files.remove(self._files.path(victim))
                with state.changed:
                    state.index.remove(victim)
                    state.evictions += 1
