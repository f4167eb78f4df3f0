"""What a worker's death means for the answers it interrupted: whose fault it was, and who had too many."""

from proxy.admission.core import Admission
from proxy.admitted import LiveSequence
from proxy.live_answers import Asked, LiveAnswers
from proxy.quarantine import Quarantine, refusal
from shared.clock import Clock
from shared.errors import WorkerCrashed
from shared.limits import ATTEMPTS_MAX
from shared.logs import Logger
from shared.messages import BLAMED_CAUSES, Exited


class Deaths:
    """Judges deaths by what the supervisor says of them. `resumes_max` bounds those of one answer."""

    def __init__(
        self,
        live: LiveAnswers,
        admission: Admission,
        quarantine: Quarantine,
        resumes_max: int,
        *,
        clock: Clock,
        log: Logger,
    ) -> None:
        self._live = live
        self._admission = admission
        self._quarantine = quarantine
        self._resumes_max = resumes_max
        self._clock = clock
        self._log = log

    def died(self, exited: Exited) -> None:
        """Count a death for all that it interrupted, and convict who killed the worker alone.

        What ran on that worker has been put back in its queue meanwhile. An end on purpose counts for nobody.
        """
        if exited.cause == "planned":
            return
        if exited.cause in BLAMED_CAUSES:
            self._judge(exited)
        for sequence in [sequence for sequence in self._live if sequence.ran_on == exited.epoch]:
            sequence.ran_on = None
            self.interrupted(sequence)
            if self.too_many(sequence):
                self._live.give_up(sequence, self.crashed(sequence, exited.cause))

    def _judge(self, exited: Exited) -> None:
        """Suspect who was in the worker's last step, or convict who was there alone in its trial."""
        rows = {row.sequence: row.index for row in exited.rows}
        known = {name: asked for name in rows if (asked := self._live.asked(name, exited.epoch)) is not None}
        guilty = self._admission.died(
            {name: rows[name] for name in known},
            self._clock.now(),
            left={name: asked.fingerprint for name, asked in known.items() if name not in self._live},
            alone=len(rows) == len(known),
        )
        if guilty is not None:
            (asked,) = known.values()
            self._convict(asked, exited)

    def interrupted(self, sequence: LiveSequence) -> None:
        """Count an interruption that wasn't on purpose."""
        sequence.interruptions += 1

    def too_many(self, sequence: LiveSequence) -> bool:
        """Whether an answer was interrupted too often to go on. One that has all its tokens needn't."""
        if sequence.full:
            return False
        return sequence.interruptions > self._resumes_max or sequence.attempt >= ATTEMPTS_MAX

    def crashed(self, sequence: LiveSequence, cause: str) -> WorkerCrashed:
        """Return what the client is told of an answer that can't go on."""
        message = f"the worker was lost {sequence.interruptions} times under this request, at last: {cause}"
        return WorkerCrashed(message, retry_after_s=self._admission.state.restarts.restart_s)

    def _convict(self, asked: Asked, exited: Exited) -> None:
        """Quarantine a request, and end all that ask for the same."""
        fingerprint, cause = asked.fingerprint, exited.cause
        self._log.error("request quarantined", fingerprint=fingerprint, cause=cause, lane=asked.lane)
        self._quarantine.add(
            fingerprint,
            cause=cause,
            detail=exited.detail,
            key=asked.key,
            lane=asked.lane,
            prompt_tokens=asked.prompt_tokens,
        )
        for sequence in self._live:
            if sequence.fingerprint == fingerprint:
                self._live.give_up(sequence, refusal(cause))
