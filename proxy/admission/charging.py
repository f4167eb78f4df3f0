"""Who pays for the device's time, as the worker reports it: an answer's key, or the house."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxy.admission.answer import Answer, Standing
from proxy.admission.lane import Lane
from proxy.admission.state import State


@dataclass(frozen=True, slots=True)
class Share:
    """A piece of prefill that the worker did for an answer. The first of a start says what was `cached`."""

    name: str
    tokens: int
    gpu_ms: float
    cached: int = 0


def prepay(state: State, answer: Answer, lane: Lane) -> None:
    """Charge the prefill to come, so that one decision doesn't give every free row to one key."""
    fresh = max(1, answer.tokens_now - max(answer.computed, answer.cached))
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
        if not answer.begun:
            _begin(state, answer, share.cached)
        answer.prefilled += share.tokens
        charged_ms = share.gpu_ms * _fresh_part(answer, share.tokens)
        answer.computed = max(answer.computed, answer.prefilled)
        _charge(state, answer, share.gpu_ms, charged_ms, now)


def _begin(state: State, answer: Answer, cached: int) -> None:
    """Take the worker's word on what it found of an answer, and set right what was prepaid for the rest."""
    answer.begun = True
    answer.cached = answer.prefilled = cached
    if answer.standing is Standing.RUNNING:
        lane = state.lane_of[answer.name]
        give_back(answer, lane)
        prepay(state, answer, lane)


def _fresh_part(answer: Answer, tokens: int) -> float:
    """Return how much of a piece of prefill was new to an answer that it brought to where it is."""
    if not tokens:
        return float(answer.starts == 1)
    return min(tokens, max(0, answer.prefilled - answer.computed)) / tokens


def charge_step(state: State, names: Sequence[str], step_ms: float, row_ms: float, now: float) -> None:
    """Charge a decode step that gave each of these answers a token; 0 ms: prefill has brought them."""
    if names and step_ms:
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
