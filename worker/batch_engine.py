"""The seam to MLX: prefill chunks, decode steps, and nothing else of the worker touches an array.

A decode step is launched before the one before it is read, so the device doesn't wait for the host. What a
step needs from its predecessor, the tokens, stays on the device. Prefill is waited for: its time sizes the
next chunk, and an error in it shows where it happens.
"""

import time
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import mlx.core as mx

from shared.sampling import noise_key
from worker.cache_kinds import arrays_in, trim_windows
from worker.model import LoadedModel
from worker.padded import Prefilled
from worker.plan import Chunk, similar_lengths
from worker.sampler import BatchSampler, Draw, NoiseKey
from worker.sequence import Sequence

_CLEAR_CACHE_TOKENS: Final = 2048


class RowCaches(Protocol):
    """The caches of the rows that decode. Rows are appended, and the last one fills a gap."""

    layers: list[Any]
    lengths: list[int]
    can_roll_back: bool
    bytes_max: int

    def join(self, prefilled: Prefilled, length: int) -> None: ...
    def leave(self, row: int) -> None: ...
    def begin_step(self, elsewhere_bytes: int) -> None: ...
    def end_step(self) -> None: ...
    def roll_back(self) -> None: ...
    def release(self) -> None: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(slots=True)
class _Launched:
    """A step under way. `logits` is kept only if a row may have to be drawn again."""

    rows: tuple[Sequence, ...]
    keys: list[NoiseKey]
    sampler: BatchSampler
    draw: Draw
    logits: mx.array | None
    launched_at: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step that was read: a token a row, and the time it took the device, in milliseconds."""

    rows: tuple[Sequence, ...]
    tokens: list[int]
    elapsed_ms: float


class BatchEngine:
    """Runs one model on one thread. An exception leaves caches and sequences at odds: let the process end."""

    def __init__(self, loaded: LoadedModel, caches: RowCaches) -> None:
        self._loaded = loaded
        self._caches = caches
        self._prefills: dict[Sequence, Prefilled] = {}
        self._prefill_bytes_known: int | None = 0
        self._rows: list[Sequence] = []
        self._sampler: BatchSampler | None = None
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
            caches = {id(cache): cache for held in self._prefills.values() for cache in held.caches}
            self._prefill_bytes_known = sum(int(cache.nbytes) for cache in caches.values())
        return self._prefill_bytes_known

    @property
    def arrays(self) -> int:
        """How many arrays these caches hold, counted anew."""
        held = {id(cache): cache for prefill in self._prefills.values() for cache in prefill.caches}
        return arrays_in([*self._caches.layers, *held.values()])

    def limit_bytes(self, bytes_max: int) -> None:
        """Keep room for later only within so many bytes, from the next step on."""
        self._caches.bytes_max = bytes_max

    # --- one turn -----------------------------------------------------------------------------------------

    def drop(self, sequences: Seq[Sequence]) -> None:
        """Free what these sequences hold."""
        for sequence in sequences:
            if self._prefills.pop(sequence, None) is not None:
                self._prefill_bytes_known = None
            if sequence in self._rows:
                self._leave(sequence)

    def prefill(self, chunks: Seq[Chunk]) -> float:
        """Prefill these chunks; return the milliseconds it took. Whole short prompts share a forward pass."""
        started_at = time.perf_counter()
        self._prefill_bytes_known = None
        whole = [chunk for chunk in chunks if self._loaded.facts.batches and chunk.is_whole_prefill]
        for together in similar_lengths(whole):
            self._prefill_together(together)
        for chunk in chunks:
            if chunk not in whole:
                self._prefill_alone(chunk)
        here = {id(held): held for held in (self._prefills[chunk.sequence].caches for chunk in chunks)}
        mx.eval([cache.state for caches in here.values() for cache in caches])
        self._tokens_since_clear += sum(chunk.tokens for chunk in chunks)
        return 1000 * (time.perf_counter() - started_at)

    def launch(self, rows: Seq[Sequence]) -> None:
        """Start a decode step for exactly these rows; those that are new join, the others leave."""
        if not self._caches.can_roll_back:
            self._settle_newest()
        inputs = self._inputs_after(rows)
        self._newest = self._forward(tuple(self._rows), inputs)
        self._steps.append(self._newest)

    def read(self) -> StepResult:
        """Wait for the oldest step under way."""
        step = self._steps.popleft()
        tokens = self._tokens_of(step)
        return StepResult(step.rows, tokens, self._elapsed_ms(step.launched_at))

    @property
    def under_way(self) -> int:
        """How many steps were launched and not read."""
        return len(self._steps)

    def tidy(self) -> None:
        """Give unused memory back: after much prefill, or when there are no rows left."""
        if not self._rows and not self._steps and self._caches.nbytes:
            self._caches.release()
            self._newest = None
            self._tokens_since_clear = _CLEAR_CACHE_TOKENS
        if self._tokens_since_clear >= _CLEAR_CACHE_TOKENS:
            mx.clear_cache()
            self._tokens_since_clear = 0

    # --- membership ---------------------------------------------------------------------------------------

    def _prefill_alone(self, chunk: Chunk) -> None:
        """Prefill the next piece of one prompt."""
        prefilled = self._prefilled(chunk.sequence)
        self._loaded.model(mx.array([chunk.ids]), cache=prefilled.caches)
        trim_windows(prefilled.caches)

    def _prefill_together(self, chunks: Seq[Chunk]) -> None:
        """Prefill whole prompts as one batch, padded on the right: what is causal never sees the padding."""
        longest = max(chunk.tokens for chunk in chunks)
        caches = self._loaded.new_caches(longest)
        ids = [chunk.ids + (0,) * (longest - chunk.tokens) for chunk in chunks]
        self._loaded.model(mx.array(ids), cache=caches)
        for row, chunk in enumerate(chunks):
            self._prefills[chunk.sequence] = Prefilled(caches, row)

    def _prefilled(self, sequence: Sequence) -> Prefilled:
        if sequence not in self._prefills:
            self._prefills[sequence] = Prefilled(self._loaded.new_caches(len(sequence.ids) - 1), 0)
        return self._prefills[sequence]

    def _leave(self, sequence: Sequence) -> None:
        row = self._rows.index(sequence)
        self._caches.leave(row)
        self._rows[row] = self._rows[-1]
        self._rows.pop()
        self._sampler = None

    def _join(self, sequence: Sequence) -> None:
        self._caches.join(self._prefilled(sequence), sequence.prefilled)
        self._rows.append(sequence)
        del self._prefills[sequence]
        self._prefill_bytes_known = None
        self._sampler = None

    def _inputs_after(self, rows: Seq[Sequence]) -> mx.array:
        """Change the membership to `rows`; return each row's input token, int32 (rows,)."""
        wanted = set(rows)
        for sequence in [row for row in self._rows if row not in wanted]:
            self._leave(sequence)
        present = set(self._rows)
        for sequence in rows:
            if sequence not in present:
                self._join(sequence)
        previous = self._newest
        if previous is not None and previous.rows == tuple(self._rows):
            return previous.draw.tokens
        return self._gather(previous)

    def _gather(self, previous: _Launched | None) -> mx.array:
        """Take each row's input from the step before, or, where it is new, from the end of its prompt."""
        prompt_ends = mx.array([sequence.last_id for sequence in self._rows], dtype=mx.int32)
        if previous is None:
            return prompt_ends
        places = {sequence: place for place, sequence in enumerate(previous.rows)}
        source = mx.array([places.get(sequence, 0) for sequence in self._rows], dtype=mx.int32)
        is_new = mx.array([sequence not in places for sequence in self._rows])
        return mx.where(is_new, prompt_ends, previous.draw.tokens[source])

    # --- steps --------------------------------------------------------------------------------------------

    def _forward(self, rows: tuple[Sequence, ...], inputs: mx.array) -> _Launched:
        """Start one forward pass and the draw of its tokens; inputs int32 (rows,)."""
        launched_at = time.perf_counter()
        if self._sampler is None:
            self._sampler = BatchSampler([row.sampling for row in rows], self._loaded.facts.vocabulary)
        sampler = self._sampler
        self._caches.begin_step(self._prefill_bytes)
        logits = self._loaded.model(inputs[:, None], cache=self._caches.layers)[:, -1]
        self._caches.end_step()
        keys = [_key(row) if sampler.needs_noise else (0, 0) for row in rows]
        draw = sampler.draw(logits, keys)
        mx.async_eval([draw.tokens] if draw.covered is None else [draw.tokens, draw.covered])
        kept = logits if draw.covered is not None else None
        return _Launched(rows, keys, sampler, draw, kept, launched_at)

    def _tokens_of(self, step: _Launched) -> list[int]:
        """Wait for a step's tokens. If one has to be drawn again, the step after it is run again, too."""
        if self._is_settled(step):
            return _to_list(step.draw.tokens)
        self._settle(step)
        if self._steps:
            ahead = self._steps.pop()
            self._caches.roll_back()
            self._newest = self._forward(ahead.rows, self._gather(step))
            self._steps.append(self._newest)
        return _to_list(step.draw.tokens)

    def _is_settled(self, step: _Launched) -> bool:
        return step.draw.covered is None or bool(step.draw.covered.all().item())

    def _settle(self, step: _Launched) -> None:
        assert step.logits is not None
        step.draw = Draw(step.sampler.redraw(step.logits, step.keys, step.draw), None)

    def _settle_newest(self) -> None:
        """Make sure of the last step's tokens before the next: state that can't be rolled back needs it."""
        if self._newest is not None and not self._is_settled(self._newest):
            self._settle(self._newest)

    def _elapsed_ms(self, launched_at: float) -> float:
        """Return the time since the device was free for this: its launch, or the read before it."""
        now = time.perf_counter()
        elapsed_ms = 1000 * (now - max(launched_at, self._read_at))
        self._read_at = now
        return elapsed_ms


def _key(row: Sequence) -> NoiseKey:
    return noise_key(row.sampling.seed, row.sampling.choice, row.launched - 1)


def _to_list(tokens: mx.array) -> list[int]:
    return cast("list[int]", tokens.tolist())
