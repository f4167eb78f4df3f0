"""A worker without a model: speaks the wire, gives every row a token each step, and notes when it sent it.

`python -m ops.load.false_worker ENDPOINT FOLDER SENT_LOG`. What it costs a proxy to carry tokens can be
measured with it: SENT_LOG gets a JSON line for each attempt of a sequence when that ends, with the monotonic
time at which each of its tokens was sent.
"""

import argparse
import itertools
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from shared import lifeline
from shared.channel import DealerChannel
from shared.codec import decode, encode
from shared.limits import PING_INTERVAL_S, PROGRESS_INTERVAL_S
from shared.messages import (
    Cancel,
    Finished,
    Hello,
    Message,
    Park,
    Parked,
    Ping,
    Progress,
    Step,
    StepRow,
    Submit,
)
from shared.model_facts import ModelFacts
from shared.model_folder import ModelFolder
from shared.readings import MemoryReading

_IDLE_S: Final = 0.25
# A millisecond is the finest that the channel can wait; the rest of a step is slept.
_FINEST_S: Final = 0.001
# Longer than a real worker waits: a proxy that is flat out may be late with its pings.
_PROXY_SILENT_S: Final = 30.0
_BLOCKED_S: Final = 0.0005
_NO_MEMORY: Final = MemoryReading(0, 0, 0, 0)


@dataclass(slots=True)
class _Row:
    """A sequence that runs: how far it is, its group, and when its tokens of this attempt were sent."""

    submit: Submit
    index: int
    group: int
    sent_at: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Manner:
    """How it behaves: `step_ms` 0 is flat out; who asks for more tokens than `hold_over` never gets one.

    Rows are spread over `groups`, whose steps come one after the other within `step_ms`, as those of several
    workers would: each row has a token every `step_ms`, but not all at once.
    """

    step_ms: float = 0.0
    token: int = 0
    hold_over: int | None = None
    groups: int = 1

    @property
    def beat_ms(self) -> float:
        """Milliseconds between a step and the next group's."""
        return self.step_ms / self.groups


class FalseWorker:
    """One life of it; `turn` is one look at the inbox and at most one step."""

    def __init__(
        self,
        channel: DealerChannel,
        hello: Hello,
        manner: Manner,
        sent_log: IO[str],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows: dict[str, _Row] = {}
        self._channel = channel
        self._hello = hello
        self._manner = manner
        self._sent_log = sent_log
        self._now = now
        self._step = 0
        self._numbers = itertools.count()
        self._ping = 0
        self._due = self._heard_at = self._greeted_at = self._told_at = float("-inf")

    def run(self) -> NoReturn:
        while True:
            self.turn()
            self._wait()

    def turn(self) -> None:
        for frame in self._channel.drain():
            self._take(decode(frame))
        self._watch_proxy()
        self._tell_progress()
        now = self._now()
        if now >= self._due and self._speaking():
            self._due = self._next_due(now)
            self._speak()

    def _next_due(self, now: float) -> float:
        """Keep the rhythm through a late step, and begin a new one after a pause: nothing is caught up."""
        beat_s = self._manner.beat_ms / 1000
        due = self._due + beat_s
        return due if due > now else now + beat_s

    def _wait(self) -> None:
        """Sleep until the next step is due or a frame comes; flat out not at all."""
        due_in_s = self._due - self._now() if self._speaking() else _IDLE_S
        if due_in_s >= _FINEST_S:
            self._channel.wait(min(due_in_s, _IDLE_S))
        elif due_in_s > 0:
            time.sleep(due_in_s)

    # --- the proxy ----------------------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        if message.epoch != self._hello.epoch:
            return
        self._heard_at = self._now()
        match message:
            case Submit():
                group = next(self._numbers) % self._manner.groups
                self.rows[message.sequence] = _Row(message, len(message.emitted_ids), group)
            case Cancel():
                self._drop(message.sequence)
            case Park():
                self._park(message.sequence)
            case Ping():
                self._ping = message.number
            case _:
                pass

    def _park(self, name: str) -> None:
        row = self._drop(name)
        if row is not None:
            self._say(Parked(self._hello.epoch, name, row.submit.attempt, row.index))

    def _drop(self, name: str) -> _Row | None:
        """Forget a sequence, and write down when its tokens were sent."""
        row = self.rows.pop(name, None)
        if row is not None and row.sent_at:
            first = len(row.submit.emitted_ids)
            line = {"sequence": name, "first_index": first, "sent_at": row.sent_at}
            self._sent_log.write(json.dumps(line) + "\n")
        return row

    def _watch_proxy(self) -> None:
        """Say Hello until a proxy answers; one that has long been silent has left orphans."""
        now = self._now()
        if now - self._heard_at <= _PROXY_SILENT_S or now - self._greeted_at < PING_INTERVAL_S:
            return
        for name in list(self.rows):
            self._drop(name)
        if self._channel.send(encode(self._hello)):
            self._greeted_at = now

    def _tell_progress(self) -> None:
        now = self._now()
        if now - self._told_at < PROGRESS_INTERVAL_S:
            return
        self._told_at = now
        self._sent_log.flush()
        progress = Progress(
            epoch=self._hello.epoch,
            step=self._step,
            phase="decode" if self.rows else "idle",
            expected_ms=self._manner.step_ms,
            ping=self._ping,
            running=tuple(self.rows),
            kv_bytes=len(self.rows),
            budget_bytes=self._hello.budget_bytes,
            tokens=0,
            answers=0,
            wants_recycle=False,
            memory=_NO_MEMORY,
        )
        self._channel.send(encode(progress))

    # --- steps --------------------------------------------------------------------------------------------

    def _speaking(self) -> list[_Row]:
        most = self._manner.hold_over
        return [row for row in self.rows.values() if most is None or row.submit.max_tokens <= most]

    def _speak(self) -> None:
        """Send one token of every row that speaks and whose group's turn it is; end those that are full.

        The time of sending is taken before the tokens are put into words: what that takes is the wire's.
        """
        group = self._step % self._manner.groups
        self._step += 1
        rows = [row for row in self._speaking() if row.group == group]
        if not rows:
            return
        sent_at = self._now()
        spoken = tuple(
            StepRow(row.submit.sequence, row.submit.attempt, row.index, self._manner.token) for row in rows
        )
        step_ms = self._manner.beat_ms
        self._insist(encode(Step(self._hello.epoch, self._step, step_ms, step_ms / len(rows), spoken, ())))
        for row in rows:
            row.sent_at.append(sent_at)
            row.index += 1
            if row.index >= row.submit.max_tokens:
                self._finish(row)

    def _finish(self, row: _Row) -> None:
        submit = row.submit
        self._drop(submit.sequence)
        self._say(Finished(self._hello.epoch, submit.sequence, submit.attempt, row.index, "length"))

    def _say(self, message: Message) -> None:
        self._insist(encode(message))

    def _insist(self, frame: bytes) -> None:
        """Wait while the proxy's queue is full: flat out, tokens would be lost instead of late."""
        until = self._now() + _PROXY_SILENT_S
        while not self._channel.send(frame) and self._now() < until:
            time.sleep(_BLOCKED_S)


def hello_of(folder: ModelFolder, slots: int, step_ms: float, epoch: int) -> Hello:
    """Return a greeting that the folder's proxy believes: rows cost next to nothing, so all fit."""
    facts = ModelFacts(
        fingerprint=folder.fingerprint,
        family=folder.family,
        context_tokens=folder.context_tokens,
        vocabulary=folder.vocabulary,
        weights_bytes=folder.weights_bytes,
        kv_bytes_per_token=1,
        kv_pad_tokens=1,
        window_tokens=0,
        window_bytes_per_token=0,
        fixed_bytes_per_row=0,
        batches=True,
        why_not="",
    )
    return Hello(
        epoch=epoch,
        worker="false",
        facts=facts,
        budget_bytes=1 << 40,
        slots=slots,
        prefill_ms_per_token=0.001,
        decode_ms_per_step=max(0.001, step_ms),
    )


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ops.load.false_worker", description=__doc__)
    parser.add_argument("endpoint", help="the proxy's socket")
    parser.add_argument("folder", type=Path, help="the model's folder: its fingerprint, and no more of it")
    parser.add_argument("sent_log", type=Path, help="where the times of sending go")
    parser.add_argument("--slots", type=int, default=16, help="rows")
    parser.add_argument("--step-ms", type=float, default=0.0, help="time of a step; 0 is flat out")
    parser.add_argument("--token", type=int, default=0, help="the id that every token is")
    parser.add_argument("--hold-over", type=int, help="who asks for more tokens holds a row and never speaks")
    parser.add_argument(
        "--groups", type=int, default=1, help="steps that share step-ms, each with its own rows"
    )
    parser.add_argument("--lifeline-fd", type=int, help="a pipe; its end is the end of this process")
    return parser.parse_args(words)


def _end(_number: int, _frame: Any) -> NoReturn:
    raise SystemExit(0)


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    signal.signal(signal.SIGTERM, _end)
    if arguments.lifeline_fd is not None:
        lifeline.watch(arguments.lifeline_fd, lifeline.exit_now)
    epoch = time.time_ns() // 1_000_000
    hello = hello_of(ModelFolder.read(arguments.folder), arguments.slots, arguments.step_ms, epoch)
    manner = Manner(arguments.step_ms, arguments.token, arguments.hold_over, arguments.groups)
    channel = DealerChannel(arguments.endpoint, f"w-0-{epoch}".encode())
    try:
        with arguments.sent_log.open("w") as sent_log:
            FalseWorker(channel, hello, manner, sent_log).run()
    finally:
        channel.close()


if __name__ == "__main__":
    sys.exit(main())
