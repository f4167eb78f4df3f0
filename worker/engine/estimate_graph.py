"""What a forward pass will take, read from its graph of operations instead of running it.

MLX builds a graph before it computes anything, and every array in it has its shape. `mx.export_function`
hands the graph out in the order in which it would run, so that memory can be followed on paper: an operation
takes its outputs, a view takes nothing, one may write into an input that nobody reads after it, and what
nobody reads any more is given back, some operations later.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models import gated_delta

from shared.limits import PLAN_OPERATIONS_MAX
from worker.engine.probes import pretend
from worker.engine.row_caches import parts_of, trim_windows
from worker.engine.working_set import Probe, WorkingSet
from worker.plan import CHUNK_TOKENS_MAX, CHUNK_TOKENS_MIN

# MLX hands so many operations over before the first of them has ended.
_AHEAD: Final = 10
# Passes of eight families on a CPU took once to twice what their graphs say. On Metal nothing was measured.
_FACTOR: Final = 2.0
_TOKENS: Final = (CHUNK_TOKENS_MIN, 256, CHUNK_TOKENS_MAX)
_NEAR: Final = 4096
_VIEWS: Final = frozenset(
    {
        *("AsStrided", "Broadcast", "ExpandDims", "Flatten", "Reshape", "Slice", "Split", "Squeeze"),
        *("StopGradient", "Transpose", "Unflatten", "View"),
    }
)
# Views that aren't in one piece, and those that need one piece to look at: else they copy.
_SCATTERING: Final = frozenset({"AsStrided", "Broadcast", "Slice", "Split", "Transpose"})
_ROWS_BY_ROWS: Final = frozenset({"Flatten", "Reshape", "View"})
# Operations that read beside writing, and so never write into an input.
_FRESH: Final = frozenset(
    {
        *(
            "Matmul",
            "QuantizedMatmul",
            "GatherMM",
            "GatherQMM",
            "Gather",
            "GatherAxis",
            "Concatenate",
            "Sort",
        ),
        *("ArgSort", "ArgPartition", "Partition", "Convolution", "Arange", "CustomKernel", "Reduce"),
        *("ScaledDotProductAttention", "Pad", "RandomBits", "Quantize", "Dequantize"),
    }
)
# With heads of these widths Metal attends without making scores.
_FUSED_WIDTHS: Final = frozenset({64, 80, 128})

# A state's kernel goes along keys by so many numbers; others are taken token by token there too.
_KERNEL_WIDTH: Final = 32

Node = dict[str, Any]
Named = tuple[str, tuple[int, ...], mx.Dtype]


@dataclass(slots=True)
class _Arrays:
    """The arrays that are alive: names stand for storage; storage has bytes, and those who still read it.

    Storage that is `kept` takes no bytes here.
    """

    readers: dict[str, int]
    kept: frozenset[str] = frozenset()
    storage: dict[str, str] = field(default_factory=dict)
    nbytes: dict[str, int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    scattered: set[str] = field(default_factory=set)
    late: deque[int] = field(default_factory=deque)
    held_bytes: int = 0
    peak_bytes: int = 0

    def make(self, name: str, nbytes: int) -> None:
        self.storage[name], self.nbytes[name], self.names[name] = name, nbytes, 1
        self.held_bytes += 0 if name in self.kept else nbytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def alias(self, name: str, source: str) -> None:
        """Let `name` stand for another one's storage; what came from outside stays outside."""
        kept = self.storage.get(source)
        if kept is not None:
            self.storage[name] = kept
            self.names[kept] += 1

    def is_last_use(self, name: str) -> bool:
        kept = self.storage.get(name)
        return kept is not None and self.readers.get(name, 0) == 1 and self.names[kept] == 1

    def turn(self) -> None:
        """Give back what was let go of so many operations ago."""
        self.late.append(0)
        if len(self.late) > _AHEAD:
            self.held_bytes -= self.late.popleft()

    def fits(self, name: str, nbytes: int) -> bool:
        return self.nbytes.get(self.storage.get(name, ""), -1) == nbytes

    def read(self, name: str) -> None:
        self.readers[name] -= 1
        self.drop_unread(name)

    def drop_unread(self, name: str) -> None:
        kept = self.storage.get(name)
        if kept is None or self.readers.get(name, 0) > 0:
            return
        del self.storage[name]
        self.names[kept] -= 1
        if not self.names[kept]:
            self.late[-1] += 0 if kept in self.kept else self.nbytes[kept]


def passing_bytes(nodes: Sequence[Node]) -> int:
    """Return the bytes that a graph's operations take at the most beside what is left at the end."""
    operations = [node for node in nodes if node["type"] == "primitive"]
    readers: dict[str, int] = {}
    for node in operations:
        for name, _, _ in node["inputs"]:
            readers[name] = readers.get(name, 0) + 1
    for node in nodes:
        if node["type"] == "outputs":
            for name, _, _ in node["outputs"]:
                readers[name] = readers.get(name, 0) + 1
    first = _Arrays(dict(readers))
    _follow_all(first, operations)
    # What is left at the end is the caches, which are made before a pass, whatever this order says.
    again = _Arrays(readers, frozenset(first.storage.values()))
    _follow_all(again, operations)
    return again.peak_bytes


def _follow_all(arrays: _Arrays, operations: list[Node]) -> None:
    arrays.turn()
    for node in operations:
        _follow(arrays, node)


def _follow(arrays: _Arrays, node: Node) -> None:
    inputs: list[Named] = node["inputs"]
    outputs: list[Named] = node["outputs"]
    if node["name"] not in _VIEWS:
        arrays.turn()
    for output in outputs if node["name"] != "Full" else ():
        # Arrays of one number are handed out as one, though caches that begin with it have one each.
        source = _source(arrays, node["name"], inputs, output)
        if source is None:
            arrays.make(output[0], _nbytes(output))
            if node["name"] == "Convolution":
                arrays.make(f"{output[0]} unfolded", _nbytes(output) * inputs[1][1][1])
                arrays.drop_unread(f"{output[0]} unfolded")
        else:
            arrays.alias(output[0], source)
    for name, _, _ in inputs:
        arrays.read(name)
    for name, _, _ in outputs:
        arrays.drop_unread(name)


def _source(arrays: _Arrays, operation: str, inputs: list[Named], output: Named) -> str | None:
    """Return the input whose storage an output shares, if any."""
    if operation in _VIEWS and inputs:
        source = inputs[0][0]
        if operation in _ROWS_BY_ROWS and source in arrays.scattered:
            return None
        if operation in _SCATTERING or source in arrays.scattered:
            arrays.scattered.add(output[0])
        return source
    if operation in _FRESH:
        return None
    fitting = (given[0] for given in inputs if arrays.fits(given[0], _nbytes(output)))
    return next((name for name in fitting if arrays.is_last_use(name)), None)


def _nbytes(named: Named) -> int:
    count = named[2].size
    for size in named[1]:
        count *= size
    return count


@dataclass(frozen=True, slots=True)
class Passes:
    """A model whose passes are looked at without running any. `new_caches` makes those of one row.

    `as_metal` attends as Metal would: where the model's heads allow it, without making scores.
    """

    model: Any
    new_caches: Callable[[int], list[Any]]
    as_metal: bool = False

    def working_set(self, context_tokens: int) -> WorkingSet:
        """Return what passes take, up to a context of so many tokens.

        A family whose code goes token by token has graphs that grow; of these no long ones are drawn.
        """
        tokens = tuple(sorted({min(each, context_tokens) for each in _TOKENS}))
        seen = nothing_behind = self._row(tokens, 0)
        far = self._row(tokens[: len(seen)], context_tokens - context_tokens // 8)
        if len(far) < 2:
            return WorkingSet.through(seen)
        seen = [*seen, *far]
        # Where nothing grows on the whole way, it doesn't on a part of it.
        if any(behind.nbytes > first.nbytes for first, behind in zip(nothing_behind, far, strict=False)):
            seen += self._row(tokens[: len(far)], min(_NEAR, context_tokens // 2))
        return WorkingSet.through(seen)

    def _row(self, tokens: tuple[int, ...], context: int) -> list[Probe]:
        row: list[Probe] = []
        for each in tokens:
            nodes = self.graph(each, context)
            if nodes is None:
                break
            row.append(Probe(each, context, _FACTOR * passing_bytes(nodes)))
            if len(row) > 1 and len(nodes) > PLAN_OPERATIONS_MAX:
                break
        return row

    def graph(self, tokens: int, context: int) -> list[Node] | None:
        """Return the graph of a pass behind a context; None where no context can be made up."""
        parameters = cast("list[tuple[str, mx.array]]", tree_flatten(self.model.parameters()))
        names, weights = [name for name, _ in parameters], [array for _, array in parameters]
        nodes: list[Node] = []
        possible = True

        def run(ids: mx.array, *given: mx.array) -> tuple[mx.array, ...]:
            nonlocal possible
            self.model.update(tree_unflatten(list(zip(names, given, strict=True))))
            caches = self.new_caches(context + tokens)
            if context:
                self.model(ids[:, :1], cache=caches)
                possible = pretend(caches, context)
            self.model(ids, cache=caches)
            trim_windows(caches)
            return tuple(_arrays_of(caches))

        try:
            with _stand_ins(as_metal=self.as_metal):
                mx.export_function(nodes.append, run, mx.zeros((1, tokens), dtype=mx.int32), *weights)
        finally:
            self.model.update(tree_unflatten(list(zip(names, weights, strict=True))))
        return nodes if possible else None


def _arrays_of(caches: list[Any]) -> Iterator[mx.array]:
    for cache in caches:
        for part in parts_of(cache):
            state = cast("list[tuple[str, Any]]", tree_flatten(part.state))
            yield from (each for _, each in state if isinstance(each, mx.array))


@contextmanager
def _stand_ins(*, as_metal: bool) -> Iterator[None]:
    """Put operations of the same shapes in the place of those whose graphs can't be had, while this lasts.

    MLX doesn't hand a copy out; and what is one operation on Metal is many elsewhere: attention, and a state
    that changes with every token.
    """
    plain, copy = mx.fast.scaled_dot_product_attention, mx.contiguous

    def attend(queries: mx.array, keys: mx.array, values: mx.array, **options: Any) -> mx.array:
        width = queries.shape[-1]
        if not as_metal or width != values.shape[-1] or width not in _FUSED_WIDTHS:
            return plain(queries, keys, values, **options)
        # As large as the answer, and made of all that it depends on.
        return queries + (keys[:, :1, :1, :1] + values[:, :1, :1, :1])

    recur = gated_delta.gated_delta_ops

    def in_one_kernel(*given: Any) -> tuple[mx.array, mx.array]:
        queries, keys, values, gates, betas, state = given[:6]
        if not as_metal or keys.shape[-1] % _KERNEL_WIDTH:
            return recur(*given)
        tied = queries[:, :, :1, :1] + keys[:, :, :1, :1] + betas[:, :, :1, None]
        answer = values + (tied + gates.reshape(*gates.shape[:2], -1)[:, :, :1, None]).astype(values.dtype)
        return answer, state + answer[:, -1, :1, :1, None].astype(state.dtype)

    mx.fast.scaled_dot_product_attention = attend  # type: ignore[assignment]  # its options go on as they are
    mx.contiguous = lambda array, *_, **__: array + 0
    gated_delta.gated_delta_ops = in_one_kernel  # type: ignore[assignment]  # likewise
    try:
        yield
    finally:
        mx.fast.scaled_dot_product_attention, mx.contiguous = plain, copy
        gated_delta.gated_delta_ops = recur
