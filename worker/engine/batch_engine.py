"""The seam to MLX: prefill chunks, decode steps, and nothing else of the worker touches an array.

A decode step is launched before the one before it is read, so the device doesn't wait for the host. What a
step needs from its predecessor, the tokens and what they add to a row's history, stays on the device. Prefill
is waited for: its time sizes the next chunk, and an error in it shows where it happens.
"""

import time
from collections import Counter, deque
from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import mlx.core as mx

from shared.messages import RowLogprobs
from shared.sampling import noise_key
from worker.engine.flatness import Flatness
from worker.engine.history import History, Ids
from worker.engine.model import LoadedModel
from worker.engine.noise import NoiseKey
from worker.engine.row_batch import RowBatch
from worker.engine.row_caches import Prefilled, arrays_in, trim_windows
from worker.engine.sampler import BatchSampler, Draw
from worker.engine.solo_row import SoloRow
from worker.engine.trial import Together, prefill_together
from worker.plan import UNBOUNDED, Chunk, similar_lengths
from worker.sequence import Sequence

_CLEAR_CACHE_TOKENS: Final = 2048


class RowCaches(Protocol):
    """The caches of the rows that decode, and these rows in the order in which a step takes them."""

    layers: list[Any]
    rows: tuple[Any, ...]
    bytes_max: int
    can_roll_back: bool

    def change(
        self, leaving: Collection[Sequence], joining: dict[Any, Prefilled], elsewhere_bytes: int
    ) -> None: ...
    def make_room(self, elsewhere_bytes: int) -> None: ...
    def begin_step(self, elsewhere_bytes: int) -> None: ...  # both may change the order of rows
    def end_step(self) -> None: ...
    def roll_back(self) -> None: ...
    def release(self) -> None: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def arrays(self) -> int: ...


@dataclass(slots=True)
class _Launched:
    """A step under way: what it was drawn from is kept only if a row may have to be drawn again."""

    rows: tuple[Sequence, ...]
    keys: list[NoiseKey]
    sampler: BatchSampler
    before: History
    draw: Draw
    logits: mx.array | None
    launched_at: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step that was read: a token a row, and the time it took the device, in milliseconds.

    `logprobs` are those of rows that ask for them; their `place` is the row's among `rows`.
    """

    rows: tuple[Sequence, ...]
    tokens: list[int]
    elapsed_ms: float
    logprobs: tuple[RowLogprobs, ...] = ()


class BatchEngine:
    """Runs one model on one thread. An exception leaves caches and sequences at odds: let the process end.

    `chunk_bound` says for how many tokens of a forward pass memory is set aside.
    """

    def __init__(self, loaded: LoadedModel, kv_bytes_max: int) -> None:
        self.chunk_bound = UNBOUNDED
        self._loaded = loaded
        layout = loaded.layout
        self._caches: RowCaches = SoloRow() if layout is None else RowBatch(layout, kv_bytes_max)
        self._prefills: dict[Sequence, Prefilled] = {}
        self._prefill_bytes_known: int | None = 0
        self._leaving: set[Sequence] = set()
        self._sampler = BatchSampler([], loaded.facts.vocabulary)
        self._sampled: tuple[tuple[Sequence, ...], tuple[int, ...]] = ((), ())
        self._flatness = Flatness()
        self._steps: deque[_Launched] = deque()
        self._newest: _Launched | None = None
        self._tokens_since_clear = 0
        self._read_at = 0.0

    @property
    def kv_bytes(self) -> int:
        """Bytes held by the caches of all rows, prefilling and decoding."""
        return self._caches.nbytes + self._prefill_bytes

    @property
    def _prefill_bytes(self) -> int:
        if self._prefill_bytes_known is None:
            self._prefill_bytes_known = sum(int(cache.nbytes) for cache in self._prefill_caches())
        return self._prefill_bytes_known

    def _prefill_caches(self) -> list[Any]:
        held = {id(cache): cache for prefilled in self._prefills.values() for cache in prefilled.parts}
        return list(held.values())

    @property
    def arrays(self) -> int:
        """How many arrays these caches hold, counted anew."""
        return self._caches.arrays + arrays_in(self._prefill_caches())

    def limit_bytes(self, bytes_max: int) -> None:
        """From the next step on waste memory for speed only within so many bytes."""
        self._caches.bytes_max = bytes_max

    # --- one turn -----------------------------------------------------------------------------------------

    def drop(self, sequences: Seq[Sequence]) -> None:
        """Free what these sequences hold, by the end of the turn."""
        for sequence in sequences:
            if self._prefills.pop(sequence, None) is not None:
                self._prefill_bytes_known = None
        present = set(self._caches.rows)
        self._leaving |= {sequence for sequence in sequences if sequence in present}

    def prefill(self, chunks: Seq[Chunk]) -> float:
        """Prefill these chunks; return the milliseconds it took. Whole short prompts share a forward pass."""
        started_at = time.perf_counter()
        self._make_room(chunks)
        whole = [chunk for chunk in chunks if self._may_share(chunk)]
        is_exact = self._loaded.together is Together.EQUAL
        groups = similar_lengths(whole, self.chunk_bound.together, exact=is_exact)
        shared = [group for group in groups if len(group) > 1]
        for group in shared:
            self._prefill_together(group)
        done = {chunk.sequence for group in shared for chunk in group}
        for chunk in chunks:
            if chunk.sequence not in done:
                self._prefill_alone(chunk)
        self._prefill_bytes_known = None
        self._tokens_since_clear += sum(chunk.tokens for chunk in chunks)
        return 1000 * (time.perf_counter() - started_at)

    def launch(self, rows: Seq[Sequence]) -> None:
        """Start a decode step for exactly these rows; those that are new join, the others leave."""
        if self._newest is not None and not self._caches.can_roll_back:
            self._settle(self._newest)
        wanted = set(rows)
        present = set(self._caches.rows)
        self._leaving |= {sequence for sequence in self._caches.rows if sequence not in wanted}
        self._change([sequence for sequence in rows if sequence not in present])
        previous = self._newest
        self._newest = self._forward(previous)
        self._steps.append(self._newest)

    def read(self) -> StepResult:
        """Wait for the oldest step under way."""
        step = self._steps.popleft()
        self._settle(step)
        tokens, logprobs = step.draw.read()
        return StepResult(step.rows, tokens, self._elapsed_ms(step.launched_at), logprobs)

    @property
    def under_way(self) -> int:
        """How many steps were launched and not read."""
        return len(self._steps)

    def tidy(self) -> None:
        """Give unused memory back: of rows that left, after much prefill, or when there are no rows."""
        if self._leaving and not self._steps:
            self._change([])
        if not self._caches.rows and not self._steps and self._newest is not None:
            self._caches.release()
            self._newest = None
            self._tokens_since_clear = _CLEAR_CACHE_TOKENS
        if self._tokens_since_clear >= _CLEAR_CACHE_TOKENS:
            mx.clear_cache()
            self._tokens_since_clear = 0

    # --- prefill ------------------------------------------------------------------------------------------

    def _make_room(self, chunks: Seq[Chunk]) -> None:
        """Let the batch give up what it wastes if the caches of prompts that begin wouldn't fit beside it."""
        begun = [chunk.sequence for chunk in chunks if chunk.sequence not in self._prefills]
        coming = sum(self._loaded.facts.row_bytes(len(sequence.ids) - 1) for sequence in begun)
        if coming and not self._steps:
            self._caches.make_room(self._prefill_bytes + coming)

    def _may_share(self, chunk: Chunk) -> bool:
        """Whether a chunk may be prefilled with others: a whole prompt, in which no window is to be cut."""
        window = self._loaded.facts.window_tokens
        is_short = not window or chunk.tokens <= window
        return self._loaded.together is not Together.NEVER and chunk.is_whole_prefill and is_short

    def _prefill_alone(self, chunk: Chunk) -> None:
        """Prefill the next piece of one prompt."""
        prefilled = self._prefilled(chunk.sequence)
        self._loaded.model(mx.array([chunk.ids]), cache=prefilled.caches)
        trim_windows(prefilled.caches)
        # One pass after the other: evaluated together, each would take its memory at the same time.
        mx.eval([cache.state for cache in prefilled.caches])
        prefilled.length += chunk.tokens

    def _prefill_together(self, chunks: Seq[Chunk]) -> None:
        """Prefill whole prompts as one batch, padded on the right: what is causal never sees the padding.

        A row is padded with a token of its own: what it may overflow with is nobody else's.
        """
        longest = max(chunk.tokens for chunk in chunks)
        caches = self._loaded.new_caches(longest)
        ids = [chunk.ids + chunk.ids[-1:] * (longest - chunk.tokens) for chunk in chunks]
        prefill_together(self._loaded.model, caches, ids, [chunk.tokens for chunk in chunks])
        mx.eval([cache.state for cache in caches])
        for row, chunk in enumerate(chunks):
            self._prefills[chunk.sequence] = Prefilled(caches, row, chunk.tokens, padded=True)

    def _prefilled(self, sequence: Sequence) -> Prefilled:
        if sequence not in self._prefills:
            self._prefills[sequence] = Prefilled(self._loaded.new_caches(len(sequence.ids) - 1), 0)
        return self._prefills[sequence]

    # --- membership ---------------------------------------------------------------------------------------

    def _change(self, newcomers: Seq[Sequence]) -> None:
        """Let newcomers into the batch, and those out that leave."""
        if not newcomers and not self._leaving:
            return
        joining: dict[Any, Prefilled] = {sequence: self._prefilled(sequence) for sequence in newcomers}
        for sequence in newcomers:
            del self._prefills[sequence]
        self._prefill_bytes_known = None
        users = Counter(id(prefilled.caches) for prefilled in self._prefills.values())
        for prefilled in joining.values():
            prefilled.is_last_use = not users[id(prefilled.caches)]
        self._caches.change(self._leaving, joining, self._prefill_bytes)
        self._leaving = set()

    def _inputs(self, rows: tuple[Sequence, ...], previous: _Launched | None) -> mx.array:
        """Return each row's input, int32 (rows,): the step before's token, or a new row's last id."""
        if previous is None:
            return mx.array([sequence.last_id for sequence in rows], dtype=mx.int32)
        if previous.rows == rows:
            return previous.draw.tokens
        places = {sequence: place for place, sequence in enumerate(previous.rows)}
        last_ids = mx.array([sequence.last_id for sequence in rows], dtype=mx.int32)
        source = mx.array([places.get(sequence, 0) for sequence in rows], dtype=mx.int32)
        is_new = mx.array([sequence not in places for sequence in rows])
        return mx.where(is_new, last_ids, previous.draw.tokens[source])

    def _history(self, rows: tuple[Sequence, ...], previous: _Launched | None) -> History:
        """Make the sampler be one for these rows; return what they have said so far."""
        levels = tuple(self._flatness.level(row, row.launched) for row in rows)
        if previous is not None and rows == previous.rows and self._sampled == (rows, levels):
            return previous.draw.history
        self._flatness.keep_only(rows)
        self._sampler = BatchSampler([row.sampling for row in rows], self._loaded.facts.vocabulary, levels)
        self._sampled = (rows, levels)
        places = {} if previous is None else {row: place for place, row in enumerate(previous.rows)}
        sources = [places.get(row, Ids(row.ids, row.emitted)) for row in rows]
        if previous is None:
            return self._sampler.start([Ids(row.ids, row.emitted) for row in rows])
        return self._sampler.carry(previous.draw.history, sources)

    # --- steps --------------------------------------------------------------------------------------------

    def _forward(self, previous: _Launched | None) -> _Launched:
        """Start one forward pass behind the step before it, and the draw of its tokens."""
        launched_at = time.perf_counter()
        self._caches.begin_step(self._prefill_bytes)
        rows = self._caches.rows
        inputs = self._inputs(rows, previous)
        before = self._history(rows, previous)
        sampler = self._sampler
        logits = self._loaded.model(inputs[:, None], cache=self._caches.layers)[:, -1]
        self._caches.end_step()
        keys = [_key(row) for row in rows] if sampler.needs_noise else []
        draw = sampler.draw(logits, keys, before)
        mx.async_eval(draw.arrays)
        kept = logits if draw.covered is not None else None
        return _Launched(rows, keys, sampler, before, draw, kept, launched_at)

    def _settle(self, step: _Launched) -> None:
        """Make sure of a step's tokens. If one has to be drawn again, the step after it is run again, too."""
        if step.draw.covered is None:
            return
        # Read as it is: one more operation on it would wait behind the step that was launched meanwhile.
        covered = cast("list[bool]", step.draw.covered.tolist())
        if all(covered):
            return
        assert step.logits is not None
        for row, is_covered in zip(step.rows, covered, strict=True):
            if not is_covered:
                self._flatness.missed(row, row.launched)
        step.draw = step.sampler.draw_again(step.logits, step.keys, step.draw, step.before)
        if self._steps and self._steps[-1] is not step:
            self._steps.pop()
            self._caches.roll_back()
            self._newest = self._forward(step)
            self._steps.append(self._newest)

    def _elapsed_ms(self, launched_at: float) -> float:
        """Return the time since the device was free for this: its launch, or the read before it."""
        now = time.perf_counter()
        elapsed_ms = 1000 * (now - max(launched_at, self._read_at))
        self._read_at = now
        return elapsed_ms


def _key(row: Sequence) -> NoiseKey:
    return noise_key(row.sampling.seed, row.sampling.choice, row.launched - 1)
