"""One lane: who waits in it, in which order, and what it has had of the device."""

import bisect
from collections import Counter, deque
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from proxy.admission.answer import Answer, Standing
from proxy.admission.fairness import Counters
from proxy.admission.overload import Overload
from proxy.admission.speeds import Lengths, Samples
from shared.lane_settings import AdmissionSettings, LaneSettings
from shared.limits import PARKS_MAX

# A tuple's place and an int, of one queued id.
ID_BYTES: Final = 40
_KEY_PLACES_MIN: Final = 4
_URGENT_SHARE: Final = 0.25
_RATIO_FIRST: Final = 0.7
_RATIO_LEAST: Final = 0.3
_RATIO_STEP: Final = 0.01


class Lane:
    """Its queue has two parts: `front` holds answers that ran already and go first, the oldest foremost."""

    def __init__(self, settings: LaneSettings, rank: int, admission: AdmissionSettings) -> None:
        self.counters = Counters()
        self.overload = Overload()
        self.lengths = Lengths()
        self.sizes = Samples()
        self.prompts = Samples()
        self.running: dict[str, Answer] = {}
        self.parking: dict[str, Answer] = {}
        self.queued_tokens = 0
        self.uncached_tokens = 0
        self.announced = 0
        self.announced_by_key: dict[str, int] = {}
        self.last_start_at = float("-inf")
        self.backlogged_since: float | None = None
        self.ratio = _RATIO_FIRST
        self.overcommits = True
        self._front: list[Answer] = []
        self._waiting: dict[str, deque[Answer]] = {}
        self._fresh = 0
        self._aside: Counter[str] = Counter()
        self.configure(settings, rank, admission)

    def configure(self, settings: LaneSettings, rank: int, admission: AdmissionSettings) -> None:
        """Take other settings from now on."""
        self.settings = settings
        self.rank = rank
        self.key_places = max(_KEY_PLACES_MIN, int(admission.key_queue_share * settings.queue_places))
        self.overload.configure(settings.target_wait_s, admission.overload_after_s)

    def __len__(self) -> int:
        return len(self._front) + self._fresh

    @property
    def fresh(self) -> int:
        """How many wait for their first start; only these count against the queue's bounds."""
        return self._fresh + self._aside.total()

    def fresh_of(self, key: str) -> int:
        return len(self._waiting.get(key, ())) + self._aside[key]

    def keys_waiting(self) -> dict[str, tuple[int, float]]:
        """Return, for each key that waits, how many answers of it do, and its weight."""
        return {key: (len(waiting), waiting[0].newcomer.weight) for key, waiting in self._waiting.items()}

    @property
    def resuming(self) -> int:
        return len(self._front)

    # --- the queue ----------------------------------------------------------------------------------------

    def append(self, answer: Answer, now: float) -> None:
        waiting = self._waiting.setdefault(answer.key, deque())
        bisect.insort(waiting, answer, key=attrgetter("number"))
        self._fresh += 1
        self._weigh(answer, 1)
        self._note_backlog(now)

    def _weigh(self, answer: Answer, by: int) -> None:
        """Count a prompt that waits, or count it off: the tokens held here, and those to be computed."""
        self.queued_tokens += by * answer.newcomer.prompt_tokens
        self.uncached_tokens += by * answer.uncached_tokens

    def put_front(self, answer: Answer, now: float) -> None:
        """Queue an answer that ran before those that never did."""
        answer.standing = Standing.QUEUED
        answer.queued_at = now
        bisect.insort(self._front, answer, key=attrgetter("number"))
        self._note_backlog(now)

    def remove(self, answer: Answer) -> None:
        """Take a queued answer out."""
        if answer in self._front:
            self._front.remove(answer)
        else:
            waiting = self._waiting[answer.key]
            waiting.remove(answer)
            if not waiting:
                del self._waiting[answer.key]
            self._fresh -= 1
            self._weigh(answer, -1)
        if not len(self):
            self.backlogged_since = None

    def put_aside(self, answer: Answer) -> None:
        """Count an answer that waits for a trial, outside this queue, against the queue's bounds."""
        if not answer.starts:
            self._aside[answer.key] += 1
            self._weigh(answer, 1)

    def take_from_aside(self, answer: Answer) -> None:
        if not answer.starts:
            self._aside[answer.key] -= 1
            self._aside += Counter()  # Drops what is 0.
            self._weigh(answer, -1)

    def _note_backlog(self, now: float) -> None:
        if self.backlogged_since is None:
            self.backlogged_since = now

    def candidates(self, now: float) -> Iterator[Answer]:
        """Yield who waits, in the order in which they should start.

        First those that ran before; then by the keys' counters, of equals the one with fewer rows.
        """
        yield from tuple(self._front)
        rows = Counter(answer.key for answer in self.running.values())
        for key in sorted(
            self._waiting,
            key=lambda key: (self.counters.of(key), rows[key], self._waiting[key][0].number),
        ):
            yield from self._of_key(key, now)

    def _of_key(self, key: str, now: float) -> Iterator[Answer]:
        """Yield a key's answers, the oldest first.

        Under lasting overload the newest goes first, because the oldest's client may have left. But who was
        let in was promised a start within its deadline: what has little time left still goes before.
        """
        answers = tuple(self._waiting[key])
        if not self.overload.lasting:
            yield from answers
            return
        urgent = [answer for answer in answers if _is_urgent(answer, now)]
        yield from urgent
        yield from (answer for answer in reversed(answers) if answer not in urgent)

    def queued(self) -> list[Answer]:
        return [*self._front, *(answer for answers in self._waiting.values() for answer in answers)]

    # --- age ----------------------------------------------------------------------------------------------

    def has_aged(self, answer: Answer, now: float) -> bool:
        """Whether one of its answers waits so long that smaller ones don't pass it any more."""
        return now - answer.queued_at >= self.settings.ages_after_s

    def waits_s(self, now: float) -> float:
        """Return how long the lane's oldest has waited; 0 if nobody does."""
        oldest = min((answers[0].queued_at for answers in self._waiting.values()), default=now)
        return now - min([oldest, *(answer.queued_at for answer in self._front)])

    # --- rows ---------------------------------------------------------------------------------------------

    def may_park(self, row: Answer) -> bool:
        """Whether one of its rows may be parked now, or once it is ripe."""
        return self.settings.parkable and row.parks < PARKS_MAX

    def overcommitted(self, answer: Answer, margin_tokens: int) -> int:
        """Return the tokens to reserve for an answer that starts or grows.

        All that it may take, unless it can be parked: then what it has, a margin, and a share of
        the rest, which falls while answers end early and is reset by a park.
        """
        if not (self.settings.parkable and self.overcommits) or answer.parks >= PARKS_MAX:
            return answer.newcomer.tokens
        ahead = max(margin_tokens, int(self.ratio * answer.remaining))
        return answer.tokens_now + min(answer.remaining, ahead)

    def ended_early(self) -> None:
        self.ratio = max(_RATIO_LEAST, self.ratio - _RATIO_STEP)

    def ran_out(self) -> None:
        """Memory ran out under running answers: take less for granted again."""
        self.ratio = _RATIO_FIRST


def _is_urgent(answer: Answer, now: float) -> bool:
    deadline_at = answer.patience.deadline_at
    return deadline_at is not None and deadline_at - now <= _URGENT_SHARE * answer.newcomer.deadline_s
