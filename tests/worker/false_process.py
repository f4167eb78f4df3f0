"""Stands in for worker.process: no MLX, and it dies as it is told.

Arguments: a plan (modes separated by commas, one a life; the last one goes on for ever), a file to which each
life appends "epoch pid", and the LaunchSpec. Beside it, the first life that is ready makes a file "ready-1".
"""

import os
import signal
import sys
import time
from pathlib import Path

from shared import lifeline
from shared.messages import MemoryReading, Phase, Progress
from worker.launch import EXIT_CANNOT_LOAD, EXIT_PLANNED, LaunchSpec
from worker.progress_pipe import ProgressWriter


class FalseProcess:
    def __init__(self, spec: LaunchSpec, ready: Path) -> None:
        self._spec = spec
        self._writer = ProgressWriter(spec.progress_fd)
        self._ready = ready
        self._step = 0

    def report(self, phase: Phase) -> None:
        self._step += 1
        memory = MemoryReading(0, 0, 0, 0)
        self._writer.write(Progress(self._spec.epoch, self._step, phase, 10.0, 0, (), 0, memory))

    def load(self) -> None:
        for _ in range(2):
            self.report("loading")
            time.sleep(0.02)

    def idle(self) -> None:
        self._ready.touch()
        while True:
            self.report("idle")
            time.sleep(0.1)

    def live(self, mode: str) -> None:
        name, _, detail = mode.partition(":")
        match name:
            case "healthy":
                self.load()
            case "stuck_load":
                self.report("loading")
                time.sleep(3600)
            case "hang":
                self.load()
                self.report("decode")
                time.sleep(3600)
            case "exit":
                self.load()
                sys.stderr.write(f"last words of {self._spec.epoch}\n")
                sys.stderr.flush()
                os._exit(int(detail))
            case "cannot_load":
                sys.stderr.write("the folder has no weights\n")
                sys.stderr.flush()
                os._exit(EXIT_CANNOT_LOAD)
            case "signal":
                self.load()
                signal.raise_signal(signal.Signals[detail])
            case "deaf":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                self.load()
            case "recycle" | "garbled_recycle":
                if name == "garbled_recycle":
                    os.write(self._spec.progress_fd, b"\xfb\xf7\xff\xffterminate called\xfb" * 9)
                self.report("idle")
                os._exit(EXIT_PLANNED)
            case _:
                raise ValueError(mode)
        self.idle()


def main() -> None:
    plan, lives_file, spec_json = sys.argv[1:]
    spec = LaunchSpec.from_json(spec_json)
    lifeline.watch(spec.lifeline_fd, lifeline.exit_now)
    lives = Path(lives_file)
    lived = len(lives.read_text().splitlines()) if lives.exists() else 0
    with lives.open("a") as file:
        file.write(f"{spec.epoch} {os.getpid()}\n")
    modes = plan.split(",")
    FalseProcess(spec, lives.with_name(f"ready-{lived + 1}")).live(modes[min(lived, len(modes) - 1)])


if __name__ == "__main__":
    main()
