"""Who waits in vain: a deadline has passed, or will before a worker is there, or it fits no more."""

from collections.abc import Iterator
from typing import Final

from proxy.admission.answer import Answer
from proxy.admission.lane import Lane
from proxy.admission.outlook import answer_s, come_back_s
from proxy.admission.state import State
from shared.errors import ContextTooLong, Overloaded, QueueTimeout, Refusal

RECHECK_S: Final = 0.25


def late(state: State, now: float) -> Iterator[tuple[Answer, Lane, Refusal]]:
    """Yield who is to be refused, and why. Each may be taken out of its queue meanwhile."""
    left_s = state.restarts.left_s(now)
    for answer in state.waiting():
        lane = state.lane_of[answer.name]
        refusal = _problem_with(state, answer, lane, left_s, now)
        if refusal is not None:
            yield answer, lane, refusal


def next_look_at(state: State, now: float) -> float:
    """Return when to look again: at the next deadline, and often while no worker is there."""
    if state.restarts.left_s(now):
        return now + RECHECK_S
    deadlines = (answer.patience.deadline_at for answer in state.waiting())
    return min((at for at in deadlines if at is not None), default=float("inf"))


def _problem_with(state: State, answer: Answer, lane: Lane, left_s: float, now: float) -> Refusal | None:
    if not state.could_ever_fit(answer.newcomer.tokens):
        message = "the worker that came back has too little memory for this request; lower max_tokens"
        return ContextTooLong(message, param="max_tokens")
    deadline_at = answer.patience.deadline_at
    if deadline_at is None or now + left_s < deadline_at:
        return None
    if now < deadline_at:
        message = f"the worker restarts, and is not expected in the {answer.newcomer.deadline_s:g} s allowed"
        after_s = state.promises.next_s(left_s, answer_s(state, lane), now)
        return Overloaded(message, retry_after_s=after_s)
    message = f"nothing of this request could start within the {answer.newcomer.deadline_s:g} s allowed"
    return QueueTimeout(message, retry_after_s=come_back_s(state, lane, answer.newcomer, 1, now))
