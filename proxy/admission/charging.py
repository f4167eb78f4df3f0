"""Who pays for the device's time, as the worker reports it: an answer's key, or the house."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxy.admission.answer import Answer
from proxy.admission.lane import Lane
from proxy.admission.state import State


@dataclass(frozen=True, slots=True)
class Share:
    """A piece of prefill that the worker did for an answer."""

    name: str
    tokens: int
    gpu_ms: float


def prepay(state: State, answer: Answer, lane: Lane) -> None:
    """Charge the prefill to come, so that one decision doesn't give every free row to one key."""
    fresh = max(1, answer.tokens_now - answer.computed)
    answer.prepaid_ms = state.speeds.prefill_ms(fresh) + state.speeds.step_ms(1)
    lane.counters.charge(answer.key, answer.prepaid_ms, answer.newcomer.weight)


def give_back(answer: Answer, lane: Lane) -> None:
    """Take back what was prepaid and not worked off."""
    lane.counters.charge(answer.key, -answer.prepaid_ms, answer.newcomer.weight)
    answer.prepaid_ms = 0.0


def charge_prefills(state: State, shares: Iterable[Share], now: float) -> None:
    """Charge pieces of prefill; what had been computed before a park or a death is the house's affair."""
    for share in shares:
        state.speeds.prefilled(share.tokens, share.gpu_ms)
        answer = state.answers.get(share.name)
        if answer is None:
            state.house_ms += share.gpu_ms
            continue
        answer.prefilled += share.tokens
        fresh = min(share.tokens, max(0, answer.prefilled - answer.computed))
        answer.computed = max(answer.computed, answer.prefilled)
        _charge(state, answer, share.gpu_ms, share.gpu_ms * fresh / max(1, share.tokens), now)


def charge_step(state: State, names: Sequence[str], step_ms: float, row_ms: float, now: float) -> None:
    """Charge a decode step that gave each of these answers a token."""
    if names:
        state.speeds.stepped(len(names), step_ms)
    for name in names:
        answer = state.answers[name]
        answer.emitted += 1
        answer.prefilled = answer.computed = answer.tokens_now
        _charge(state, answer, row_ms, row_ms, now)


def _charge(state: State, answer: Answer, gpu_ms: float, charged_ms: float, now: float) -> None:
    lane = state.lane_of[answer.name]
    state.shares.add(lane.settings.name, gpu_ms, now)
    state.house_ms += gpu_ms - charged_ms
    prepaid_ms = min(answer.prepaid_ms, charged_ms)
    answer.prepaid_ms -= prepaid_ms
    lane.counters.charge(answer.key, charged_ms - prepaid_ms, answer.newcomer.weight)
