"""The worker's loop: receive, schedule, forward, reply. It never catches: any error ends the process."""

import time
from collections.abc import Callable
from typing import Final, NoReturn

from shared.limits import PING_INTERVAL_S, PINGS_MISSED_MAX, PROGRESS_INTERVAL_S
from shared.messages import Cancel, Hello, MemoryReading, Message, Phase, Ping, Progress, Submit
from worker.batch_engine import BatchEngine, StepResult
from worker.inbox import Inbox
from worker.outbox import Outbox
from worker.plan import Plan, StepTimes
from worker.scheduler import Scheduler
from worker.sequence import Sequence

_IDLE_WAIT_S: Final = 0.25
_PROXY_SILENT_S: Final = PING_INTERVAL_S * PINGS_MISSED_MAX


class Loop:
    """One turn: drain the inbox, plan, prefill and launch, read the step before, send, report."""

    def __init__(
        self,
        hello: Hello,
        context_tokens: int,
        parts: tuple[Inbox, Outbox, Scheduler, BatchEngine, StepTimes],
        report: Callable[[Progress], None],
        memory: Callable[[], MemoryReading],
    ) -> None:
        self._hello = hello
        self._context_tokens = context_tokens
        self._inbox, self._outbox, self._scheduler, self._engine, self._times = parts
        self._report = report
        self._memory = memory
        self._step = 0
        self._ping = 0
        self._heard_at = float("-inf")
        self._told_at = float("-inf")
        self._greeted_at = float("-inf")

    def run(self) -> NoReturn:
        """Turn for ever; the supervisor ends the process."""
        while True:
            self.turn()

    def turn(self) -> None:
        for message in self._inbox.drain():
            self._take(message)
        self._watch_proxy()
        plan = self._scheduler.plan(time.monotonic())
        self._tell_progress(plan)
        self._engine.drop(plan.dropped)
        self._engine.prefill(plan.chunks)
        if plan.rows:
            self._engine.launch(plan.rows)
        result = self._engine.read() if self._should_read(plan) else None
        if result is not None:
            self._reply(result)
        self._engine.tidy()
        if plan.idle and not self._engine.under_way:
            self._inbox.wait(_IDLE_WAIT_S)

    def _should_read(self, plan: Plan) -> bool:
        """Keep one step under way while there is a next one to launch behind it."""
        return self._engine.under_way > 1 or not plan.rows

    def _reply(self, result: StepResult) -> None:
        self._times.observe(len(result.rows), result.chunks, result.elapsed_ms)
        self._step += 1
        outcomes = self._scheduler.settle(result.rows, result.tokens)
        self._outbox.send_step(self._step, result.elapsed_ms, outcomes)

    # --- the proxy ----------------------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        self._heard_at = time.monotonic()
        if isinstance(message, Submit):
            self._submit(Sequence.of(message, self._heard_at))
        elif isinstance(message, Cancel):
            self._scheduler.cancel(message.sequence)
        elif isinstance(message, Ping):
            self._ping = message.number

    def _submit(self, sequence: Sequence) -> None:
        """Refuse what would run off the end of the context or the vocabulary; the proxy never sends it."""
        problem = self._problem_with(sequence)
        if problem:
            self._outbox.send_failed(sequence, problem)
        else:
            self._scheduler.submit(sequence)

    def _problem_with(self, sequence: Sequence) -> str:
        vocabulary = self._hello.facts.vocabulary
        tokens = len(sequence.ids) + sequence.max_tokens - sequence.settled
        if tokens > self._context_tokens:
            return f"{tokens} tokens exceed the context of {self._context_tokens}"
        if max(sequence.ids) >= vocabulary:
            return f"a token id is outside the vocabulary of {vocabulary}"
        return ""

    def _watch_proxy(self) -> None:
        """Without a proxy for some seconds, cancel its orphans and say Hello until one answers."""
        now = time.monotonic()
        if now - self._heard_at <= _PROXY_SILENT_S:
            return
        self._scheduler.cancel_all()
        if now - self._greeted_at >= PING_INTERVAL_S:
            self._greeted_at = now
            self._outbox.send(self._hello)

    def _tell_progress(self, plan: Plan) -> None:
        """Report what is about to happen: to the supervisor every turn, to the proxy about once a second."""
        phase: Phase = "prefill" if plan.chunks else "decode" if plan.rows else "idle"
        now = time.monotonic()
        progress = Progress(
            epoch=self._hello.epoch,
            step=self._step,
            phase=phase,
            expected_ms=plan.expected_ms,
            ping=self._ping,
            running=self._scheduler.names,
            memory=self._memory(),
        )
        self._report(progress)
        if now - self._told_at >= PROGRESS_INTERVAL_S:
            self._told_at = now
            self._outbox.send(progress)
