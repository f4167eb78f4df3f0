"""The two gates at arrival: a count before anything is tokenised, and the queue's bounds and the wait after.

A refusal here costs neither tokenising nor anything of the worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.admission.answer import Newcomer
from proxy.admission.lane import ID_BYTES, Lane
from proxy.admission.outlook import answer_s, come_back_s, estimated_wait_s
from proxy.admission.state import State
from shared.errors import ContextTooLong, InvalidRequest, Overloaded, RateLimited


@dataclass(frozen=True, slots=True)
class Announcement:
    """Answers that are being measured. Their places are held until `measured` is told."""

    lane: Lane
    key: str
    answers: int


class Gate:
    """Refuses what can't be queued. Queued are the answers that never ran: those that did go first anyway."""

    def __init__(self, state: State) -> None:
        self._state = state

    def announced(self, lane: Lane, key: str, answers: int, deadline_s: float, now: float) -> Announcement:
        """Hold places for answers while they are measured, or raise what `check` would raise for them.

        What may be measured at a time is what queue and free rows together may take.
        """
        least = Newcomer("", key, 1.0, 1, 1, deadline_s, "")
        self._check_number(lane, answers)
        self._check_places(lane, least, lane.announced + answers, self._state.free_rows, now)
        held = lane.announced_by_key.get(key, 0)
        self._check_key(lane, least, (held, self._state.free_rows), answers, now)
        self._check_wait(lane, least, answers - 1, now)
        lane.announced += answers
        lane.announced_by_key[key] = held + answers
        return Announcement(lane, key, answers)

    def measured(self, announcement: Announcement) -> None:
        """Take back what was announced: it arrives now, or never will."""
        lane, key = announcement.lane, announcement.key
        lane.announced -= announcement.answers
        left = lane.announced_by_key.pop(key) - announcement.answers
        if left:
            lane.announced_by_key[key] = left

    def check(self, lane: Lane, newcomers: Sequence[Newcomer], now: float) -> list[float]:
        """Return each newcomer's estimated wait, in seconds; raise a Refusal if they can't all be queued."""
        self._check_fit(newcomers)
        first = newcomers[0]
        self._check_number(lane, len(newcomers))
        self._check_places(lane, first, len(newcomers), 0, now)
        self._check_key(lane, first, (0, 0), len(newcomers), now)
        self._check_size(lane, newcomers, now)
        waits = [
            estimated_wait_s(self._state, lane, newcomer, place, now)
            for place, newcomer in enumerate(newcomers)
        ]
        self._refuse_long_wait(lane, newcomers[-1], len(newcomers), max(waits), now)
        return waits

    def _check_fit(self, newcomers: Sequence[Newcomer]) -> None:
        ledger = self._state.ledger
        for newcomer in newcomers:
            if ledger is not None and not ledger.could_ever_fit(newcomer.tokens):
                raise ContextTooLong(
                    f"prompt and answer may take {newcomer.tokens} tokens, which don't fit in the "
                    f"{ledger.full_bytes >> 20} MiB that this machine has for them; lower max_tokens",
                    param="max_tokens",
                )

    def _check_number(self, lane: Lane, answers: int) -> None:
        if answers > lane.settings.queue_places:
            raise InvalidRequest(
                f"{answers} answers in one request; {lane.settings.queue_places} at most may wait", param="n"
            )

    def _check_places(self, lane: Lane, newcomer: Newcomer, answers: int, free_rows: int, now: float) -> None:
        bound = lane.settings.queue_places
        if lane.fresh + answers - free_rows > bound:
            raise self._overloaded(
                lane, newcomer, answers, now, f"{lane.fresh} answers wait in this lane already, of {bound}"
            )

    def _check_key(
        self, lane: Lane, newcomer: Newcomer, held_and_free: tuple[int, int], answers: int, now: float
    ) -> None:
        """Refuse a key that would fill more than its share of the queue; anonymous callers may fill it."""
        key, bound = newcomer.key, lane.key_places
        held, free = held_and_free
        if not key:
            return
        if answers > bound:
            raise InvalidRequest(
                f"{answers} answers in one request; at most {bound} of one API key may wait here", param="n"
            )
        if lane.fresh_of(key) + held + answers - free > bound:
            raise RateLimited(
                f"{lane.fresh_of(key) + held} answers of this API key wait in this lane already, of {bound}",
                retry_after_s=come_back_s(self._state, lane, newcomer, answers, now),
            )

    def _check_size(self, lane: Lane, newcomers: Sequence[Newcomer], now: float) -> None:
        settings = lane.settings
        own_tokens = sum(newcomer.prompt_tokens for newcomer in newcomers)
        if own_tokens * ID_BYTES > settings.queue_mb << 20:
            raise InvalidRequest(
                f"{own_tokens} prompt tokens in one request; "
                f"{(settings.queue_mb << 20) // ID_BYTES} at most may wait",
                param="n" if len(newcomers) > 1 else None,
            )
        tokens = lane.queued_tokens + own_tokens
        if tokens * ID_BYTES > settings.queue_mb << 20:
            raise self._overloaded(
                lane, newcomers[0], len(newcomers), now, f"the prompts that wait fill {settings.queue_mb} MiB"
            )
        if lane.fresh and (lane.fresh + len(newcomers)) * answer_s(self._state, lane) > settings.queue_s:
            raise self._overloaded(
                lane, newcomers[0], len(newcomers), now, f"{settings.queue_s:g} s of work wait in this lane"
            )

    def _check_wait(self, lane: Lane, newcomer: Newcomer, more_ahead: int, now: float) -> None:
        wait_s = estimated_wait_s(self._state, lane, newcomer, more_ahead, now)
        self._refuse_long_wait(lane, newcomer, more_ahead + 1, wait_s, now)

    def _refuse_long_wait(
        self, lane: Lane, newcomer: Newcomer, answers: int, wait_s: float, now: float
    ) -> None:
        allowed_s = lane.overload.admissible_wait_s(newcomer.deadline_s)
        if wait_s > allowed_s:
            why = f"this would wait for about {wait_s:.1f} s, and {allowed_s:g} s are allowed now"
            raise self._overloaded(lane, newcomer, answers, now, why)

    def _overloaded(self, lane: Lane, newcomer: Newcomer, answers: int, now: float, why: str) -> Overloaded:
        retry_after_s = come_back_s(self._state, lane, newcomer, answers, now)
        return Overloaded(f"The server is overloaded: {why}.", retry_after_s=retry_after_s)
