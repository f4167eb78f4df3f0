"""Every answer that is queued or runs, and the ways in which one ends: finished, failed, or given up."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

from proxy.admission.answer import Newcomer
from proxy.admission.core import Admission
from proxy.admitted import Admitted, AnswerEnded, Event, LiveSequence, RequestFailed
from proxy.observer import Observer
from proxy.request import Measured, Ticket
from shared.clock import Clock
from shared.errors import Refusal
from shared.limits import RECORDS_MAX
from shared.messages import Cancel, FinishReason, Message
from shared.sampling import Sampling

_DEPARTED_MAX: Final = RECORDS_MAX


class Link(Protocol):
    """What is needed of the wire: the worker's epoch, None without one, the last ping, and sending."""

    @property
    def epoch(self) -> int | None: ...
    @property
    def ping(self) -> int: ...
    def send(self, message: Message) -> None: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """What an answer was to be, and for whom. `epoch` is the worker that it was submitted to last.

    It is None once its end there is settled.
    """

    fingerprint: str
    key: str
    lane: str
    prompt_tokens: int
    epoch: int | None


class LiveAnswers:
    """By name, with the request that each is for. Whatever ends leaves admission as well, on every path."""

    def __init__(self, link: Link, admission: Admission, observer: Observer, clock: Clock) -> None:
        self._link = link
        self._admission = admission
        self._observer = observer
        self._clock = clock
        self._sequences: dict[str, LiveSequence] = {}
        self._owners: dict[str, Admitted] = {}
        self._departed: OrderedDict[str, Asked] = OrderedDict()
        self.emptied = asyncio.Event()
        self.emptied.set()

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[LiveSequence]:
        """Go through them all; they may end meanwhile."""
        return iter(list(self._sequences.values()))

    def __getitem__(self, name: str) -> LiveSequence:
        return self._sequences[name]

    def __contains__(self, name: str) -> bool:
        return name in self._sequences

    def owner(self, sequence: LiveSequence) -> Admitted:
        """Return the request that an answer is for."""
        return self._owners[sequence.name]

    def add(self, admitted: Admitted) -> None:
        self.emptied.clear()
        self._observer.admitted(admitted)
        for sequence in admitted.sequences:
            self._sequences[sequence.name] = sequence
            self._owners[sequence.name] = admitted

    def running(self) -> list[LiveSequence]:
        return [sequence for sequence in self._sequences.values() if sequence.running]

    def current(self, name: str, attempt: int) -> LiveSequence | None:
        """Return the running sequence that a worker's word is about, None if the word is stale."""
        sequence = self._sequences.get(name)
        return sequence if sequence is not None and sequence.running and sequence.attempt == attempt else None

    def asked(self, name: str, epoch: int) -> Asked | None:
        """Return what an answer was to be that a worker ran, even if its client has left since."""
        if name in self._sequences:
            return self._asked(self._sequences[name])
        departed = self._departed.get(name)
        return departed if departed is not None and departed.epoch == epoch else None

    def _asked(self, sequence: LiveSequence) -> Asked:
        owner = self._owners[sequence.name]
        key, tokens = owner.measured.ticket.caller.key_id, len(sequence.prompt_ids)
        return Asked(sequence.fingerprint, key, owner.lane, tokens, sequence.ran_on)

    # --- ending -------------------------------------------------------------------------------------------

    def finish(self, sequence: LiveSequence, reason: FinishReason) -> None:
        """End an answer as the worker did."""
        sequence.reason = reason
        sequence.events.put_nowait(AnswerEnded(sequence.answer, reason))
        self._forget(sequence, completed=True)

    def fail(self, sequence: LiveSequence, refusal: Refusal) -> None:
        """End an answer that holds no row, and its request, with an error."""
        admitted = self._owners[sequence.name]
        if admitted.failed_at is None:
            admitted.failed_at = self._clock.now()
            self._observer.failed(admitted, refusal)
        sequence.events.put_nowait(RequestFailed(refusal))
        self._forget(sequence, completed=False)

    def give_up(self, sequence: LiveSequence, refusal: Refusal) -> None:
        """End an answer with an error, and free its row if it has one."""
        if self._is_live(sequence):
            self.cancel(sequence)
            self.fail(sequence, refusal)

    def release(self, sequence: LiveSequence, *, complete: bool) -> bool:
        """End an answer that nobody waits for any more; False if it had ended already."""
        if not self._is_live(sequence):
            return False
        self.cancel(sequence)
        if sequence.ran_on is not None:
            self._remember(sequence)
        sequence.reason = "stop" if complete else None
        self._forget(sequence, completed=complete)
        return True

    def _remember(self, sequence: LiveSequence) -> None:
        """Keep what was asked: the worker runs it until it hears the Cancel, and may die of it before."""
        self._departed[sequence.name] = self._asked(sequence)
        if len(self._departed) > _DEPARTED_MAX:
            self._departed.popitem(last=False)

    def cancel(self, sequence: LiveSequence) -> None:
        """Have the worker forget a sequence, if it runs there."""
        if sequence.running and self._link.epoch is not None:
            self._link.send(Cancel(self._link.epoch, sequence.name))

    def _is_live(self, sequence: LiveSequence) -> bool:
        return self._sequences.get(sequence.name) is sequence

    def _forget(self, sequence: LiveSequence, *, completed: bool) -> None:
        sequence.running = False
        self._observer.ended(self._owners[sequence.name], sequence, completed=completed)
        del self._sequences[sequence.name], self._owners[sequence.name]
        if not self._sequences:
            self.emptied.set()
        self._admission.ended(sequence.name, completed=completed)


def sequences_of(measured: Measured, prefix: str, events: asyncio.Queue[Event]) -> Iterable[LiveSequence]:
    """Make one sequence for each choice of each prompt, in the order of the answers' indices."""
    parsed = measured.parsed
    # One for each choice, not for each answer: making one checks it, and it may have hundreds of biases.
    samplings: list[Sampling] = [replace(parsed.sampling, choice=choice) for choice in range(parsed.choices)]
    for prompt, (ids, max_tokens) in enumerate(zip(measured.prompt_ids, measured.max_tokens, strict=True)):
        for choice, sampling in enumerate(samplings):
            answer = prompt * parsed.choices + choice
            asks = measured.fingerprints[prompt]
            sequence = LiveSequence(f"{prefix}/{answer}", answer, ids, max_tokens, sampling, events, asks)
            if measured.names:
                sequence.names = measured.names[prompt]
            yield sequence


def newcomer_of(sequence: LiveSequence, ticket: Ticket) -> Newcomer:
    """Return an answer as admission sees it."""
    return Newcomer(
        name=sequence.name,
        key=ticket.caller.key_id,
        weight=ticket.caller.weight,
        prompt_tokens=len(sequence.prompt_ids),
        max_tokens=sequence.max_tokens,
        deadline_s=ticket.deadline_s,
        fingerprint=sequence.fingerprint,
        names=sequence.names,
    )
