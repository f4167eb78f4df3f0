"""The KV cache of a decode batch: rows side by side, each as long as it is, padded to the longest.

Rows are right-padded: a row's tokens start at 0 and its next one goes to its own length. So a row that joins
is copied once into a free place and one that leaves is overwritten by the last row; nobody else moves.
(mlx-lm's batch caches are left-padded and copy the whole batch at each join.)
"""

from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx

from worker.cache_kinds import TOKENS_STEP, padded

# Rows that prefill hold caches of their own. With steps of 1 or 2 the batch's places and those never exceed
# what ModelFacts.batch_bytes predicts; with larger steps they would.
ROWS_STEP: Final = 2


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A sequence's prefill: row `row` of mlx-lm's own caches, one a layer."""

    caches: list[Any]
    row: int


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer caches for a token: `heads` keys and values of these widths."""

    heads: int
    key_width: int
    value_width: int
    dtype: mx.Dtype


class PaddedLayer:
    """One layer's keys and values, (places, heads, tokens, width), behind mlx-lm's cache interface."""

    def __init__(self, batch: "PaddedBatch", shape: LayerShape) -> None:
        self._batch = batch
        self._shape = shape
        self.keys = mx.zeros((0, shape.heads, 0, shape.key_width), dtype=shape.dtype)
        self.values = mx.zeros((0, shape.heads, 0, shape.value_width), dtype=shape.dtype)

    @property
    def offset(self) -> mx.array:
        """Each row's length before this step, int32 (rows,): rotary embeddings take it as it is."""
        return self._batch.offsets

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write one token a row, keys and values (rows, heads, 1, width); return all that is visible."""
        rows, offsets, tokens = self._batch.row_indices, self._batch.offsets, self._batch.visible_tokens
        self.keys[rows, :, offsets] = keys[:, :, 0]
        self.values[rows, :, offsets] = values[:, :, 0]
        count = keys.shape[0]
        return self.keys[:count, :, :tokens], self.values[:count, :, :tokens]

    def make_mask(self, _tokens: int, *, window_size: int | None = None, **_kwargs: Any) -> mx.array:
        """Return bool (rows, 1, 1, tokens): a row sees its own tokens and none of the padding.

        A window is refused, so that a model that asks for one here is found out when it is loaded.
        """
        if window_size is not None:
            raise NotImplementedError("rows side by side have no window")
        return self._batch.mask

    def resize(self, places: int, tokens: int) -> None:
        """Give the layer room for `places` rows of `tokens`, and its old arrays back at once."""
        self.keys = _resized(self.keys, places, tokens)
        self.values = _resized(self.values, places, tokens)
        mx.eval(self.keys, self.values)

    def put(self, place: int, keys: mx.array, values: mx.array, length: int) -> None:
        """Copy a row in: keys and values (heads, at least length, width)."""
        self.keys[place, :, :length] = keys[:, :length]
        self.values[place, :, :length] = values[:, :length]

    def move(self, source: int, target: int, length: int) -> None:
        self.put(target, self.keys[source], self.values[source], length)


def _resized(old: mx.array, places: int, tokens: int) -> mx.array:
    new = mx.zeros((places, old.shape[1], tokens, old.shape[3]), dtype=old.dtype)
    rows, length = min(places, old.shape[0]), min(tokens, old.shape[2])
    if rows and length:
        new[:rows, :, :length] = old[:rows, :, :length]
    return new


class PaddedBatch:
    """All layers of a decode batch. `lengths` are the rows' tokens; place i belongs to row i.

    Room is given back lazily, one step of rows and tokens late, so that a batch whose size swings doesn't
    copy itself to and fro; over `bytes_max`, which may be changed, it is given back at once.
    """

    can_roll_back = True

    def __init__(self, shapes: list[LayerShape], bytes_max: int) -> None:
        self.layers = [PaddedLayer(self, shape) for shape in shapes]
        self.lengths: list[int] = []
        self.bytes_max = bytes_max
        self._places = 0
        self._tokens = 0
        self.nbytes = 0
        self.offsets = mx.zeros((0,), dtype=mx.int32)
        self.row_indices = mx.zeros((0,), dtype=mx.int32)
        self.mask = mx.zeros((0, 1, 1, 0), dtype=mx.bool_)
        self.visible_tokens = 0

    def join(self, prefilled: Prefilled, length: int) -> None:
        """Append a row by copying what was prefilled, which can be freed afterwards."""
        self.lengths.append(length)
        self._fit()
        if length:
            for layer, cache in zip(self.layers, prefilled.caches, strict=True):
                layer.put(
                    len(self.lengths) - 1, cache.keys[prefilled.row], cache.values[prefilled.row], length
                )

    def leave(self, row: int) -> None:
        """Take a row out; the last row takes its place."""
        last = len(self.lengths) - 1
        if row < last:
            self.lengths[row] = self.lengths[last]
            for layer in self.layers:
                layer.move(last, row, self.lengths[row])
        self.lengths.pop()

    def begin_step(self, elsewhere_bytes: int) -> None:
        """Set up what all layers share in the coming forward pass of one token a row.

        `elsewhere_bytes` are held by rows that prefill, and count against `bytes_max` too.
        """
        self._fit(elsewhere_bytes)
        self.offsets = mx.array(self.lengths, dtype=mx.int32)
        self.row_indices = mx.arange(len(self.lengths), dtype=mx.int32)
        self.visible_tokens = max(self.lengths) + 1
        self.mask = (mx.arange(self.visible_tokens)[None] <= self.offsets[:, None])[:, None, None, :]

    def end_step(self) -> None:
        self.lengths = [length + 1 for length in self.lengths]

    def roll_back(self) -> None:
        """Take the last step's token back from every row; its place is overwritten by the next one."""
        self.lengths = [length - 1 for length in self.lengths]

    def release(self) -> None:
        """Give all memory back; there must be no rows."""
        assert not self.lengths, "rows are left"
        self._resize(0, 0)

    def _fit(self, elsewhere_bytes: int = 0) -> None:
        """Make room for the rows and one more token each, or give back room that is no longer needed."""
        places = padded(len(self.lengths), ROWS_STEP)
        tokens = padded(max(self.lengths) + 1, TOKENS_STEP)
        too_small = places > self._places or tokens > self._tokens
        slack = self._places - places > ROWS_STEP or self._tokens - tokens > TOKENS_STEP
        exact = places == self._places and tokens == self._tokens
        if too_small or slack or (not exact and self.nbytes + elsewhere_bytes > self.bytes_max):
            self._resize(places, tokens)

    def _resize(self, places: int, tokens: int) -> None:
        for layer in self.layers:
            layer.resize(places, tokens)
        self._places, self._tokens = places, tokens
        self.nbytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)
