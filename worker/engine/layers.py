"""What a model sees as its caches while rows of several groups decode.

A model computes its layers for all rows at once and calls attention with what its cache returned. Here that
is a token of the cache, and attention is done group by group where the token arrives (`attend`); or, where a
model's code works on keys and values in between, its attention module is called once for each group with
that group's own rows and arrays (`split`). worker.engine.hooks puts one of the two in place.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from worker.engine.attending import Attending, MaskWish
from worker.engine.group import StepView
from worker.engine.joined_attention import Own, attend_behind
from worker.engine.kinds import KeysValues
from worker.engine.quantised import packed_attention
from worker.engine.shared_reading import SharedReading


class Steps(Protocol):
    """What a decode step is about: its groups, and each row's length before it, int32 (rows,).

    `reading` is what the first rows share with each other and don't have in their groups, if there is such.
    """

    views: list[StepView]
    offsets: mx.array
    reading: SharedReading | None


class Ways(Protocol):
    """Whether each group is one row, and whether attention reads quantised keys and values as they are."""

    @property
    def by_rows(self) -> bool: ...
    @property
    def packed(self) -> bool: ...


class GroupedCache(Attending):
    """One layer's keys and values of all rows, as all groups have them; mlx-lm's cache interface for a step.

    Where each group is one row (`by_rows`), offsets are plain numbers, which is all that some models take.
    """

    start_position = 0

    def __init__(self, steps: Steps, leaf: int, kind: KeysValues, ways: Ways) -> None:
        self.steps = steps
        self.leaf = leaf
        self.kind = kind
        self.by_rows = ways.by_rows
        self._packed = ways.packed and kind.can_attend_packed

    @property
    def offset(self) -> Any:
        """Each row's length before this step: rotary embeddings take it as it is."""
        if self.by_rows:
            return max(view.longest for view in self.steps.views)
        return self.steps.offsets

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Write one token a row, keys and values (rows, heads, 1, width); return tokens of this cache."""
        planes = self.kind.encode(keys, values)
        views = self.steps.views
        if len(views) == 1:
            views[0].write(self.leaf, self.kind, planes)
        else:
            for view in views:
                view.write(self.leaf, self.kind, [plane[view.first : view.last] for plane in planes])
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Any, Any]:
        return self, self

    def make_mask(self, _tokens: int, *, window_size: int | None = None, **_kwargs: Any) -> MaskWish:
        return MaskWish(window_size)

    def maybe_trim_front(self) -> None:
        """Nothing is to be cut: old tokens are overwritten."""

    def attend(
        self, queries: mx.array, scale: float, mask: MaskWish | None, sinks: mx.array | None
    ) -> mx.array:
        """Return attention's output, (rows, heads, 1, width), group by group."""
        window = mask.window if mask is not None else None
        views = self.steps.views
        if self.steps.reading is not None:
            return self._attend_behind(self.steps.reading, queries, scale, window, sinks)
        if len(views) == 1:
            return self._attend_one(views[0], queries, scale, window, sinks)
        outputs = [
            self._attend_one(view, queries[view.first : view.last], scale, window, sinks) for view in views
        ]
        return mx.concatenate(outputs, axis=0)

    def _attend_behind(
        self,
        reading: SharedReading,
        queries: mx.array,
        scale: float,
        window: int | None,
        sinks: mx.array | None,
    ) -> mx.array:
        """Return attention's output where the first rows have only a part of their tokens in their groups."""
        behind = [view for view in self.steps.views if view.last <= reading.rows]
        others = self.steps.views[len(behind) :]
        own = [
            Own(*self.kind.decode(view.read_padded(self.leaf, self.kind)), view.padded_mask(self.kind))
            for view in behind
        ]
        shared = reading.read(self.leaf, self.kind)
        outputs = [attend_behind(queries[: reading.rows], own, shared, scale, sinks)]
        outputs += [
            self._attend_one(view, queries[view.first : view.last], scale, window, sinks) for view in others
        ]
        return outputs[0] if not others else mx.concatenate(outputs, axis=0)

    def _attend_one(
        self, view: StepView, queries: mx.array, scale: float, window: int | None, sinks: mx.array | None
    ) -> mx.array:
        """Return attention's output of one group."""
        planes, mask = view.read(self.leaf, self.kind), view.mask(self.kind, window)
        if self._packed and sinks is None:
            return packed_attention(queries, planes, self.kind, scale, mask)
        keys, values = self.kind.decode(planes)
        return mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=scale, mask=mask, sinks=sinks
        )


class GroupView:
    """One layer's keys and values of one group, for an attention module that is called for it alone."""

    start_position = 0

    def __init__(self, cache: GroupedCache, view: StepView) -> None:
        self._cache = cache
        self._view = view

    @property
    def offset(self) -> Any:
        return self._view.lengths[0] if self._cache.by_rows else self._view.offsets

    @property
    def keys(self) -> mx.array:
        return self._planes[0]

    @keys.setter
    def keys(self, array: mx.array) -> None:
        self._planes[0] = array

    @property
    def values(self) -> mx.array:
        return self._planes[1]

    @values.setter
    def values(self, array: mx.array) -> None:
        self._planes[1] = array

    @property
    def _planes(self) -> list[mx.array]:
        return self._view.group.planes[self._cache.leaf]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        kind = self._cache.kind
        self._view.write(self._cache.leaf, kind, kind.encode(keys, values))
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        kind = self._cache.kind
        return kind.decode(self._view.read(self._cache.leaf, kind))

    def make_mask(self, _tokens: int, *, window_size: int | None = None, **_kwargs: Any) -> mx.array | None:
        return self._view.mask(self._cache.kind, window_size)

    def maybe_trim_front(self) -> None:
        """Nothing is to be cut: old tokens are overwritten."""


class LayerParts:
    """A layer's several caches, by their numbers, as mlx-lm's CacheList has them."""

    def __init__(self, parts: list[Any]) -> None:
        self.caches = parts

    def __getitem__(self, index: int) -> Any:
        return self.caches[index]


def attend(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return attention for all caches: groups take their own way, any other the original's."""

    def attention(queries: mx.array, keys: Any, values: Any, cache: Any, *rest: Any, **named: Any) -> Any:
        if not isinstance(keys, Attending):
            return original(queries, keys, values, cache, *rest, **named)
        given = dict(zip(("scale", "mask", "sinks"), rest, strict=False)) | named
        mask = given.get("mask")
        if keys is not values or not isinstance(mask, MaskWish | None):
            raise TypeError("attention is given other keys, values or masks than its cache returned")
        return keys.attend(queries, given["scale"], mask, given.get("sinks"))

    return attention


def split(
    original: Callable[..., Any], names: Sequence[str], arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Call an attention module once for each group, with the group's rows of everything; join the outputs.

    `names` are those of the positional arguments.
    """
    given = dict(zip(names, arguments, strict=False)) | named
    cache = next(filter(None, map(_grouped_in, given.values())), None)
    if cache is None:
        return original(*arguments, **named)
    outputs = [original(**_cut(given, cache, view)) for view in cache.steps.views]
    if isinstance(outputs[0], tuple):
        return tuple(mx.concatenate(list(each), axis=0) for each in zip(*outputs, strict=True))
    return mx.concatenate(outputs, axis=0)


def _grouped_in(argument: Any) -> GroupedCache | None:
    if isinstance(argument, LayerParts):
        return next((part for part in argument.caches if isinstance(part, GroupedCache)), None)
    return argument if isinstance(argument, GroupedCache) else None


def _cut(given: dict[str, Any], cache: GroupedCache, view: StepView) -> dict[str, Any]:
    """Return one group's rows of an attention module's arguments.

    A mask that a model made itself is for caches as mlx-lm has them, and ours takes its place.
    """
    cut = {name: _cut_one(argument, cache, view) for name, argument in given.items()}
    if isinstance(given.get("mask"), mx.array):
        cut["mask"] = view.mask(cache.kind, None)
    return cut


def _cut_one(argument: Any, cache: GroupedCache, view: StepView) -> Any:
    if isinstance(argument, GroupedCache):
        return GroupView(argument, view)
    if isinstance(argument, LayerParts):
        return LayerParts([_cut_one(part, cache, view) for part in argument.caches])
    if isinstance(argument, ArraysCache):
        raise NotImplementedError("state inside an attention module isn't split")
    if isinstance(argument, MaskWish):
        return view.mask(cache.kind, argument.window)
    if isinstance(argument, mx.array) and _has_rows(argument, cache.steps):
        return argument[view.first : view.last]
    return argument


def _has_rows(array: mx.array, steps: Steps) -> bool:
    """Whether an array has a row of the batch in each of its own: hidden states do, and the offsets."""
    return array is steps.offsets or (array.ndim >= 3 and array.shape[:2] == (steps.views[-1].last, 1))
