"""Quantised keys and values of a row that prefills; models see them as plain arrays.

What a later token attends to is what was stored, also within one chunk: so an answer doesn't depend on how
its prompt was cut into chunks, nor on a resume. mlx-lm's own quantised cache hands the packed numbers to the
model; here they are unpacked for one layer at a time, so that every family's attention works on them, that
with sinks too.
"""

import mlx.core as mx
from mlx_lm.models.base import quantized_scaled_dot_product_attention
from mlx_lm.models.cache import create_attention_mask

from worker.engine.kinds import KeysValues, Planes, group_size_for


class QuantisedRowCache:
    """Stands in for mlx-lm's KVCache, with the same interface. It grows by `step` tokens at least."""

    def __init__(self, bits: int) -> None:
        self.offset = 0
        self.step = 1
        self.planes: Planes = []
        self._bits = bits
        self._kind: KeysValues | None = None

    @property
    def kind_at_rest(self) -> KeysValues:
        """Return what kind of cache this is; only once something was written."""
        assert self._kind is not None, "nothing was written"
        return self._kind

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Store tokens, (rows, heads, tokens, width); return all that there are, unpacked."""
        if self._kind is None:
            self._kind = KeysValues(
                keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, bits=self._bits
            )
        kind, end = self._kind, self.offset + keys.shape[2]
        room = self.planes[0].shape[2] if self.planes else 0
        if end > room:
            self.planes = kind.grown(self.planes, keys.shape[0], max(self.step, end - room))
        for plane, new in zip(self.planes, kind.encode(keys, values), strict=True):
            plane[:, :, self.offset : end] = new
        self.offset = end
        return kind.decode([plane[:, :, :end] for plane in self.planes])

    def put(self, kind: KeysValues, planes: Planes) -> None:
        """Begin with tokens that are stored already, planes (1, heads, tokens, width)."""
        assert not self.planes, "something was written"
        tokens = planes[0].shape[2]
        self._kind = kind
        self.planes = kind.empty(1, max(self.step, tokens))
        for plane, stored in zip(self.planes, planes, strict=True):
            plane[:, :, :tokens] = stored
        self.offset = tokens

    def make_mask(
        self, tokens: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return the mask of the tokens that are written next, as mlx-lm's KVCache does."""
        mask: mx.array | str | None = create_attention_mask(tokens, self.offset, return_array, window_size)
        return mask

    @property
    def state(self) -> Planes:
        return self.planes

    @property
    def nbytes(self) -> int:
        return sum(plane.nbytes for plane in self.planes)

    def empty(self) -> bool:
        return not self.planes


def packed_attention(
    queries: mx.array, planes: Planes, kind: KeysValues, scale: float, mask: mx.array | None
) -> mx.array:
    """Attend to packed keys and values, mlx-lm's way: a fraction of the bytes is read, but no sinks."""
    keys, key_scales, key_biases, values, value_scales, value_biases = planes
    output: mx.array = quantized_scaled_dot_product_attention(
        queries,
        (keys, key_scales, key_biases),
        (values, value_scales, value_biases),
        scale=scale,
        mask=mask,
        group_size=group_size_for(kind.key_width),
        bits=kind.bits,
    )
    return output
