"""The rows that prefill: what each begins with, and chunks of their prompts, one by one or side by side.

A chunk that ends a prompt with its last token brings the logits of the answer's next one.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from collections.abc import Sequence as Seq
from typing import Any

import mlx.core as mx

from shared.model_facts import room_tokens
from worker.engine.bases import Other
from worker.engine.beginnings import Opening
from worker.engine.model import LoadedModel
from worker.engine.restored import move, put_behind, restore
from worker.engine.row_caches import Prefilled, arrays_in, parts_of, trim_windows
from worker.engine.slabs import RowSource, cut, source_of
from worker.engine.trial import Together, prefill_together
from worker.plan import UNBOUNDED, Chunk, similar_lengths
from worker.prefixes.store import Lease
from worker.sequence import Sequence


class Prefilling:
    """Holds rows from their beginning until they decode. `chunk_bound` is what memory is set aside for."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.chunk_bound = UNBOUNDED
        self._loaded = loaded
        self._kinds = loaded.layout.keys_values if loaded.layout is not None else []
        self._openings: dict[Sequence, Opening] = {}
        self._rows: dict[Sequence, Prefilled] = {}
        self._logits: dict[Sequence, mx.array] = {}
        self._bytes_known: int | None = 0

    @property
    def nbytes(self) -> int:
        """Bytes of these rows' own caches."""
        if self._bytes_known is None:
            self._bytes_known = sum(int(cache.nbytes) for cache in self._caches())
        return self._bytes_known

    @property
    def count(self) -> int:
        """How many rows are here, or will be."""
        return len(self._rows) + len(self._openings)

    @property
    def arrays(self) -> int:
        return arrays_in(self._caches())

    def _caches(self) -> list[Any]:
        held = {id(cache): cache for prefilled in self._rows.values() for cache in prefilled.parts}
        return list(held.values())

    def others(self) -> Iterator[Other]:
        """Yield these rows as such of which beginnings can be taken."""
        for sequence, opening in self._openings.items():
            yield Other(sequence, opening.tokens, opening.base_tokens, None)
        for sequence, prefilled in self._rows.items():
            base_tokens = prefilled.base.tokens if prefilled.base is not None else 0
            yield Other(sequence, prefilled.length, base_tokens, self.source_of(prefilled))

    def source_of(self, prefilled: Prefilled) -> Callable[[], RowSource]:
        """Return what says where a row can be copied from."""
        return lambda: source_of(prefilled, self._kinds)

    # --- who comes and goes -------------------------------------------------------------------------------

    def open(self, sequence: Sequence, opening: Opening) -> None:
        """Let a sequence begin with what was found for it."""
        self._openings[sequence] = opening

    @property
    def opened(self) -> list[Sequence]:
        """Those that have no caches yet."""
        return list(self._openings)

    def has(self, sequence: Sequence) -> bool:
        return sequence in self._rows

    def coming_bytes(self, sequences: Iterable[Sequence]) -> int:
        """Return the bytes of the caches that are made for those of these that have none yet."""
        begun = [sequence for sequence in sequences if sequence not in self._rows]
        row_bytes, token_bytes = self._loaded.facts.row_bytes, self._loaded.facts.kv_bytes_per_token
        shared = sum(self._opening(sequence).base_tokens for sequence in begun)
        return sum(row_bytes(sequence.prefill_tokens) for sequence in begun) - shared * token_bytes

    def put_behind(self, sequence: Sequence, base: Lease) -> None:
        """Let a row begin behind a longer base from now on, and give back what it has of it, layer by layer.

        It must have computed the base's tokens, and more of its prompt must be left to do.
        """
        opening = self._openings.get(sequence)
        if opening is not None:
            if opening.base is not None:
                opening.base.release()
            opening.base = base
            return
        prefilled = self._rows[sequence]
        assert self.is_under_way(sequence), "other rows are in its caches, or it joins the batch in any case"
        room = room_tokens(sequence.prefill_tokens - base.tokens, self._loaded.facts.kv_pad_tokens)
        caches = put_behind(self._loaded.new_caches(prefilled.length), self._kinds, base, 1, room)
        move(prefilled, self._kinds, caches, base)
        if prefilled.base is not None:
            prefilled.base.release()
        self._rows[sequence] = Prefilled(caches, 0, prefilled.length, base=base, first=base.tokens)
        self._bytes_known = None

    def is_under_way(self, sequence: Sequence) -> bool:
        """Whether a row is still to prefill, alone in its caches if it has any."""
        prefilled = self._rows.get(sequence)
        if prefilled is None:
            return sequence in self._openings
        return not prefilled.padded and prefilled.length < len(sequence.ids) - 1

    def drop(self, sequence: Sequence) -> None:
        """Free what a sequence holds, if it is here."""
        opening = self._openings.pop(sequence, None)
        if opening is not None:
            opening.dropped()
        prefilled = self._rows.pop(sequence, None)
        if prefilled is not None:
            self._bytes_known = None
            if prefilled.base is not None:
                prefilled.base.release()

    def source(self, sequence: Sequence) -> RowSource | None:
        """Return where a row can be copied from, None if nothing of it was computed here."""
        prefilled = self._rows.get(sequence)
        return None if prefilled is None else source_of(prefilled, self._kinds)

    def get(self, sequence: Sequence) -> Prefilled:
        """Return a row's prefill, begun if it wasn't."""
        if sequence not in self._rows:
            opening = self._popped(sequence)
            caches, first = self._begun(opening, 1, sequence.prefill_tokens)
            self._rows[sequence] = Prefilled(caches, 0, opening.tokens, base=opening.base, first=first)
            self._bytes_known = None
        return self._rows[sequence]

    def take(self, sequences: Seq[Sequence]) -> dict[Any, Prefilled]:
        """Hand rows over that decode from now on."""
        taken = {sequence: self.get(sequence) for sequence in sequences}
        for sequence in sequences:
            del self._rows[sequence]
        self._bytes_known = None
        users = Counter(id(prefilled.caches) for prefilled in self._rows.values())
        for prefilled in taken.values():
            prefilled.is_last_use = not users[id(prefilled.caches)]
        return taken

    # --- chunks -------------------------------------------------------------------------------------------

    def prefill(self, chunks: Seq[Chunk]) -> None:
        """Prefill these chunks. Whole short prompts, or what is left of them, share a forward pass."""
        alike: dict[Hashable, list[Chunk]] = {}
        for chunk in chunks:
            if self._may_share(chunk):
                alike.setdefault(self._begins_with(chunk.sequence), []).append(chunk)
        done: set[Sequence] = set()
        for those in alike.values():
            for group in self._groups(those):
                if len(group) > 1:
                    self._prefill_together(group)
                    done |= {chunk.sequence for chunk in group}
        for chunk in chunks:
            if chunk.sequence not in done:
                self._prefill_alone(chunk)
        self._bytes_known = None

    def take_logits(self) -> dict[Sequence, mx.array]:
        """Hand over the logits, (vocabulary,), of each answer's next token that prefill has brought."""
        logits, self._logits = self._logits, {}
        return logits

    def _groups(self, chunks: list[Chunk]) -> list[list[Chunk]]:
        bound = self.chunk_bound
        start = chunks[0].start
        tokens_max = min(bound.together, bound.tokens_for(start)) if start else bound.together
        return similar_lengths(chunks, tokens_max, exact=self._loaded.together is Together.EQUAL)

    def _may_share(self, chunk: Chunk) -> bool:
        """Whether a chunk may be prefilled with others: it's all of a prompt, and cuts no window.

        Or all that is left of one, behind a beginning that is shared; what was copied for it alone is none.
        """
        window = self._loaded.facts.window_tokens
        is_short = not window or chunk.end <= window
        may = self._loaded.together is not Together.NEVER and chunk.is_whole_prefill and is_short
        opening = self._opening(chunk.sequence)
        return may and not self.has(chunk.sequence) and (not opening.tokens or opening.base is not None)

    def _begins_with(self, sequence: Sequence) -> Hashable:
        """Return what is the same for sequences that begin with the same tokens, shared in the same way."""
        opening = self._opening(sequence)
        if opening.base is None:
            return None
        return id(opening.base.blocks[-1]), sequence.ids[opening.base.blocks[-1].start : opening.tokens]

    def _opening(self, sequence: Sequence) -> Opening:
        return self._openings.get(sequence) or Opening()

    def _popped(self, sequence: Sequence) -> Opening:
        return self._openings.pop(sequence) if sequence in self._openings else Opening()

    def _prefill_alone(self, chunk: Chunk) -> None:
        """Prefill the next piece of one prompt."""
        prefilled = self.get(chunk.sequence)
        self._pass([chunk], lambda: self._loaded.model(mx.array([chunk.ids]), cache=prefilled.caches))
        trim_windows(prefilled.caches)
        self._evaluate([chunk], prefilled.caches)
        prefilled.length += chunk.tokens

    def _prefill_together(self, chunks: Seq[Chunk]) -> None:
        """Prefill what is left of prompts as one batch, padded on the right: what is causal never sees that.

        A row is padded with a token of its own: what it may overflow with is nobody else's.
        """
        longest = max(chunk.tokens for chunk in chunks)
        openings = [self._popped(chunk.sequence) for chunk in chunks]
        caches, first = self._begun(openings[0], len(chunks), openings[0].tokens + longest)
        for opening in openings[1:]:
            opening.copied()
        ids = [chunk.ids + chunk.ids[-1:] * (longest - chunk.tokens) for chunk in chunks]
        lengths = [chunk.tokens for chunk in chunks]
        self._pass(chunks, lambda: prefill_together(self._loaded.model, caches, ids, lengths))
        self._evaluate(chunks, caches)
        for row, (chunk, opening) in enumerate(zip(chunks, openings, strict=True)):
            length = opening.tokens + chunk.tokens
            self._rows[chunk.sequence] = Prefilled(
                caches, row, length, padded=True, base=opening.base, first=first
            )

    def _pass(self, chunks: Seq[Chunk], run: Callable[[], mx.array]) -> None:
        """Make a forward pass of these chunks, one a row; keep the logits that are wanted of it."""
        head = self._loaded.head
        if head is None or not any(chunk.brings_token for chunk in chunks):
            run()
            return
        logits = head.last(run, [chunk.tokens for chunk in chunks])
        self._logits |= {
            chunk.sequence: logits[row] for row, chunk in enumerate(chunks) if chunk.brings_token
        }

    def _evaluate(self, chunks: Seq[Chunk], caches: list[Any]) -> None:
        """Wait for a pass: evaluated together, passes would take their memory at the same time."""
        logits = [self._logits[chunk.sequence] for chunk in chunks if chunk.brings_token]
        mx.eval(logits, [cache.state for cache in caches])

    # --- beginnings ---------------------------------------------------------------------------------------

    def _begun(self, opening: Opening, rows: int, tokens: int) -> tuple[list[Any], int]:
        """Return caches for rows of so many tokens that begin with this, and their arrays' first token."""
        caches = self._loaded.new_caches(tokens)
        base = opening.base
        if base is not None:
            room = room_tokens(tokens - base.tokens, self._loaded.facts.kv_pad_tokens)
            caches = put_behind(caches, self._kinds, base, rows, room)
        if opening.tokens:
            runs = cut(opening.kept.runs(), opening.base_tokens, opening.tokens) if opening.kept else []
            parts = [part for cache in caches for part in parts_of(cache)]
            restore(parts, self._kinds, runs, opening.tokens, opening.snapshot, rows=rows)
            opening.copied()
        return caches, opening.base_tokens
