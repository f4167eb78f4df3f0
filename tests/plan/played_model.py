"""A model of round figures, for plans that are reckoned by hand."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

from ops.plan.reckoning import AtContext
from ops.plan.record import Asked
from shared.limits import GIB, KIB
from shared.model_facts import ModelFacts

# 64 KiB a token, 8 GiB of weights; a row's room comes in steps of 32 tokens or a 32nd of it.
FACTS = ModelFacts("", "played", 128 * KIB, 1000, 8 * GIB, 64 * KIB, 32, 0, 0, 0, True, "")


@dataclass(frozen=True)
class PlayedModel:
    """It needs `reserve_bytes` for passes, and `slot_bytes` more for each slot."""

    facts: ModelFacts = FACTS
    weights_from: str = "nobody"
    notes: tuple[str, ...] = ()
    reserve_bytes: int = GIB
    slot_bytes: int = 0

    def at(self, context: int) -> AtContext:
        return replace(self, facts=replace(self.facts, context_tokens=context))

    def reserve(self, slots: int, free_bytes: int) -> SimpleNamespace:
        assert free_bytes >= 0
        return SimpleNamespace(nbytes=self.reserve_bytes + slots * self.slot_bytes)


def asked(
    context_tokens: int | None = None, streams: int | None = None, kv_bits: int = 0, fraction: float = 0.8
) -> Asked:
    return Asked(None, context_tokens, streams, kv_bits, fraction, 256)
