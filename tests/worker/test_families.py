"""Every kind of family on the engine: a row's tokens are those that mlx-lm gives it alone.

A few schedules of rows for a family of each kind by default; `--all-families` tries many more for every one.
"""

import functools
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import mlx.core as mx
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache

from shared.messages import Submit
from tests.worker.tiny_families import WINDOW
from tests.worker.tiny_models import VOCABULARY, Reference, greedy_alone, tiny
from tests.worker.workbench import PLENTY, Workbench
from worker.plan import CHUNK_TOKENS_MAX

LENGTH_MAX: Final = 120
ANSWER_MAX: Final = 60
# Around the window, lengths that are prefilled together (within a quarter of each other), very short ones.
LENGTHS: Final = (WINDOW - 1, WINDOW + 1, 1, 2, 20, WINDOW, 60, LENGTH_MAX)
_DOUBTFUL_MAX: Final = 2
_VARIETY_MIN: Final = 8
_SHOWS: Final = 0.01


def prompt_of(length: int) -> tuple[int, ...]:
    numbers = random.Random(length)
    return tuple(numbers.randrange(VOCABULARY) for _ in range(length))


@functools.cache
def _alone(family: str, length: int, tokens: int) -> Reference:
    return greedy_alone(tiny(family).model, prompt_of(length), tokens)


def alone(family: str, length: int, tokens: int) -> Reference:
    """Return at least so many tokens; a few lengths of answers are computed and kept."""
    return _alone(family, length, -(-tokens // 15) * 15)


# --- schedules --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cut:
    """Take a row out some turns after it was submitted; bring it back some turns later, or never."""

    after_turns: int
    back_after_turns: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """A row that is submitted some turns after the one before it: with it, if there are none."""

    turns_before: int
    length: int
    tokens: int
    cuts: tuple[Cut, ...] = ()

    @property
    def stays(self) -> bool:
        return all(cut.back_after_turns is not None for cut in self.cuts)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Rows, how many of them run at a time, and how long the pieces of their prompts are."""

    rows: tuple[Row, ...]
    slots: int = 6
    chunk_tokens_max: int = CHUNK_TOKENS_MAX
    quantum_ms: float = 1000.0
    kv_bytes_max: int = 0


def schedules(lengths: st.SearchStrategy[int], rows_min: int, tokens_max: int) -> st.SearchStrategy[Schedule]:
    cuts = st.builds(Cut, after_turns=st.integers(0, 30), back_after_turns=st.none() | st.integers(0, 9))
    row = st.builds(
        Row,
        turns_before=st.sampled_from((0, 0, 0, 1, 2, 7, 20)),
        length=lengths,
        tokens=st.integers(1, tokens_max),
        cuts=st.lists(cuts, max_size=2).map(tuple),
    )
    return st.builds(
        Schedule,
        rows=st.lists(row, min_size=rows_min, max_size=8).map(tuple),
        slots=st.sampled_from((6, 2, 4)),
        chunk_tokens_max=st.sampled_from((CHUNK_TOKENS_MAX, 1, 7, WINDOW, 40)),
        quantum_ms=st.sampled_from((1000.0, 20.0)),
        kv_bytes_max=st.sampled_from((0, PLENTY)),
    )


@dataclass(slots=True)
class Stage:
    """Carries out a schedule on a workbench: deeds by the turn that they are due in."""

    bench: Workbench
    deeds: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    turn: int = 0

    def at(self, turn: int, deed: Callable[[], None]) -> None:
        self.deeds.setdefault(turn, []).append(deed)

    def play(self, rows: tuple[Row, ...]) -> None:
        turn = 0
        for number, row in enumerate(rows):
            turn += row.turns_before
            self.at(turn, functools.partial(self._submit, str(number), row))
        while self.deeds:
            for deed in self.deeds.pop(self.turn, []):
                deed()
            self.bench.turn()
            self.turn += 1
        self.bench.run()

    def _submit(self, name: str, row: Row) -> None:
        self.bench.submit(name, prompt_of(row.length), row.tokens)
        self._cut_next(name, row.cuts)

    def _cut_next(self, name: str, cuts: tuple[Cut, ...]) -> None:
        if cuts:
            self.at(self.turn + 1 + cuts[0].after_turns, functools.partial(self._cut, name, cuts))

    def _cut(self, name: str, cuts: tuple[Cut, ...]) -> None:
        dropped = self.bench.drop(name)
        back_after_turns = cuts[0].back_after_turns
        if dropped is not None and back_after_turns is not None:
            self.at(self.turn + 1 + back_after_turns, functools.partial(self._bring_back, dropped, cuts[1:]))

    def _bring_back(self, dropped: Submit, cuts: tuple[Cut, ...]) -> None:
        self.bench.resume(dropped)
        self._cut_next(dropped.sequence, cuts)


def check(family: str, schedule: Schedule) -> None:
    """Play a schedule. Each row that stays must get all its tokens, any other a beginning of them."""
    bench = Workbench(
        tiny(family),
        slots=schedule.slots,
        quantum_ms=schedule.quantum_ms,
        kv_bytes_max=schedule.kv_bytes_max,
        chunk_tokens_max=schedule.chunk_tokens_max,
    )
    Stage(bench).play(schedule.rows)
    for number, row in enumerate(schedule.rows):
        tokens = bench.answers[str(number)]
        alone(family, row.length, row.tokens).assert_same(tokens)
        if row.stays:
            assert len(tokens) == row.tokens
            assert str(number) in bench.ends


# --- the models themselves --------------------------------------------------------------------------------


def test_what_stood_long_before_shows_in_a_tiny_models_logits(one_family: str) -> None:
    """Otherwise a row could lose its cache unnoticed. Sparse attention may leave one place out."""
    model = tiny(one_family).model
    ids = prompt_of(2 * WINDOW)
    changed = [(*ids[:place], (ids[place] + 7) % VOCABULARY, *ids[place + 1 :]) for place in (0, 20, 40, -2)]
    logits = model(mx.array([ids, *changed]), cache=make_prompt_cache(model))[:, -1]
    scale = mx.linalg.norm(logits[0])
    shows = (mx.linalg.norm(logits[1:] - logits[:1], axis=-1) / scale).tolist()
    assert sorted(shows)[1] > _SHOWS, shows


def test_a_tiny_models_most_likely_token_is_seldom_in_doubt(one_family: str) -> None:
    """Comparing ends where two tokens are equally likely."""
    reference = alone(one_family, WINDOW - 1, ANSWER_MAX // 2)
    best = [mx.topk(logprobs, 2).tolist() for logprobs in reference.logprobs]
    doubtful = [place for place, (one, other) in enumerate(best) if abs(one - other) < 2 * Reference.TIE]
    assert len(doubtful) <= _DOUBTFUL_MAX
    assert len(set(reference.tokens)) > _VARIETY_MIN


# --- the engine -------------------------------------------------------------------------------------------


# Prompts of a window's length start together; one of them crosses its window, the next ones don't yet. A long
# one, a very short one and one that is brought back come in between.
CROSSING: Final = Schedule(
    rows=(
        Row(0, WINDOW - 1, 20),
        Row(0, 20, 3),
        Row(0, WINDOW, 12, cuts=(Cut(4, 2),)),
        Row(0, 1, WINDOW + 4),
        Row(1, LENGTH_MAX, 8),
        Row(2, 2, 9, cuts=(Cut(3, None),)),
        Row(0, WINDOW + 1, 6),
    ),
    kv_bytes_max=PLENTY,
)


def test_rows_cross_their_windows_one_by_one_beside_a_long_one(one_family: str) -> None:
    check(one_family, CROSSING)


def test_a_prompt_that_comes_token_by_token_is_the_same_prompt(one_family: str) -> None:
    """Through its window, beside a row that decodes."""
    rows = (Row(0, 2, 40), Row(1, WINDOW + 1, 6), Row(0, 20, 8))
    check(one_family, Schedule(rows, chunk_tokens_max=1, kv_bytes_max=0))


def test_rows_that_come_and_go_get_the_tokens_they_would_get_alone(
    one_family: str, all_families: bool
) -> None:
    lengths = st.integers(1, LENGTH_MAX) if all_families else st.sampled_from(LENGTHS)
    rows_min, tokens_max = (1, ANSWER_MAX) if all_families else (4, ANSWER_MAX // 2)

    @seed(zlib.crc32(one_family.encode()))
    @settings(max_examples=60 if all_families else 2, deadline=None, database=None)
    @given(schedule=schedules(lengths, rows_min, tokens_max))
    def holds(schedule: Schedule) -> None:
        check(one_family, schedule)

    holds()
