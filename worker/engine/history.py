"""What rows with penalties have said so far, on the device, step by step and rebuilt from ids.

A history is never changed: every step makes a new one. So a step may be launched before the one before it is
read, and a step that is drawn again starts from the history it started from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import mlx.core as mx

from shared.limits import CONTEXT_TOKENS_MAX
from worker.engine.row_picks import RowPick

# Counts are float32, in which a subtraction needs no conversion, and whole numbers of this size are exact.
assert CONTEXT_TOKENS_MAX < 1 << 24


@dataclass(frozen=True, slots=True)
class Ids:
    """A row's text as the host knows it: the ids of its prompt, then `answered` ids of its answer so far.

    A row that joins has no token that is on the device only, so its ids say everything.
    """

    ids: Sequence[int]
    answered: int

    @property
    def answer(self) -> Sequence[int]:
        return self.ids[len(self.ids) - self.answered :]


Source = int | Ids


@dataclass(frozen=True, slots=True)
class Marks:
    """A mark for each token of the vocabulary, (rows with marks, vocabulary). `places` are these rows'."""

    places: tuple[int, ...]
    marks: mx.array | None

    def rearranged(self, places: Sequence[int], sources: Sequence[Source], fresh: mx.array | None) -> Self:
        """Return the marks of other rows: each row's are those of a place of these, or next of the fresh."""
        known = {place: at for at, place in enumerate(self.places)}
        index, taken = [], 0
        for place in places:
            source = sources[place]
            if isinstance(source, int):
                index.append(known[source])
            else:
                index.append(len(self.places) + taken)
                taken += 1
        parts = [part for part in (self.marks, fresh) if part is not None]
        if not index:
            return type(self)((), None)
        if taken == len(index):
            return type(self)(tuple(places), fresh)
        together = parts[0] if len(parts) == 1 else mx.concatenate(parts)
        return type(self)(tuple(places), RowPick.of(index, together.shape[0]).from_(together))


@dataclass(frozen=True, slots=True)
class History:
    """What was said so far by the rows of a batch that have penalties; other rows have nothing here.

    `seen`, bool, are the tokens of prompt and answer, of rows with a repetition penalty. `counts`, float32,
    say how often a token is in the answer, of rows with a presence or frequency penalty.
    """

    seen: Marks
    counts: Marks

    @property
    def arrays(self) -> list[mx.array]:
        return [each.marks for each in (self.seen, self.counts) if each.marks is not None]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


NO_HISTORY: Final = History(Marks((), None), Marks((), None))


@dataclass(frozen=True, slots=True)
class Historian:
    """Makes the histories of one batch: `seen` and `counted` are the rows of the two kinds of marks."""

    seen: RowPick
    counted: RowPick
    vocabulary: int

    def carried(self, previous: History, sources: Sequence[Source]) -> History:
        """Return the history of this batch's rows: each one's is a place's of the last batch, or new."""
        all_ids = [new.ids for place in self.seen.places if isinstance(new := sources[place], Ids)]
        answers = [new.answer for place in self.counted.places if isinstance(new := sources[place], Ids)]
        seen, counts = _counts(all_ids, self.vocabulary), _counts(answers, self.vocabulary)
        return History(
            previous.seen.rearranged(self.seen.places, sources, None if seen is None else seen > 0),
            previous.counts.rearranged(self.counted.places, sources, counts),
        )

    def knows(self, history: History) -> bool:
        """Whether this is a history of rows like these."""
        return (history.seen.places, history.counts.places) == (self.seen.places, self.counted.places)

    def advanced(self, history: History, tokens: mx.array) -> History:
        """Return the history after these tokens, int32 (rows,), one for each row of the batch."""
        seen, counts = history.seen.marks, history.counts.marks
        if seen is not None:
            token = self.seen.from_(tokens)[:, None]
            seen = mx.put_along_axis(seen, token, mx.array(True), axis=-1)
        if counts is not None:
            token = self.counted.from_(tokens)[:, None]
            more = mx.take_along_axis(counts, token, axis=-1) + 1
            counts = mx.put_along_axis(counts, token, more, axis=-1)
        return History(Marks(self.seen.places, seen), Marks(self.counted.places, counts))


def _counts(texts: Sequence[Sequence[int]], vocabulary: int) -> mx.array | None:
    """Return how often each text has each token, float32 (texts, vocabulary); None for no text."""
    if not texts:
        return None
    rows = [row for row, text in enumerate(texts) for _ in text]
    # What is beyond the vocabulary has no logit either; it goes to a column that is cut off.
    ids = mx.minimum(mx.array([token for text in texts for token in text], dtype=mx.int32), vocabulary)
    counts = mx.zeros((len(texts), vocabulary + 1)).at[mx.array(rows, dtype=mx.int32), ids].add(1.0)
    return mx.contiguous(counts[:, :vocabulary])
