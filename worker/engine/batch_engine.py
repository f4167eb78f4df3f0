"""The seam to MLX: prefill chunks, decode steps, and nothing else of the worker touches an array.

A decode step is launched before the one before it is read, so the device doesn't wait for the host. What a
step needs from its predecessor, the tokens and what they add to a row's history, stays on the device. Prefill
is waited for: its time sizes the next chunk, and an error in it shows where it happens.

A prefill that ends a prompt brings the logits of the answer's next token, which is drawn at once.

Only what a grammar allows next is found out by the host. Where a row of the step before has one, the forward
pass alone is launched; the draw follows once that step was read, while the device is busy with the pass.
"""

import time
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final, cast

import mlx.core as mx

from shared.messages import RowLogprobs
from shared.readings import PrefixReading
from shared.sampling import noise_key
from worker.engine.beginnings import Beginnings
from worker.engine.flatness import Flatness
from worker.engine.guiding import Guiding, has_guide_among, masks_of
from worker.engine.history import History, Ids
from worker.engine.model import LoadedModel
from worker.engine.noise import NoiseKey
from worker.engine.prefilling import Prefilling
from worker.engine.reuse import Reuse
from worker.engine.row_batch import RowBatch, RowCaches
from worker.engine.sampler import BatchSampler, Draw
from worker.engine.solo_row import SoloRow
from worker.plan import Chunk, ChunkBound
from worker.prefix_disk.tier import DiskTier
from worker.sequence import Sequence

_CLEAR_CACHE_TOKENS: Final = 2048


@dataclass(slots=True)
class _Launched:
    """A step under way. Its `logits` are kept until it is drawn, and on if a row may be drawn again.

    `masks` are those that it was drawn with; `is_read` says that its rows' guides have taken its tokens.
    """

    rows: tuple[Sequence, ...]
    keys: list[NoiseKey]
    sampler: BatchSampler
    before: History
    logits: mx.array | None
    launched_at: float
    drawn: Draw | None = None
    masks: mx.array | None = None
    is_read: bool = False

    @property
    def draw(self) -> Draw:
        assert self.drawn is not None, "it waits for the step before it to be read"
        return self.drawn


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step that was read: a token a row, and the time it took the device, in milliseconds.

    Tokens that prefill has brought took none of their own. `logprobs` are those of rows that ask for them;
    their `place` is the row's among `rows`.
    """

    rows: tuple[Sequence, ...]
    tokens: list[int]
    elapsed_ms: float
    logprobs: tuple[RowLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """Chunks that were prefilled: their time in milliseconds, and the tokens that they have brought."""

    elapsed_ms: float
    firsts: StepResult | None


class BatchEngine:
    """Runs one model on one thread. An exception leaves caches and sequences at odds: let the process end.

    `chunk_bound` says for how many tokens of a forward pass memory is set aside. Of beginnings of
    prompts that no row uses up to `kept_bytes_max` are kept, as long as rows leave room for them.
    """

    def __init__(
        self, loaded: LoadedModel, kv_bytes_max: int, kept_bytes_max: int = 0, tier: DiskTier | None = None
    ) -> None:
        self._loaded = loaded
        layout = loaded.layout
        self._caches: RowCaches = SoloRow() if layout is None else RowBatch(layout, kv_bytes_max)
        self._beginnings = Beginnings(loaded, kept_bytes_max, self._caches.bases_moved, tier)
        self._prefilling = Prefilling(loaded)
        self._leaving: set[Sequence] = set()
        self._reuse = Reuse(self._caches, self._prefilling, self._beginnings, self._leaving)
        self._sampler = BatchSampler([], loaded.facts.vocabulary)
        self._sampled: tuple[tuple[Sequence, ...], tuple[int, ...]] = ((), ())
        self._flatness = Flatness()
        self._guiding = Guiding()
        self._steps: deque[_Launched] = deque()
        self._newest: _Launched | None = None
        self._tokens_since_clear = 0
        self._read_at = 0.0

    @property
    def chunk_bound(self) -> ChunkBound:
        return self._prefilling.chunk_bound

    @chunk_bound.setter
    def chunk_bound(self, bound: ChunkBound) -> None:
        self._prefilling.chunk_bound = bound

    @property
    def kv_bytes(self) -> int:
        """Bytes held by the caches of all rows, prefilling and decoding; what they share counts once."""
        return self._caches.nbytes + self._reuse.elsewhere_bytes

    @property
    def arrays(self) -> int:
        """How many arrays caches and kept beginnings hold, counted anew."""
        return self._caches.arrays + self._prefilling.arrays + self._beginnings.arrays

    @property
    def rows_and_groups(self) -> tuple[int, int]:
        """How many rows decode, and in how many groups that run one after another."""
        rows = len(self._caches.rows)
        return rows, max(self._caches.groups, min(1, rows))

    def limit_bytes(self, bytes_max: int) -> None:
        """From the next step on waste memory for speed only within so many bytes."""
        self._caches.bytes_max = bytes_max

    # --- one turn -----------------------------------------------------------------------------------------

    def drop(self, sequences: Seq[Sequence]) -> None:
        """Free what these sequences hold, by the end of the turn."""
        present = set(self._caches.rows)
        for sequence in sequences:
            if sequence in present:
                self._leaving.add(sequence)
            else:
                self._reuse.keep_unfinished(sequence)
                self._prefilling.drop(sequence)
                self._beginnings.forget(sequence)

    def prefill(self, chunks: Seq[Chunk]) -> PrefillResult:
        """Prefill these chunks, and draw what they bring. Whole short prompts share a forward pass."""
        started_at = time.perf_counter()
        coming_bytes = self._prefilling.coming_bytes(chunk.sequence for chunk in chunks)
        self._reuse.make_room(coming_bytes, moves_rows=not self._steps)
        self._prefilling.prefill(chunks)
        for chunk in chunks:
            self._reuse.keep_checkpoint(chunk)
        self._tokens_since_clear += sum(chunk.tokens for chunk in chunks)
        firsts = self._firsts(self._prefilling.take_logits())
        return PrefillResult(1000 * (time.perf_counter() - started_at), firsts)

    def _firsts(self, logits: dict[Sequence, mx.array]) -> StepResult | None:
        """Draw the tokens that prefill has brought logits of."""
        if not logits:
            return None
        rows = tuple(logits)
        levels = tuple(self._flatness.level(row, row.launched) for row in rows)
        sampler = BatchSampler([row.sampling for row in rows], self._loaded.facts.vocabulary, levels)
        before = sampler.start([Ids(row.ids, row.emitted) for row in rows])
        keys = [_key(row, row.settled) for row in rows] if sampler.needs_noise else []
        masks, stacked = masks_of(rows, sampler.masked), mx.stack(list(logits.values()))
        draw = sampler.draw(stacked, keys, before, masks)
        covered = [] if draw.covered is None else cast("list[bool]", draw.covered.tolist())
        if not all(covered):
            self._note_flat(rows, covered)
            draw = sampler.draw_again(stacked, keys, draw, before, masks)
        tokens, logprobs = draw.read()
        self._guiding.advance(rows, tokens)
        return StepResult(rows, tokens, 0.0, logprobs)

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
        self._guiding.advance(step.rows, tokens)
        step.is_read = True
        if self._steps and self._steps[0].drawn is None:
            self._draw(self._steps[0])
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
        self._reuse.tidy()
        if self._tokens_since_clear >= _CLEAR_CACHE_TOKENS:
            mx.clear_cache()
            self._tokens_since_clear = 0

    # --- membership ---------------------------------------------------------------------------------------

    def _change(self, newcomers: Seq[Sequence]) -> None:
        """Let newcomers into the batch, and those out that leave."""
        if not newcomers and not self._leaving:
            return
        for sequence in self._leaving:
            self._reuse.keep(sequence)
        self._reuse.make_room(self._prefilling.coming_bytes(newcomers), moves_rows=False)
        self._reuse.share(newcomers)
        joining = self._prefilling.take(newcomers)
        self._caches.change(self._leaving, joining, self._reuse.elsewhere_bytes)
        self._reuse.settle()
        for sequence in self._leaving:
            self._beginnings.forget(sequence)
        self._leaving.clear()

    # --- beginnings ---------------------------------------------------------------------------------------

    def begin(self, sequence: Sequence) -> int | None:
        """Find what is there already of a prompt; return how many of its first tokens need no prefill.

        None: something of it is still being read from disk; ask again. No step may be under way.
        """
        if self._leaving:
            self._change([])  # what they leave behind is what their successors begin with
        return self._reuse.begin(sequence)

    def limit_prefixes(self, *, keeps: bool) -> None:
        """Keep no beginnings but those that rows share, or again as many as there is room for."""
        self._reuse.limit(keeps=keeps)

    @property
    def prefixes(self) -> PrefixReading:
        """What is kept of prompts, and what happened to it."""
        return self._beginnings.reading

    def take_prefix_news(self) -> tuple[list[int], list[int]]:
        """Return the names of blocks that are kept since the last call, and of those that aren't any more."""
        return self._beginnings.take_news()

    def prefix_names(self) -> list[int]:
        """Return the names of all blocks that are kept."""
        return self._beginnings.names()

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
        sources = [places.get(row, _ids(row)) for row in rows]
        if previous is None:
            return self._sampler.start([_ids(row) for row in rows])
        return self._sampler.carry(previous.draw.history, sources)

    # --- steps --------------------------------------------------------------------------------------------

    def _forward(self, previous: _Launched | None) -> _Launched:
        """Start one forward pass behind the step before it, and the draw of its tokens if that can be."""
        launched_at = time.perf_counter()
        self._caches.begin_step(self._reuse.elsewhere_bytes)
        rows = self._caches.rows
        inputs = self._inputs(rows, previous)
        before = self._history(rows, previous)
        sampler = self._sampler
        logits = self._loaded.model(inputs[:, None], cache=self._caches.layers)[:, -1]
        self._caches.end_step()
        keys = [_key(row, row.launched - 1) for row in rows] if sampler.needs_noise else []
        step = _Launched(rows, keys, sampler, before, logits, launched_at)
        if previous is None or previous.is_read or not has_guide_among(rows, previous.rows):
            self._draw(step)
        else:
            mx.async_eval(logits)
        return step

    def _draw(self, step: _Launched) -> None:
        """Start to draw a step's tokens."""
        assert step.logits is not None
        masks = masks_of(step.rows, step.sampler.masked)
        step.drawn = step.sampler.draw(step.logits, step.keys, step.before, masks)
        mx.async_eval(step.drawn.arrays)
        if step.drawn.covered is None:
            step.logits = None
        else:
            step.masks = masks

    def _settle(self, step: _Launched) -> None:
        """Make sure of a step's tokens. If one has to be drawn again, the step after it is run again, too."""
        if step.draw.covered is None:
            return
        # Read as it is: one more operation on it would wait behind the step that was launched meanwhile.
        covered = cast("list[bool]", step.draw.covered.tolist())
        if all(covered):
            return
        assert step.logits is not None
        self._note_flat(step.rows, covered)
        step.drawn = step.sampler.draw_again(step.logits, step.keys, step.draw, step.before, step.masks)
        if self._steps and self._steps[-1] is not step:
            self._steps.pop()
            self._caches.roll_back()
            self._newest = self._forward(step)
            self._steps.append(self._newest)

    def _note_flat(self, rows: Seq[Sequence], covered: Seq[bool]) -> None:
        for row, is_covered in zip(rows, covered, strict=True):
            if not is_covered:
                self._flatness.missed(row, row.launched)

    def _elapsed_ms(self, launched_at: float) -> float:
        """Return the time since the device was free for this: its launch, or the read before it."""
        now = time.perf_counter()
        elapsed_ms = 1000 * (now - max(launched_at, self._read_at))
        self._read_at = now
        return elapsed_ms


def _key(row: Sequence, index: int) -> NoiseKey:
    return noise_key(row.sampling.seed, row.sampling.choice, index)


def _ids(row: Sequence) -> Ids:
    """Return what a row that joins consists of."""
    return Ids(row.known, row.emitted + len(row.said))
