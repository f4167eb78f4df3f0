"""The worker's loop: receive, schedule, forward, reply. It never catches: any error ends the process."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final

from shared.clock import Clock
from shared.limits import PING_INTERVAL_S, PINGS_MISSED_MAX
from shared.messages import Cancel, Hello, Message, Park, Phase, Ping, Submit
from worker.engine.batch_engine import BatchEngine, StepResult
from worker.first_runs import FirstRuns
from worker.grammar_desk import GrammarDesk
from worker.held_memory import HeldMemory
from worker.inbox import Inbox
from worker.outbox import Outbox
from worker.plan import Chunk, Plan, StepTimes
from worker.reporter import Reporter
from worker.running import Running
from worker.scheduler import Ended, Scheduler
from worker.sequence import Phase as SequencePhase
from worker.sequence import Sequence

_IDLE_WAIT_S: Final = 0.25
# Until the first Hello could be handed over: the socket connects within milliseconds, and answers wait.
_CONNECTING_WAIT_S: Final = 0.02
# While nothing is to be done but to look whether the disk has been read, or a grammar compiled.
_READING_WAIT_S: Final = 0.002
_PROXY_SILENT_S: Final = PING_INTERVAL_S * PINGS_MISSED_MAX


@dataclass(frozen=True, slots=True)
class Parts:
    """What a loop moves: mouth and ear, who decides, who runs it, and who takes note of it."""

    inbox: Inbox
    outbox: Outbox
    scheduler: Scheduler
    engine: BatchEngine
    times: StepTimes
    running: Running
    memory: HeldMemory
    reporter: Reporter
    first_runs: FirstRuns
    grammars: GrammarDesk


class Loop:
    """One turn: drain the inbox, begin, plan, prefill and launch, read the step before, send, report."""

    def __init__(self, hello: Hello, parts: Parts, *, clock: Clock) -> None:
        self._hello = hello
        self._inbox = parts.inbox
        self._outbox = parts.outbox
        self._scheduler = parts.scheduler
        self._engine = parts.engine
        self._times = parts.times
        self._running = parts.running
        self._memory = parts.memory
        self._reporter = parts.reporter
        self._first_runs = parts.first_runs
        self._grammars = parts.grammars
        self._clock = clock
        self._step = 0
        self._heard_at = float("-inf")
        self._greeted_at = float("-inf")
        self._reads_disk = False

    def run(self, end_asked: Callable[[], bool]) -> None:
        """Turn until the end is asked for. What was launched by then is read, and its tokens are sent."""
        while not end_asked():
            self.turn()
        self._read_all()
        self._outbox.send_prefills(self._step)

    def turn(self) -> None:
        self._first_runs.begin_turn()
        self._reads_disk = False
        for message in self._inbox.drain():
            self._take(message)
        self._watch_proxy()
        self._watch_memory()
        self._take_guides()
        if self._scheduler.will_prefill:
            self._read_all()
            self._begin()
        plan = self._scheduler.plan(self._clock.now())
        only_waits = plan.idle and (self._reads_disk or self._grammars.is_asked)
        self._tell_progress(plan)
        self._engine.drop(plan.dropped)
        if plan.chunks:
            self._prefill(plan.chunks)
            plan = self._with_newcomers(plan)
        rows = self._scheduler.still_in(plan)
        if rows:
            self._launch(rows)
        if not self._engine.under_way:
            self._outbox.send_prefills(self._step)
        if self._engine.under_way > bool(rows):
            self._read()
        self._engine.tidy()
        self._outbox.send_prefixes(*self._engine.take_prefix_news())
        self._rest(only_waits=only_waits)

    def _begin(self) -> None:
        """Have what is kept of prompts made ready. Rows that are copied from must not be under way."""
        self._engine.drop(self._scheduler.take_dropped())
        for sequence in self._scheduler.beginning():
            self._running.begin(sequence)
            cached = self._engine.begin(sequence)
            if cached is None:
                self._reads_disk = True
            else:
                sequence.begin(cached)
                self._outbox.note_begun(sequence)

    def _with_newcomers(self, plan: Plan) -> Plan:
        """Look into the inbox once more after a lower lane's prefill: a chat that came meanwhile goes on."""
        if not any(chunk.sequence.rank for chunk in plan.chunks):
            return plan
        for message in self._inbox.drain():
            self._take(message)
        self._begin()
        more = self._scheduler.extend(plan, self._clock.now())
        self._engine.drop(more.dropped)
        if more.chunks:
            self._tell_progress(more)
            self._prefill(more.chunks)
        return more

    def _prefill(self, chunks: Seq[Chunk]) -> None:
        """Prefill, and send at once the tokens that it brings."""
        self._running.prefill(chunks)
        done = self._engine.prefill(chunks)
        self._outbox.note_prefills(chunks, self._times.shares_ms(chunks, done.elapsed_ms))
        self._times.prefilled(chunks, done.elapsed_ms)
        self._step += 1
        if done.firsts is not None:
            self._settle(done.firsts)
            # What was prefilled beside those who have ended is copied next, and shouldn't be there twice.
            self._engine.drop(self._scheduler.take_dropped())

    def _launch(self, rows: Seq[Sequence]) -> None:
        self._running.launch(rows)
        self._engine.launch(rows)

    def _read_all(self) -> None:
        """Let no token wait for a prefill."""
        while self._engine.under_way:
            self._read()

    def _read(self) -> None:
        """Read the oldest step under way and send its tokens. One step stays under way behind it."""
        self._running.read()
        result = self._engine.read()
        self._running.was_read()
        self._times.decoded(len(result.rows), result.elapsed_ms)
        self._step += 1
        self._settle(result)

    def _settle(self, result: StepResult) -> None:
        outcomes = self._scheduler.settle(result.rows, result.tokens)
        self._reporter.settled(outcomes)
        self._outbox.send_step(self._step, result, outcomes)

    def _rest(self, *, only_waits: bool) -> None:
        """Where there is nothing to do, say that nothing runs; sleep once nothing is to be dropped either.

        While sequences only wait for the disk or for their grammars, sleep a moment at a time.
        """
        if self._engine.under_way or (self._scheduler.names and not only_waits):
            return
        self._running.rest()
        if only_waits:
            self._inbox.wait(_READING_WAIT_S)
        elif not self._scheduler.busy:
            if self._greeted_at >= 0:
                self._grammars.prepare()
            self._inbox.wait(_IDLE_WAIT_S if self._greeted_at >= 0 else _CONNECTING_WAIT_S)

    # --- the proxy ----------------------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        self._heard_at = self._clock.now()
        if isinstance(message, Submit):
            self._submit(Sequence.of(message, self._heard_at))
        elif isinstance(message, Cancel):
            self._scheduler.cancel(message.sequence)
        elif isinstance(message, Park):
            self._park(message.sequence)
        elif isinstance(message, Ping):
            self._reporter.pinged(message.number)

    def _submit(self, sequence: Sequence) -> None:
        """Refuse what would run off the end of the context or the vocabulary; the proxy never sends it."""
        problem = self._problem_with(sequence)
        if problem:
            self._scheduler.cancel(sequence.name)
            self._outbox.send_failed(sequence, problem)
        else:
            self._scheduler.submit(sequence)
            if sequence.awaits_guide:
                self._grammars.ask(sequence)

    def _take_guides(self) -> None:
        """Let those begin whose grammars are compiled; end those that had said all that theirs allow."""
        for sequence, guide in self._grammars.made():
            if sequence.phase is not SequencePhase.WAITING:
                continue  # it was cancelled meanwhile
            if isinstance(guide, str):
                self._scheduler.cancel(sequence.name)
                self._outbox.send_failed(sequence, guide)
            elif guide.ended:
                self._scheduler.cancel(sequence.name)
                ended = Ended(sequence, sequence.settled, "stop")
                self._reporter.settled([ended])
                self._outbox.send_finished(ended)
            else:
                self._scheduler.guide(sequence, guide)

    def _park(self, name: str) -> None:
        """Say Parked as the last word of this attempt; a step of it that is under way is not read for it."""
        sequence = self._scheduler.park(name)
        if sequence is not None:
            self._outbox.send_prefills(self._step)
            self._outbox.send_parked(sequence)

    def _problem_with(self, sequence: Sequence) -> str:
        vocabulary = self._hello.facts.vocabulary
        tokens = len(sequence.ids) + sequence.max_tokens - sequence.settled
        if tokens > self._hello.facts.context_tokens:
            return f"{tokens} tokens exceed the context of {self._hello.facts.context_tokens}"
        if max(sequence.ids) >= vocabulary:
            return f"a token id is outside the vocabulary of {vocabulary}"
        return ""

    def _watch_proxy(self) -> None:
        """Without a proxy for some seconds, cancel its orphans and say Hello until one answers."""
        now = self._clock.now()
        if now - self._heard_at <= _PROXY_SILENT_S:
            return
        self._scheduler.cancel_all()
        if now - self._greeted_at >= PING_INTERVAL_S and self._outbox.send(self._hello):
            self._greeted_at = now
            self._engine.take_prefix_news()
            self._outbox.send_prefixes(self._engine.prefix_names(), ())

    # --- what is told and watched -------------------------------------------------------------------------

    def _watch_memory(self) -> None:
        """Give back what the guard says, and prefill in smaller pieces while it wants that."""
        is_idle = not self._engine.under_way and not self._scheduler.names
        orders = self._memory.look(is_idle=is_idle)
        self._scheduler.share_quanta(orders.quantum_share)

    def _tell_progress(self, plan: Plan) -> None:
        """Report what is about to happen."""
        waits = bool(plan.rows) or self._engine.under_way > 0
        phase: Phase = "prefill" if plan.chunks else "decode" if waits else "idle"
        self._reporter.tell(
            self._clock.now(),
            phase,
            step=self._step,
            expected_ms=self._first_runs.expected_ms(plan),
            running=self._scheduler.names,
            kv_bytes=self._engine.kv_bytes,
            prefixes=self._engine.prefixes,
            rows_and_groups=self._engine.rows_and_groups,
        )
