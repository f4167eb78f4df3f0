"""A layer's keys and values of rows that prefill behind a beginning which they have in common.

The beginning stands elsewhere, once for all rows and for those that decode behind it. Here is what each row
has beyond it; models see a cache that attends by itself.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import mlx.core as mx

from worker.engine.attending import Attending, MaskWish
from worker.engine.joined_attention import Part, attend_own, attend_shared, join
from worker.engine.kinds import KeysValues, Planes

# For so many tokens of a row alone attention in one call is worth a copy of the beginning.
_FUSED_TOKENS: Final = 64


class PrefixedCache(Attending):
    """Rows, padded on the right to one length, behind `base_tokens` tokens; mlx-lm's interface of a cache.

    `base` returns the beginning's planes, run by run: each (1, heads, tokens, width), encoded as `kind` has
    them. It is asked anew for each chunk, so that its arrays may be moved in between. The rows' own planes,
    (rows, heads, slots, width), get room for `room` tokens at once.
    """

    start_position = 0

    def __init__(
        self, kind: KeysValues, base: Callable[[], Sequence[Planes]], base_tokens: int, rows: int, room: int
    ) -> None:
        assert kind.span is None, "what a window has seen depends on where its rows end"
        self.kind = kind
        self.base_tokens = base_tokens
        self.own_tokens = 0
        self.planes: Planes = []
        self._base = base
        self._rows = rows
        self._room = room

    @property
    def offset(self) -> int:
        """Return at which position the next token stands, in every row."""
        return self.base_tokens + self.own_tokens

    def put(self, planes: Planes, count: int | None = None) -> None:
        """Append encoded tokens, the first `count` or all, of each row or of one row for all of them."""
        count = _tokens(planes) if count is None else count
        end = self.own_tokens + count
        self._make_room(end)
        for own, plane in zip(self.planes, planes, strict=True):
            own[:, :, self.own_tokens : end] = plane[:, :, :count]
        self.own_tokens = end

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Append tokens, keys and values (rows, heads, tokens, width); return tokens of this cache."""
        self.put(self.kind.encode(keys, values))
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Any, Any]:
        return self, self

    def make_mask(self, _tokens: int, *, window_size: int | None = None, **_kwargs: Any) -> MaskWish:
        """Return what stands for the mask of the tokens that are written next: the causal one."""
        if window_size is not None:
            raise NotImplementedError("a layer with a window has no beginning in common with other rows")
        return MaskWish(None)

    def attend(
        self, queries: mx.array, scale: float, mask: MaskWish | None, sinks: mx.array | None
    ) -> mx.array:
        """Return attention's output for the tokens that were written last, (rows, heads, tokens, width).

        Without a mask each of them sees all others, as a model has it that asks for none.
        """
        if self._rows == 1 and mask is not None and queries.shape[2] >= _FUSED_TOKENS:
            return self._attend_fused(queries, scale, sinks)
        parts = [attend_shared(queries, *self.kind.decode(run), scale=scale) for run in self._base()]
        parts.append(self._attend_own(queries, scale, is_causal=mask is not None))
        return join(parts, queries.dtype, sinks)

    def _attend_fused(self, queries: mx.array, scale: float, sinks: mx.array | None) -> mx.array:
        """Attend in one call, with the beginning copied beside the row's own: of one layer at a time.

        That costs as much as reading it once more; the one call, for many tokens, saves far more.
        """
        own = self.kind.decode([plane[:, :, : self.own_tokens] for plane in self.planes])
        parts = [*(self.kind.decode(run) for run in self._base() if _tokens(run)), own]
        keys, values = (mx.concatenate(list(each), axis=2) for each in zip(*parts, strict=True))
        return mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=scale, mask="causal", sinks=sinks
        )

    def _attend_own(self, queries: mx.array, scale: float, *, is_causal: bool) -> Part:
        """Attend to what the rows have beyond the beginning; what was stored counts, also of this chunk."""
        end, tokens = self.own_tokens, queries.shape[2]
        keys, values = self.kind.decode([plane[:, :, :end] for plane in self.planes])
        mask = mx.arange(end) <= mx.arange(end - tokens, end)[:, None] if is_causal else None
        return attend_own(queries, keys, values, scale, mask)

    def _make_room(self, tokens: int) -> None:
        """Grow to so many tokens at least, by `room` at least."""
        there = _tokens(self.planes)
        if tokens <= there:
            return
        self.planes = self.kind.grown(self.planes, self._rows, max(self._room, tokens - there))

    @property
    def state(self) -> Planes:
        return self.planes

    @property
    def nbytes(self) -> int:
        """Return the bytes of what the rows have beyond the beginning."""
        return sum(plane.nbytes for plane in self.planes)

    def size(self) -> int:
        return self.offset

    def empty(self) -> bool:
        return not self.offset

    def is_trimmable(self) -> bool:
        return False

    def maybe_trim_front(self) -> None:
        """Nothing is to be cut: all tokens are kept."""


def _tokens(planes: Planes) -> int:
    return int(planes[0].shape[2]) if planes else 0
