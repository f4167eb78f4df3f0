"""Stands in for worker.process: no MLX, none of what takes long to import, and it dies as it is told.

Arguments: a plan (modes separated by commas, one a life; the last one goes on for ever), a file to which each
life appends "epoch pid", and the LaunchSpec. Beside it, the first life that is ready makes a file "ready-1".
"""

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from shared import lifeline
from shared.messages import ManifestRow, Phase, Progress
from shared.readings import MemoryReading
from worker.manifest import ManifestWriter
from worker.progress_pipe import ProgressWriter

# What worker.launch has, which takes longer to import than all the rest of this.
EXIT_PLANNED: Final = 75
EXIT_CANNOT_LOAD: Final = 78
SENT_BY_ANOTHER: Final = "sent by another process"

ROWS: Final = (ManifestRow("s-1", 1, 2, prefilling=False), ManifestRow("s-2", 3, 0, prefilling=True))


@dataclass(frozen=True, slots=True)
class Told:
    """What it takes from a LaunchSpec."""

    epoch: int
    folder: str
    progress_fd: int
    lifeline_fd: int
    manifest_fd: int

    @classmethod
    def of(cls, spec: dict[str, Any]) -> "Told":
        return cls(*(spec[name] for name in cls.__slots__))


class FalseProcess:
    def __init__(self, spec: Told, ready: Path) -> None:
        self._spec = spec
        self._writer = ProgressWriter(spec.progress_fd)
        self._ready = ready
        self._step = 0

    def report(self, phase: Phase, *, tokens: int = 0, answers: int = 0, wants_recycle: bool = False) -> None:
        self._step += 1
        self._writer.write(
            Progress(
                epoch=self._spec.epoch,
                step=self._step,
                phase=phase,
                expected_ms=10.0,
                ping=0,
                running=(),
                kv_bytes=0,
                budget_bytes=0,
                tokens=tokens,
                answers=answers,
                wants_recycle=wants_recycle,
                memory=MemoryReading(1 << 20, 2 << 20, 3 << 20, 4 << 20),
            )
        )

    def load(self) -> None:
        for _ in range(2):
            self.report("loading")
            time.sleep(0.02)

    def idle(self, *, tokens: int = 0, answers: int = 0, wants_recycle: bool = False) -> NoReturn:
        self._ready.touch()
        while True:
            self.report("idle", tokens=tokens, answers=answers, wants_recycle=wants_recycle)
            time.sleep(0.1)

    def run(self) -> None:
        """Write down which rows run, and run them for a moment."""
        self.load()
        ManifestWriter(self._spec.manifest_fd).write(ROWS)
        self.report("decode", tokens=2)

    def live(self, mode: str) -> None:
        """Live as a mode says: its name, and what it needs to know behind a colon."""
        name, _, detail = mode.partition(":")
        getattr(self, f"be_{name}")(*([detail] if detail else []))
        self.idle()

    # --- modes: one that returns is idle from then on ---

    def be_healthy(self) -> None:
        self.load()

    def be_deaf(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.load()

    def be_served(self) -> None:
        self.load()
        self.idle(tokens=40, answers=1)

    def be_leaky(self) -> None:
        self.load()
        self.idle(tokens=40, answers=1, wants_recycle=True)

    def be_chatty(self) -> None:
        self.load()
        for line in range(40_000):
            os.write(2, b"%06d %s\n" % (line, b"x" * 92))

    def be_busy(self) -> None:
        self.run()
        self._ready.touch()
        while True:
            self.report("decode", tokens=2)
            time.sleep(0.1)

    def be_hang(self) -> None:
        self.load()
        self.report("decode")
        time.sleep(3600)

    def be_stuck_load(self) -> None:
        self.report("loading")
        time.sleep(3600)

    def be_exit(self, status: str) -> None:
        self.load()
        say(f"last words of {self._spec.epoch}")
        os._exit(int(status))

    def be_signal(self, name: str) -> None:
        self.load()
        signal.raise_signal(signal.Signals[name])

    def be_sent(self, name: str) -> None:
        """Die of a signal from somebody else, as the worker says it."""
        say(f"ended by {name}, {SENT_BY_ANOTHER}")
        signal.raise_signal(signal.Signals[name])

    def be_memory(self) -> None:
        self.run()
        say("terminate called: std::bad_alloc")
        os.abort()

    def be_unmendable(self) -> None:
        say("the folder has no weights")
        os._exit(EXIT_CANNOT_LOAD)

    def be_mendable(self) -> None:
        """Serve as soon as the folder has weights."""
        if not (Path(self._spec.folder) / "weights").exists():
            self.be_unmendable()
        self.be_served()

    def be_recycle(self) -> None:
        self.report("idle")
        os._exit(EXIT_PLANNED)

    def be_garbled_recycle(self) -> None:
        os.write(self._spec.progress_fd, b"\xfb\xf7\xff\xffterminate called\xfb" * 9)
        self.be_recycle()


def say(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


def main() -> None:
    plan, lives_file, spec_json = sys.argv[1:]
    spec = Told.of(json.loads(spec_json))
    lifeline.watch(spec.lifeline_fd, lifeline.exit_now)
    lives = Path(lives_file)
    # It was started with them blocked, for the real worker waits for them in a thread.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_PLANNED))
    lived = len(lives.read_text().splitlines()) if lives.exists() else 0
    with lives.open("a") as file:
        file.write(f"{spec.epoch} {os.getpid()}\n")
    modes = plan.split(",")
    FalseProcess(spec, lives.with_name(f"ready-{lived + 1}")).live(modes[min(lived, len(modes) - 1)])


if __name__ == "__main__":
    main()
