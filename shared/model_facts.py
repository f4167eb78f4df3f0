"""What a model is and what its KV caches cost, as the worker measured it when it loaded the model."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.limits import CONTEXT_TOKENS_MAX, VOCABULARY_MAX, require


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's costs, in bytes of one row, all layers together.

    `kv_bytes_per_token` is for layers that keep every token; `window_bytes_per_token` for those that keep
    the last `window_tokens` only; `fixed_bytes_per_row` is state that doesn't grow (SSM, convolutions). The
    batch has places for a multiple of `kv_pad_rows` rows, each of a multiple of `kv_pad_tokens` tokens.
    `batches` False means that one row runs at a time, and `why_not` says why.
    """

    fingerprint: str
    family: str
    context_tokens: int
    vocabulary: int
    weights_bytes: int
    kv_bytes_per_token: int
    kv_pad_tokens: int
    kv_pad_rows: int
    window_tokens: int
    window_bytes_per_token: int
    fixed_bytes_per_row: int
    batches: bool
    why_not: str

    def __post_init__(self) -> None:
        require(1 <= self.context_tokens <= CONTEXT_TOKENS_MAX, "context_tokens out of range")
        require(1 <= self.vocabulary <= VOCABULARY_MAX, "vocabulary out of range")
        require(self.kv_pad_tokens >= 1 and self.kv_pad_rows >= 1, "padding must be positive")
        require(0 <= self.window_tokens <= CONTEXT_TOKENS_MAX, "window_tokens out of range")
        costs = (
            self.weights_bytes,
            self.kv_bytes_per_token,
            self.window_bytes_per_token,
            self.fixed_bytes_per_row,
        )
        require(min(costs) >= 0, "bytes must not be negative")

    def row_bytes(self, tokens: int) -> int:
        """Return what a row of `tokens` takes in a batch padded to just that."""
        padded = -(-(tokens + 1) // self.kv_pad_tokens) * self.kv_pad_tokens
        window = min(padded, self.window_tokens) * self.window_bytes_per_token
        return padded * self.kv_bytes_per_token + window + self.fixed_bytes_per_row

    def batch_bytes(self, lengths: Sequence[int]) -> int:
        """Return what rows of these lengths, in tokens, take side by side: all are padded to the longest.

        One row more is counted than the batch has places for: it is being prefilled or copied in. Where one
        row runs at a time it stays in the caches it was prefilled in, and nothing is beside it.
        """
        if not lengths:
            return 0
        if not self.batches:
            return self.row_bytes(max(lengths))
        places = -(-len(lengths) // self.kv_pad_rows) * self.kv_pad_rows + 1
        return places * self.row_bytes(max(lengths))
