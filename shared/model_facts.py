"""What a model is and what its KV caches cost, as the worker measured it when it loaded the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from shared.limits import CONTEXT_TOKENS_MAX, VOCABULARY_MAX, require

# What of a prompt can be used again: any beginning of it; such as end where a state was kept; nothing.
Reuse = Literal["any", "checkpoints", "none"]

# A long cache grows by a 64th to a 32nd of what it holds: a doubling takes as many copies at any length.
_GROWTH_PARTS: Final = 32


def room_tokens(tokens: int, pad_tokens: int) -> int:
    """Return for how many tokens a cache that holds `tokens` has room: for one more at least."""
    doublings = (tokens + 1).bit_length() - pad_tokens.bit_length() - _GROWTH_PARTS.bit_length() + 1
    step = pad_tokens << max(0, doublings)
    return -(-(tokens + 1) // step) * step


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's costs, in bytes of one row, all layers together.

    `kv_bytes_per_token` is for layers that keep every token; `window_bytes_per_token` for those that keep
    the last `window_tokens` only; `fixed_bytes_per_row` is state that doesn't grow (SSM, convolutions). Room
    for tokens comes in multiples of `kv_pad_tokens` or more: see `room_tokens`. `batches` False means that
    one row runs at a time, and `why_not` says why. `caches` names the kinds of the layers' caches. `kv_bits`
    is what keys and values are quantised to, 0 for not at all.

    `reuse` is what of a prompt that was computed can be used again. Rows whose prompts begin with the same
    `shares_from` tokens or more hold that beginning once; 0 where they don't, and `why_not_shared` says why.
    """

    fingerprint: str
    family: str
    context_tokens: int
    vocabulary: int
    weights_bytes: int
    kv_bytes_per_token: int
    kv_pad_tokens: int
    window_tokens: int
    window_bytes_per_token: int
    fixed_bytes_per_row: int
    batches: bool
    why_not: str
    caches: str = "attention"
    kv_bits: int = 0
    reuse: Reuse = "none"
    shares_from: int = 0
    why_not_shared: str = ""

    def __post_init__(self) -> None:
        require(1 <= self.context_tokens <= CONTEXT_TOKENS_MAX, "context_tokens out of range")
        require(1 <= self.vocabulary <= VOCABULARY_MAX, "vocabulary out of range")
        require(self.kv_pad_tokens >= 1, "padding must be positive")
        require(0 <= self.window_tokens <= CONTEXT_TOKENS_MAX, "window_tokens out of range")
        require(0 <= self.kv_bits <= 8, "kv_bits out of range")
        require(0 <= self.shares_from <= CONTEXT_TOKENS_MAX, "shares_from out of range")
        costs = (
            self.weights_bytes,
            self.kv_bytes_per_token,
            self.window_bytes_per_token,
            self.fixed_bytes_per_row,
        )
        require(min(costs) >= 0, "bytes must not be negative")

    def row_bytes(self, tokens: int) -> int:
        """Return what a row of `tokens` takes, with room for the next one."""
        room = room_tokens(tokens, self.kv_pad_tokens)
        window = min(room, self.window_tokens) * self.window_bytes_per_token
        return room * self.kv_bytes_per_token + window + self.fixed_bytes_per_row

    def batch_bytes(self, lengths: Sequence[int]) -> int:
        """Return what rows of these lengths, in tokens, take together.

        Rows that share a padded cache take somewhat more while there is room for it; where there is none,
        the engine takes them apart. Where one row runs at a time nothing is beside it.
        """
        if not lengths:
            return 0
        if not self.batches:
            return self.row_bytes(max(lengths))
        return sum(map(self.row_bytes, lengths))
