"""Drawing tokens: one vectorised call for the whole batch, each row with its own parameters and noise.

A row's token is the one with the highest sum of logit / temperature and Gumbel noise, which draws from
the softmax (Gumbel 1954; Maddison et al., "A* Sampling", 2014). The noise of a token id hashes the row's key
and the id, so a row's token depends on its own logits, parameters, key and history only. The last bits of
logits differ between batches; they turn a draw only where the two highest sums are equal to those bits.
(Inverting a cumulative distribution, which needs one number a row, turns on them far more often: every token
of a vocabulary moves every boundary after it.)

Only rows that ask pay: for biases and penalties (`penalties`, `history`), for grammars (`masking`), for
sorting (`drawing`), and for log probabilities (`logprobs`). A row whose top_p reaches beyond what was sorted
is not covered. `Draw.covered` says so, and `draw_again` gives the exact answer by a full sort. The caller
pays one more step for that, and sorts more for this row for a while (`flatness`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from shared.messages import RowLogprobs
from shared.sampling import Sampling
from worker.engine.drawing import Drawn, Parameters, draw_greedy, draw_plain, draw_sorted
from worker.engine.history import NO_HISTORY, History, Ids, Source
from worker.engine.logprobs import DrawnLogprobs, LogprobWishes
from worker.engine.masking import Masking
from worker.engine.noise import NoiseKey
from worker.engine.penalties import Changes
from worker.engine.row_kinds import KINDS, is_limited, kind_of, width_of
from worker.engine.row_picks import MixedPick, RowPick


@dataclass(frozen=True, slots=True)
class Draw:
    """A step's tokens, int32 (rows,). `covered` is bool (rows,), or None where every row surely is.

    `history` counts these tokens; `logprobs` is None where no row asks for any.
    """

    tokens: mx.array
    covered: mx.array | None
    history: History = NO_HISTORY
    logprobs: DrawnLogprobs | None = None

    @property
    def arrays(self) -> list[mx.array]:
        """Everything that is to be evaluated together, in one round trip."""
        covered = [] if self.covered is None else [self.covered]
        logprobs = [] if self.logprobs is None else self.logprobs.arrays
        return [self.tokens, *covered, *logprobs, *self.history.arrays]

    def read(self) -> tuple[list[int], tuple[RowLogprobs, ...]]:
        """Wait for the tokens, and what the rows that ask for log probabilities get."""
        mx.eval(self.arrays)
        tokens = cast("list[int]", self.tokens.tolist())
        return tokens, () if self.logprobs is None else self.logprobs.read()


@dataclass(frozen=True, slots=True)
class _Kind:
    """The rows of one kind, in the order of their pick. Greedy ones have no parameters."""

    name: str
    rows: MixedPick
    keys: RowPick
    parameters: Parameters | None

    def drawn(self, logits: mx.array, noise: mx.array | None) -> Drawn:
        """Draw from logits of these rows, already picked; noise is the keys of the whole batch."""
        if self.parameters is None:
            return draw_greedy(logits)
        assert noise is not None
        noise = self.keys.from_(noise)
        if self.name == "plain":
            return draw_plain(logits, self.parameters, noise)
        return draw_sorted(logits, self.parameters, noise, width_of(self.name, logits.shape[-1]))


class BatchSampler:
    """Draws for a fixed list of rows; made anew when the membership of the batch changes.

    `flatness` says of each row how flat its distributions were lately, 0 for not at all.
    """

    def __init__(
        self, rows: Sequence[Sampling], vocabulary: int, flatness: Sequence[int] | None = None
    ) -> None:
        self._rows = tuple(rows)
        self._vocabulary = vocabulary
        self._changes = Changes(rows, vocabulary)
        self._masking = Masking.of(rows, self._changes.places)
        self._wishes = LogprobWishes.of(rows)
        levels = [0] * len(rows) if flatness is None else flatness
        names = [kind_of(row, vocabulary, level) for row, level in zip(rows, levels, strict=True)]
        self._kinds = tuple(
            self._kind(name, [place for place, other in enumerate(names) if other == name])
            for name in KINDS
            if name in names
        )
        order = [place for kind in self._kinds for place in kind.rows.places]
        self._back = None if order == sorted(order) else mx.argsort(mx.array(order, dtype=mx.int32))
        self.needs_noise = any(name != "greedy" for name in names)
        self.may_need_redraw = any(
            name in ("narrow", "broad")
            and width_of(name, vocabulary) < vocabulary
            and not is_limited(row, vocabulary)
            for name, row in zip(names, rows, strict=True)
        )

    @property
    def masked(self) -> tuple[int, ...]:
        """The places of the rows that have a grammar, in the order of their masks."""
        return () if self._masking is None else self._masking.places

    def start(self, texts: Sequence[Ids]) -> History:
        """Return the history of rows that are all new."""
        return self.carry(NO_HISTORY, texts)

    def carry(self, previous: History, sources: Sequence[Source]) -> History:
        """Return the history of these rows, of which some were in the batch before, whose history is given.

        A row's source is its place in that batch, or, where it is new, its ids.
        """
        return self._changes.historian.carried(previous, sources)

    def draw(
        self,
        logits: mx.array,
        keys: Sequence[NoiseKey],
        history: History = NO_HISTORY,
        masks: mx.array | None = None,
    ) -> Draw:
        """Draw a token for each row. `logits` (rows, vocabulary); `keys` one of shared.sampling a row.

        `masks`, uint32 (masked rows, words), says what is allowed in the rows at `masked`, bit by bit.
        """
        own = logits.astype(mx.float32)
        changed = self._altered(own, history, masks)
        noise = _words(keys) if self.needs_noise else None
        draws = [kind.drawn(kind.rows.from_(own, changed), noise) for kind in self._kinds]
        tokens = self._in_order([draw.tokens for draw in draws])
        covered = self._in_order([_covered(draw) for draw in draws]) if self.may_need_redraw else None
        return self._finished(own, tokens, covered, history)

    def draw_again(
        self,
        logits: mx.array,
        keys: Sequence[NoiseKey],
        draw: Draw,
        before: History = NO_HISTORY,
        masks: mx.array | None = None,
    ) -> Draw:
        """Return a draw in which the tokens of rows that were not covered are drawn by a full sort.

        `before` and `masks` are what the draw was made with. This waits for `draw.covered`.
        """
        assert draw.covered is not None
        missed = [row for row, covered in enumerate(cast("list[bool]", draw.covered.tolist())) if not covered]
        if not missed:
            return Draw(draw.tokens, None, draw.history, draw.logprobs)
        own = logits.astype(mx.float32)
        wide = self._kind("wide", missed)
        exact = wide.drawn(wide.rows.from_(own, self._altered(own, before, masks)), _words(keys))
        places = mx.array(wide.rows.places, dtype=mx.int32)
        tokens = mx.put_along_axis(draw.tokens, places, exact.tokens, axis=0)
        return self._finished(own, tokens, None, before)

    def _altered(self, own: mx.array, history: History, masks: mx.array | None) -> mx.array | None:
        """Return the rows that aren't as the model has them, in the order that `_kind` counts with."""
        changed = self._changes.applied(own, history)
        if self._masking is None:
            return changed
        assert masks is not None, "rows with a grammar need masks"
        return self._masking.applied(own, changed, masks)

    def _kind(self, name: str, places: Sequence[int]) -> _Kind:
        altered = self._changes.places if self._masking is None else self._masking.altered
        pick = MixedPick.of(places, len(self._rows), altered)
        rows = [self._rows[place] for place in pick.places]
        parameters = None if name == "greedy" else Parameters.of(rows, self._vocabulary)
        return _Kind(name, pick, RowPick.of(pick.places, len(self._rows)), parameters)

    def _in_order(self, parts: list[mx.array]) -> mx.array:
        """Join what the kinds say of their rows, and put it in the rows' order."""
        together = parts[0] if len(parts) == 1 else mx.concatenate(parts)
        return together if self._back is None else together[self._back]

    def _finished(self, own: mx.array, tokens: mx.array, covered: mx.array | None, before: History) -> Draw:
        """Count the tokens into the history; look up log probabilities in the model's own logits."""
        history = self._changes.historian.advanced(before, tokens)
        logprobs = None if self._wishes is None else self._wishes.granted(own, tokens)
        return Draw(tokens, covered, history, logprobs)


def _words(keys: Sequence[NoiseKey]) -> mx.array:
    return mx.array(list(keys), dtype=mx.uint32)


def _covered(drawn: Drawn) -> mx.array:
    return mx.ones(drawn.tokens.shape, dtype=mx.bool_) if drawn.covered is None else drawn.covered
