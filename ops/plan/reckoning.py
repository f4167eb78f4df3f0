"""The plan itself: how many streams of what context fit, and what would make what was asked fit. Pure.

Everything is asked of what the worker asks: `LoadedModel.reserve`, `ModelFacts.batch_bytes`, `memory.budget`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from ops.plan.machine import MAC_SIZES_GIB, Target, mac_of
from ops.plan.record import Asked, Fit, Machine, ModelCosts, Plan, Planned, WayOut
from ops.plan.sizes import CONTEXT_TOKENS_MIN, tokens_in_words
from shared.limits import GIB, KIB, MIB, SLOTS_MAX
from shared.model_facts import ModelFacts
from worker import memory
from worker.memory import Budget

_TABLE_FIRST: Final = 4 * KIB
_SLOTS: Final = 16
_CONTEXT_STEP: Final = 256


class Reserved(Protocol):
    """What is set aside beside weights and caches."""

    @property
    def nbytes(self) -> int: ...


class AtContext(Protocol):
    """A model that is served with one longest context."""

    @property
    def facts(self) -> ModelFacts: ...
    def reserve(self, slots: int, free_bytes: int) -> Reserved: ...


class Estimated(Protocol):
    """A model whose costs are known."""

    @property
    def facts(self) -> ModelFacts: ...
    @property
    def weights_from(self) -> str: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    def at(self, context: int) -> AtContext: ...


@dataclass(frozen=True, slots=True)
class Reckoning:
    """One model on one machine."""

    model: Estimated
    target: Target
    fraction: float

    @property
    def limit_bytes(self) -> int:
        return memory.limit_bytes(self.target.device, self.fraction)

    @property
    def streams_max(self) -> int:
        return SLOTS_MAX if self.model.facts.batches else 1

    def budget(self, streams: int, context: int) -> tuple[int, Budget]:
        """Return what the worker sets aside, and its budget, with so many slots of this context."""
        weights_bytes = self.model.facts.weights_bytes
        free_bytes = max(0, self.limit_bytes - weights_bytes)
        reserve_bytes = self.model.at(context).reserve(streams, free_bytes).nbytes
        budget = memory.budget(self.target.device, self.fraction, None, weights_bytes, reserve_bytes)
        return reserve_bytes, budget

    def fits(self, streams: int, context: int) -> bool:
        """Whether so many streams may all be at their longest."""
        if streams > self.streams_max or self.limit_bytes <= self.model.facts.weights_bytes:
            return False
        needed = streams * self.model.facts.row_bytes(context)
        return needed <= self.budget(streams, context)[1].kv_bytes

    def most_streams(self, context: int) -> int:
        return most(lambda streams: self.fits(streams, context), self.streams_max)

    def longest_context(self, streams: int) -> int:
        """Return the longest context of which so many fit, in steps; 0 where none does."""
        steps = self.model.facts.context_tokens // _CONTEXT_STEP
        return _CONTEXT_STEP * most(lambda step: self.fits(streams, step * _CONTEXT_STEP), steps)

    def fit(self, context: int) -> Fit:
        streams = self.most_streams(context)
        reserve_bytes, budget = self.budget(max(1, streams), context)
        return Fit(context, streams, self.model.facts.row_bytes(context), reserve_bytes, budget.kv_bytes)


def most(holds: Callable[[int], bool], highest: int) -> int:
    """Return the largest number for which it holds, 0 if it does for none; it holds for all below it."""
    low, high = 0, highest + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def table_contexts(context_tokens: int) -> tuple[int, ...]:
    """Return the contexts to show: 4k, 8k, 32k, 64k, 128k and so on, and the model's own at the end."""
    lengths = [_TABLE_FIRST, 2 * _TABLE_FIRST]
    while lengths[-1] < context_tokens:
        lengths.append(lengths[-1] * (4 if lengths[-1] == 2 * _TABLE_FIRST else 2))
    return (*(each for each in lengths if each < context_tokens), context_tokens)


def plan(name: str, asked: Asked, target: Target, estimated: Callable[[int], Estimated | None]) -> Plan:
    """Plan what was asked. `estimated` returns the model with so many kv_bits, None if it can't have them."""
    model = estimated(asked.kv_bits)
    assert model is not None, "what was asked for is estimated before"
    reckoning = Reckoning(model, target, asked.memory_fraction)
    streams, context = _settled(asked, reckoning)
    planned = _planned(reckoning, streams, context)
    asks_too_much = (asked.context_tokens or 0) > model.facts.context_tokens
    fits = planned.fits and not asks_too_much
    ways_out = () if fits else tuple(ways_out_of(reckoning, streams, context, estimated))
    return Plan(
        verdict="fits" if fits else "does not fit",
        machine=_machine(reckoning),
        model=_costs(name, model),
        planned=planned,
        table=tuple(map(reckoning.fit, table_contexts(model.facts.context_tokens))),
        settings=_settings(reckoning, planned) if fits else {},
        ways_out=ways_out,
    )


def _settled(asked: Asked, reckoning: Reckoning) -> tuple[int, int]:
    """Return the streams and the context that are planned, where not both were asked."""
    own = reckoning.model.facts.context_tokens
    if asked.streams is None:
        context = min(own, asked.context_tokens or own)
        return max(1, min(_SLOTS, reckoning.most_streams(context))), context
    if asked.context_tokens is None:
        return asked.streams, min(own, max(_TABLE_FIRST, reckoning.longest_context(asked.streams)))
    return asked.streams, min(own, asked.context_tokens)


def _planned(reckoning: Reckoning, streams: int, context: int) -> Planned:
    facts = reckoning.model.facts
    reserve_bytes, budget = reckoning.budget(min(streams, reckoning.streams_max), context)
    asked_bytes = streams * facts.row_bytes(context)
    return Planned(
        context_tokens=context,
        streams=streams,
        stream_bytes=facts.row_bytes(context),
        window_bytes=min(context, facts.window_tokens) * facts.window_bytes_per_token,
        reserve_bytes=reserve_bytes,
        budget_bytes=budget.kv_bytes,
        asked_bytes=asked_bytes,
        headroom_bytes=budget.kv_bytes - asked_bytes,
        fits=reckoning.fits(streams, context),
        warning=budget.warning,
    )


def _settings(reckoning: Reckoning, planned: Planned) -> dict[str, int]:
    facts = reckoning.model.facts
    settings = {"slots": planned.streams, "context_tokens": planned.context_tokens, "kv_bits": facts.kv_bits}
    return {**settings, "kv_budget_mb": planned.budget_bytes // MIB}


def ways_out_of(
    reckoning: Reckoning, streams: int, context: int, estimated: Callable[[int], Estimated | None]
) -> list[WayOut]:
    """Return single changes that help, the mildest first."""
    ways: list[WayOut] = []
    bits, memory_bytes = reckoning.model.facts.kv_bits, reckoning.target.device.memory_bytes
    for fewer in (8, 4):
        packed = estimated(fewer) if not bits or fewer < bits else None
        if packed is not None and Reckoning(packed, reckoning.target, reckoning.fraction).fits(
            streams, context
        ):
            ways.append(WayOut(f"kv_bits = {fewer}", fewer, streams, context, memory_bytes))
            break
    fewer_streams = reckoning.most_streams(context)
    if 0 < fewer_streams < streams:
        ways.append(
            WayOut(
                f"{fewer_streams} streams instead of {streams}", bits, fewer_streams, context, memory_bytes
            )
        )
    shorter = reckoning.longest_context(min(streams, reckoning.streams_max))
    if CONTEXT_TOKENS_MIN <= shorter < context and streams <= reckoning.streams_max:
        words = f"a context of {tokens_in_words(shorter)} instead of {tokens_in_words(context)}"
        ways.append(WayOut(words, bits, streams, shorter, memory_bytes))
    for size in MAC_SIZES_GIB:
        larger = Reckoning(reckoning.model, mac_of(size * GIB), reckoning.fraction)
        if size * GIB > memory_bytes and larger.fits(streams, context):
            ways.append(WayOut(f"a Mac of {size} GB", bits, streams, context, size * GIB))
            break
    return ways


def _machine(reckoning: Reckoning) -> Machine:
    device = reckoning.target.device
    return Machine(
        name=device.name,
        memory_bytes=device.memory_bytes,
        usable_bytes=device.usable_bytes,
        limit_bytes=reckoning.limit_bytes,
        memory_fraction=reckoning.fraction,
        assumed=reckoning.target.assumed,
    )


def _costs(name: str, model: Estimated) -> ModelCosts:
    facts = model.facts
    return ModelCosts(
        name=name,
        family=facts.family,
        context_tokens=facts.context_tokens,
        caches=facts.caches,
        batches=facts.batches,
        why_not=facts.why_not,
        weights_bytes=facts.weights_bytes,
        weights_from=model.weights_from,
        kv_bits=facts.kv_bits,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        window_tokens=facts.window_tokens,
        window_bytes_per_token=facts.window_bytes_per_token,
        fixed_bytes_per_row=facts.fixed_bytes_per_row,
        notes=model.notes,
    )
