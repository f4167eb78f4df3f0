"""Attention over several parts of what a row sees, each done by itself and then joined.

A softmax over all tokens is the softmaxes over some of them each, weighed by the sums of their exponentials.
So tokens that many rows have in common are attended to once for all of these rows, and each row's own apart.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import mlx.core as mx

# What float32 scores may take at one time. With the softmax over them, and with the scores as a product of
# coarse numbers gave them, it was measured to be a little over twice this. On a CPU more is slower: arrays of
# 32 MiB are mapped anew each time.
SCORES_BYTES: Final = 32 << 20
_SCORE_BYTES: Final = mx.float32.size
_NOTHING: Final = float("-inf")
_LOG2_E: Final = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class Part:
    """Attention of some rows' queries to some of the tokens that they see; both arrays are float32.

    `output` is (rows, heads, tokens, width): the softmax over these tokens alone, times their values.
    `weight` is (rows, heads, tokens, 1): the logarithm of the sum of their scores' exponentials. Where a
    query sees none of them the output is 0 and the weight minus infinity.
    """

    output: mx.array
    weight: mx.array


def attend_own(
    queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array | None
) -> Part:
    """Attend to tokens of which each row has its own.

    Queries are (rows, heads, tokens, key width); keys and values (rows, kv_heads, seen, width), where
    kv_heads divides heads. A mask is bool and is broadcast to (rows, 1, tokens, seen): True is seen; None
    sees all. Where scores would take more than SCORES_BYTES, they are cut along rows and tokens, and nearly
    all is computed before this returns.
    """
    rows, heads, tokens, _ = queries.shape
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    token_bytes = rows * heads * keys.shape[2] * _SCORE_BYTES
    if rows > 1 and token_bytes > SCORES_BYTES:
        return _one_after_the_other(
            (
                attend_own(queries[cut], keys[cut], values[cut], scale, _rows_of(mask, cut))
                for cut in _cuts(rows, token_bytes // rows)
            ),
            axis=0,
        )
    return _one_after_the_other(
        (
            _attend(queries[:, :, cut], keys, values, scale, _tokens_of(mask, cut))
            for cut in _cuts(tokens, token_bytes)
        ),
        axis=2,
    )


@dataclass(frozen=True, slots=True)
class Own:
    """Keys and values of some rows' own tokens, (rows, kv_heads, seen, width), and their mask."""

    keys: mx.array
    values: mx.array
    mask: mx.array | None


@dataclass(frozen=True, slots=True)
class Shared:
    """Keys and values that rows have in common, (1, kv_heads, seen, width).

    `rows`, int32, are these rows' places among all, and `places` each of all rows' place among them, or -1;
    both are None where it is all rows.
    """

    keys: mx.array
    values: mx.array
    rows: mx.array | None
    places: mx.array | None


# The fields of Own and Shared: what is traced takes tuples.
_OwnArrays = tuple[mx.array, mx.array, mx.array | None]
_SharedArrays = tuple[mx.array, mx.array, mx.array | None, mx.array | None]


def attend_behind(
    queries: mx.array, own: Sequence[Own], shared: Sequence[Shared], scale: float, sinks: mx.array | None
) -> mx.array:
    """Return attention's output for rows that have some tokens of their own and some in common.

    Queries are (rows, heads, 1, key width); `own` has all of these rows, some after the others. Unless scores
    take more than is computed at once, the graph is traced once and used again in every layer: building it
    anew would take most of a step's time.
    """
    rows, heads = queries.shape[:2]
    most = max(*(each.keys.shape[2] for each in own), *(each.keys.shape[2] for each in shared))
    parts = [(each.keys, each.values, each.mask) for each in own]
    common = [(each.keys, each.values, each.rows, each.places) for each in shared]
    is_small = rows * heads * most * _SCORE_BYTES <= SCORES_BYTES
    is_plain = len(own) == 1 and sinks is None and all(each.rows is None for each in shared)
    if is_small and is_plain:
        runs = [(each.keys, each.values) for each in shared]
        output: mx.array = _attend_at_once(queries, parts[0], runs, scale)
        return output
    attend = _attend_behind_traced if is_small else _attend_behind
    return attend(queries, parts, common, scale, sinks)


@mx.compile
def _attend_behind_traced(
    queries: mx.array,
    own: list[_OwnArrays],
    shared: list[_SharedArrays],
    scale: float,
    sinks: mx.array | None,
) -> mx.array:
    return _attend_behind(queries, own, shared, scale, sinks)


def _attend_behind(
    queries: mx.array,
    own: list[_OwnArrays],
    shared: list[_SharedArrays],
    scale: float,
    sinks: mx.array | None,
) -> mx.array:
    parts, first = [], 0
    for keys, values, mask in own:
        last = first + keys.shape[0]
        parts.append(attend_own(queries[first:last], keys, values, scale, mask))
        first = last
    together = [stack(parts)]
    for keys, values, rows, places in shared:
        part = attend_shared(queries if rows is None else queries[rows], keys, values, scale)
        together.append(part if places is None else spread(part, places))
    return join(together, queries.dtype, sinks)


@mx.compile
def _attend_at_once(
    queries: mx.array,
    own: _OwnArrays,
    shared: list[tuple[mx.array, mx.array]],
    scale: float,
) -> mx.array:
    """Attend as attend_behind does where all rows have everything in common that any of them has.

    Then scores can stand side by side and one softmax does for all: it is the same join with fewer steps.
    """
    keys, values, mask = own
    rows, heads, _, width = queries.shape
    kv_heads = keys.shape[1]
    grouped = (queries * scale).reshape(rows, kv_heads, -1, width)
    own_scores = grouped @ keys.swapaxes(-1, -2)
    if mask is not None:
        own_scores = mx.where(mask, own_scores, mx.array(mx.finfo(own_scores.dtype).min, own_scores.dtype))
    by_head = grouped.swapaxes(0, 1).reshape(1, kv_heads, -1, width)
    scores = [by_head @ run.swapaxes(-1, -2) for run, _ in shared]
    scores.append(own_scores.swapaxes(0, 1).reshape(1, kv_heads, by_head.shape[2], -1))
    exponentials, _ = _exponentials(mx.concatenate(scores, axis=-1))
    total = exponentials.sum(axis=-1, keepdims=True)
    shares = (exponentials / total).astype(values.dtype)
    output, first = None, 0
    for _, run in shared:
        last = first + run.shape[2]
        part = shares[..., first:last] @ run
        output = part if output is None else output + part
        first = last
    own_shares = shares[..., first:].reshape(kv_heads, rows, -1, keys.shape[2]).swapaxes(0, 1)
    own_output = own_shares @ values
    assert output is not None, "rows have something in common"
    together = output.reshape(kv_heads, rows, -1, values.shape[3]).swapaxes(0, 1) + own_output
    return together.reshape(rows, heads, 1, -1)


def attend_shared(queries: mx.array, keys: mx.array, values: mx.array, scale: float) -> Part:
    """Attend to tokens that all rows have in common, and that every query sees.

    Queries are (rows, heads, tokens, key width); keys and values (1, kv_heads, seen, width). Each of them is
    read once for all rows: all queries of a head of keys are one row's.
    """
    rows, heads, tokens, width = queries.shape
    kv_heads = keys.shape[1]
    by_row = queries.reshape(rows, kv_heads, -1, width)
    part = attend_own(by_row.swapaxes(0, 1).reshape(1, kv_heads, -1, width), keys, values, scale, None)

    def to_rows(array: mx.array) -> mx.array:
        by_head = array.reshape(kv_heads, rows, -1, array.shape[-1])
        return by_head.swapaxes(0, 1).reshape(rows, heads, tokens, -1)

    return Part(to_rows(part.output), to_rows(part.weight))


def join(parts: Sequence[Part], dtype: mx.Dtype, sinks: mx.array | None = None) -> mx.array:
    """Return attention to all parts' tokens, (rows, heads, tokens, width).

    Sinks, (heads,), are scores of which each head has one more, that of a token whose value is 0.
    """
    if len(parts) == 1 and sinks is None:
        return parts[0].output.astype(dtype)
    weights = [part.weight for part in parts]
    if sinks is not None:
        weights.append(mx.broadcast_to(sinks.astype(mx.float32)[:, None, None], weights[0].shape))
    # Kept finite: who sees nothing at all gets 0, and not what minus infinity less itself would be.
    finite = mx.maximum(mx.concatenate(weights, axis=-1), mx.finfo(mx.float32).min)
    shares = mx.softmax(finite, axis=-1)
    output = parts[0].output * shares[..., :1]
    for place, part in enumerate(parts[1:], start=1):
        output = output + part.output * shares[..., place : place + 1]
    return output.astype(dtype)


def stack(parts: Sequence[Part]) -> Part:
    """Put some rows' part behind others', as one part of all of these rows."""
    return _concatenated(parts, axis=0)


def spread(part: Part, places: mx.array) -> Part:
    """Lay some rows' part out over all rows.

    `places`, int32 (all rows,), says which row of the part each is; -1 is none of them, and sees nothing.
    """
    is_there, places = (places >= 0)[:, None, None, None], mx.maximum(places, 0)
    # An output is cleared as well: another row's might be no number, and 0 times that is none either.
    return Part(
        mx.where(is_there, part.output[places], 0.0), mx.where(is_there, part.weight[places], _NOTHING)
    )


def _attend(queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array | None) -> Part:
    """Attend as attend_own does, all at once.

    The queries of the heads that have their keys in common are one product, so that no key is read twice.
    """
    rows, heads, tokens, width = queries.shape
    kv_heads = keys.shape[1]
    grouped = (queries * scale).reshape(rows, kv_heads, -1, width)
    scores = grouped @ keys.swapaxes(-1, -2)
    if mask is not None:
        by_head = scores.reshape(rows, kv_heads, -1, tokens, keys.shape[2])
        unseen = mx.array(mx.finfo(scores.dtype).min, scores.dtype)
        scores = mx.where(mask[:, :, None], by_head, unseen).reshape(scores.shape)
    exponentials, most = _exponentials(scores)
    total = exponentials.sum(axis=-1, keepdims=True)
    shares = (exponentials / total).astype(values.dtype)
    output = (shares @ values).astype(mx.float32).reshape(rows, heads, tokens, -1)
    weight = (most + mx.log(total)).reshape(rows, heads, tokens, 1)
    if mask is not None:
        sees = mask.any(axis=-1, keepdims=True)
        output, weight = mx.where(sees, output, 0.0), mx.where(sees, weight, _NOTHING)
    return Part(output, weight)


def _exponentials(scores: mx.array) -> tuple[mx.array, mx.array]:
    """Return exponentials of scores less the largest of each row, and that: float32, (…, seen) and (…, 1)."""
    scores = scores.astype(mx.float32)
    most = scores.max(axis=-1, keepdims=True)
    less = scores - most
    # On a CPU they would be most of the time, and MLX takes powers of two in less than half of it.
    is_cpu = mx.default_device().type == mx.cpu
    return (mx.power(2.0, less * _LOG2_E) if is_cpu else mx.exp(less)), most


def _cuts(count: int, bytes_each: int) -> list[slice]:
    """Cut queries into tiles of which two take no more than SCORES_BYTES, where they are of more than one."""
    if count * bytes_each <= SCORES_BYTES:
        return [slice(0, count)]
    step = max(1, SCORES_BYTES // 2 // bytes_each)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _one_after_the_other(tiles: Iterator[Part], axis: int) -> Part:
    """Join tiles along an axis. One is begun while the one before it is under way, and no further one.

    Left to be evaluated together, all of them would take their memory at the same time.
    """
    done = [next(tiles)]
    for tile in tiles:
        mx.async_eval(done[-1].output, done[-1].weight)
        if len(done) > 1:
            mx.eval(done[-2].output, done[-2].weight)
        done.append(tile)
    return _concatenated(done, axis)


def _concatenated(parts: Sequence[Part], axis: int) -> Part:
    if len(parts) == 1:
        return parts[0]
    return Part(
        mx.concatenate([part.output for part in parts], axis=axis),
        mx.concatenate([part.weight for part in parts], axis=axis),
    )


def _rows_of(mask: mx.array | None, cut: slice) -> mx.array | None:
    return mask if mask is None or mask.shape[0] == 1 else mask[cut]


def _tokens_of(mask: mx.array | None, cut: slice) -> mx.array | None:
    return mask if mask is None or mask.shape[2] == 1 else mask[:, :, cut]
