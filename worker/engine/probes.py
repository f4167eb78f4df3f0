"""Measures what forward passes of a prefill take beside the caches, within about a second.

A long context isn't prefilled for it: caches of the kinds that are known are filled with zeros, which a pass
takes as long to attend to, and as much memory, as to anything else.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, ChunkedKVCache, KVCache, RotatingKVCache

from worker.engine.quantised import QuantisedRowCache
from worker.engine.row_caches import parts_of, planes_of, trim_windows
from worker.engine.working_set import Probe, WorkingSet
from worker.plan import CHUNK_TOKENS_MAX, CHUNK_TOKENS_MIN

_TIME_MS: Final = 900.0
_TOKENS: Final = (CHUNK_TOKENS_MIN, 48, 128, 256, 768, CHUNK_TOKENS_MAX)
_CONTEXTS: Final = (1024, 4096)
# Of the memory that is free, what a probe may take with its caches.
_SHARE: Final = 0.5
# Of the time, what one probe behind no context may take: others follow.
_FIRST_SHARE: Final = 0.4
# How far what is foreseen from smaller probes may be off.
_FORESIGHT: Final = 2.0


@dataclass(frozen=True, slots=True)
class Speed:
    """What a forward pass takes: as long as a decode step, and something a token."""

    fixed_ms: float
    ms_per_token: float

    def ms(self, tokens: int) -> float:
        return self.fixed_ms + tokens * self.ms_per_token


@dataclass(frozen=True, slots=True)
class Room:
    """What bounds probes: the model's context, the bytes of its caches a token, and the bytes that are free.

    Where layers have windows, what attention takes grows with the context up to `window_tokens` of it.
    """

    context_tokens: int
    window_tokens: int
    kv_bytes_per_token: int
    free_bytes: int

    def holds(self, tokens: int, context: int, nbytes: float) -> bool:
        """Whether a pass of these tokens that takes so much beside its caches may be tried."""
        caches_bytes = (tokens + context) * self.kv_bytes_per_token
        return tokens + context <= self.context_tokens and nbytes + caches_bytes <= _SHARE * self.free_bytes

    @property
    def tokens(self) -> tuple[int, ...]:
        """The numbers of tokens to probe: up to the longest chunk, or all of a short context."""
        return tuple(sorted({min(each, self.context_tokens) for each in _TOKENS}))

    @property
    def contexts(self) -> tuple[int, ...]:
        """The contexts to probe, none first."""
        near, far = _CONTEXTS
        far = min(far, self.context_tokens // 2)
        near = self.window_tokens if 0 < self.window_tokens < far else min(near, far // 4)
        whole = self.context_tokens - self.context_tokens // 8
        return tuple(sorted({0, near, far, whole}))


class Prober:
    """Runs passes of a model and looks at MLX's peak. `new_caches` makes those of one row of so many tokens.

    The model has run before: what a first run compiles or allocates for good isn't measured.
    """

    def __init__(
        self, model: Any, new_caches: Callable[[int], list[Any]], on_progress: Callable[[], None]
    ) -> None:
        self._model = model
        self._new_caches = new_caches
        self._on_progress = on_progress
        self._seen: list[Probe] = []
        self._ms: dict[tuple[int, int], float] = {}

    def working_set(self, speed: Speed, room: Room, time_ms: float = _TIME_MS) -> WorkingSet:
        """Probe passes of more and more tokens, behind none, some and much context, while there is time.

        The least two of each of the first two contexts are probed in any case. What a probe will take is
        foreseen from those before it; one that would take too much memory isn't made, nor a larger one.
        """
        self._seen, self._ms = [], {}
        ends_at = time.perf_counter() + time_ms / 1000
        tokens = room.tokens
        for number, context in enumerate(room.contexts):
            tokens = tokens[: self._row(tokens, context, speed, room, ends_at, must=number < 2)]
            if len(tokens) < 2:
                break
        # What the largest of them took isn't kept for reuse.
        mx.clear_cache()
        return WorkingSet.through(self._seen)

    def _row(
        self,
        tokens: tuple[int, ...],
        context: int,
        speed: Speed,
        room: Room,
        ends_at: float,
        *,
        must: bool,
    ) -> int:
        """Probe behind one context; return how many probes count. One alone says nothing of a context."""
        row: list[Probe] = []
        for each in tokens:
            left_ms = 1000 * (ends_at - time.perf_counter())
            in_time = self._expected_ms(each, context, speed) <= left_ms * (1.0 if context else _FIRST_SHARE)
            if not (in_time or (must and len(row) < 2)) or not self._fits(each, context, room, row):
                break
            started = time.perf_counter()
            nbytes = self.measure(each, context)
            if nbytes is None:
                break
            self._ms[each, context] = 1000 * (time.perf_counter() - started)
            row.append(Probe(each, context, nbytes))
            self._on_progress()
        if len(row) > 1 or not context:
            self._seen += row
        return len(row)

    def _fits(self, tokens: int, context: int, room: Room, row: list[Probe]) -> bool:
        seen = self._seen + row
        if not seen:
            return True
        return room.holds(tokens, context, _FORESIGHT * WorkingSet.through(seen).nbytes(tokens, context))

    def _expected_ms(self, tokens: int, context: int, speed: Speed) -> float:
        """Return what a probe will take: behind no context what the last two say, in proportion at least.

        Behind one, what it took behind none, and so much more as the least one took more.
        """
        if context:
            least = min(tokens for tokens, _ in self._ms)
            before_ms, before = max((ms, behind) for (each, behind), ms in self._ms.items() if each == least)
            here_ms = self._ms.get((least, context), before_ms * context / max(before, context // 2))
            return self._ms[tokens, 0] * max(1.0, here_ms / self._ms[least, 0])
        match sorted(self._ms.items())[-2:]:
            case [((before, _), before_ms), ((last, _), last_ms)]:
                power = math.log(last_ms / before_ms) / math.log(last / before)
                return float(last_ms * (tokens / last) ** min(2.0, max(1.0, power)))
        return speed.ms(tokens)

    def measure(self, tokens: int, context: int) -> int | None:
        """Return the bytes that a pass takes beside the caches; None where no context can be made up."""
        caches = self._new_caches(context + tokens)
        if context and not self._pretend(caches, context):
            return None
        mx.reset_peak_memory()
        self.run(caches, tokens)
        return max(0, mx.get_peak_memory() - mx.get_active_memory())

    def _pretend(self, caches: list[Any], context: int) -> bool:
        """Let caches look as if they held so many tokens; False if one is of a kind that isn't known."""
        self.run(caches, 1)
        filled = pretend(caches, context)
        mx.eval([part.state for cache in caches for part in parts_of(cache)])
        return filled

    def run(self, caches: list[Any], tokens: int) -> None:
        """Let caches take some tokens more."""
        self._model(mx.array([[1 + place % 7 for place in range(tokens)]]), cache=caches)
        trim_windows(caches)
        mx.eval([cache.state for cache in caches])


def pretend(caches: list[Any], context: int) -> bool:
    """Let caches of one token look as if they held `context`; False if one is of a kind that isn't known.

    Nothing is computed for it yet.
    """
    filled = [_fill(part, context) for cache in caches for part in parts_of(cache)]
    return all(filled)


def _fill(part: Any, context: int) -> bool:
    """Let a cache that holds one token look as if it had taken `context` tokens; False if it can't be."""
    if isinstance(part, ArraysCache):
        return True
    is_window = type(part) is RotatingKVCache and part.keep == 0
    if not is_window and type(part) not in (KVCache, QuantisedRowCache, ChunkedKVCache):
        return False
    planes = planes_of(part)
    if planes and type(part) is ChunkedKVCache:
        kept = min(context, part.chunk_size)
        part.state = (*_zeros(planes, kept), context, part.chunk_size, context - kept)
    elif planes and is_window:
        kept = min(context, part.max_size)
        part.state = (*_zeros(planes, kept), context, part.keep, part.max_size, kept)
    elif planes:
        part.offset = context
    return True


def _zeros(planes: list[mx.array], tokens: int) -> list[mx.array]:
    shapes = [(plane.shape[0], plane.shape[1], tokens, plane.shape[3]) for plane in planes]
    return [mx.zeros(shape, dtype=plane.dtype) for shape, plane in zip(shapes, planes, strict=True)]
