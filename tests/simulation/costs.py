"""What the false device costs: milliseconds of a turn, and bytes of a row."""

from dataclasses import dataclass
from typing import Final

from shared.model_facts import ModelFacts

KV_BYTES_PER_TOKEN: Final = 128 << 10


@dataclass(frozen=True, slots=True)
class Costs:
    """A turn takes `turn_ms`, `row_ms` for each row that decodes, and the time of the tokens it prefills.

    The numbers are those of the survey's simulation: nothing was measured. `budget_tokens` is what fits in
    the KV caches.
    """

    turn_ms: float = 20.0
    row_ms: float = 0.6
    prefill_tokens_per_s: float = 900.0
    slots: int = 8
    budget_tokens: int = 60_000

    def decode_ms(self, rows: int) -> float:
        return self.turn_ms + self.row_ms * rows

    def prefill_ms(self, tokens: int) -> float:
        return 1000.0 * tokens / self.prefill_tokens_per_s


def facts(pad_tokens: int = 1, state_bytes: int = 0) -> ModelFacts:
    """Return the facts of a model of 128 KiB a token, and state of a fixed size in each row."""
    return ModelFacts(
        fingerprint="f" * 16,
        family="false",
        context_tokens=1 << 17,
        vocabulary=1 << 16,
        weights_bytes=0,
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        kv_pad_tokens=pad_tokens,
        window_tokens=0,
        window_bytes_per_token=0,
        fixed_bytes_per_row=state_bytes,
        batches=True,
        why_not="",
    )
