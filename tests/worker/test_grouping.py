"""Which rows share a padded cache: laws over random histories of rows that come, grow and leave."""

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.grouping import BOUND, SHORT_TOKENS, Arrangement, Bound, PlaceCosts, Placed, Row, Shape

PAD: Final = 32
AMPLE: Final = 1 << 60
WHOLE: Final = PlaceCosts(512, 0, 0, PAD)
WINDOWS: Final = PlaceCosts(128, 700, 384, PAD)
ONLY_WINDOWS: Final = PlaceCosts(0, 100, 512, PAD)
STATE: Final = PlaceCosts(0, 0, 0, PAD)
COSTS: Final = (WHOLE, WINDOWS, ONLY_WINDOWS, PlaceCosts(3, 4096, 5, 4), STATE)


@dataclass
class World:
    """Rows that come, grow and leave, and their groups; `check` holds each decision to the laws."""

    costs: PlaceCosts
    bytes_max: int = AMPLE
    alone: bool = False
    lengths: dict[Row, int] = field(default_factory=dict)
    shapes: list[Shape] = field(default_factory=list)
    made: int = 0
    made_bytes: int = 0
    named: Any = field(default_factory=itertools.count)

    def join(self, *lengths: int) -> None:
        self.lengths |= {next(self.named): length for length in lengths}
        self.arrange()

    def leave(self, *rows: Row) -> None:
        for row in rows:
            del self.lengths[row]
        self.arrange()

    def step(self) -> None:
        """Let all rows grow by a token, and change groups if one of them is full, or memory short."""
        if self.is_full or self.nbytes > self.bytes_max:
            self.arrange()
        self.lengths = {row: length + 1 for row, length in self.lengths.items()}

    def arrange(self) -> list[Placed]:
        bound = Bound.within(self.costs, self.lengths.values(), self.bytes_max)
        placed = Arrangement(self.lengths, bound, alone=self.alone).of(self.shapes)
        self.check(placed)
        new = [each.shape for each in placed if each.old is None]
        self.made += len(new)
        self.made_bytes += sum(map(self.bytes_of, new))
        self.shapes = [each.shape for each in placed]
        return placed

    @property
    def is_full(self) -> bool:
        return any(self.lengths[row] >= shape.room for shape in self.shapes for row in shape.rows)

    @property
    def nbytes(self) -> int:
        return sum(map(self.bytes_of, self.shapes))

    @property
    def exact_bytes(self) -> int:
        """What the rows would take, each alone."""
        return sum(self.costs.place_bytes(self.costs.room(length)) for length in self.lengths.values())

    @property
    def held_bytes(self) -> int:
        return sum(self.costs.place_bytes(max(length + 1, SHORT_TOKENS)) for length in self.lengths.values())

    def bytes_of(self, shape: Shape) -> int:
        return shape.places * self.costs.place_bytes(shape.room)

    def check(self, placed: list[Placed]) -> None:
        rows = [row for each in placed for row in each.shape.rows]
        assert sorted(map(str, rows)) == sorted(map(str, self.lengths)), "each row once"
        for each in placed:
            assert each.shape.rows
            assert len(each.shape.rows) <= each.shape.places
            assert max(self.lengths[row] for row in each.shape.rows) + 1 <= each.shape.room
            assert not self.alone or len(each.shape.rows) == each.shape.places == 1
        self.check_bytes(sum(self.bytes_of(each.shape) for each in placed))
        self.check_those_that_go_on(placed)

    def check_bytes(self, taken: int) -> None:
        assert taken <= BOUND * max(self.held_bytes, self.exact_bytes)
        if self.exact_bytes <= self.bytes_max:
            assert taken <= self.bytes_max, "they'd fit, each alone"
        else:
            assert taken == self.exact_bytes, "nothing is wasted where memory is short"

    def check_those_that_go_on(self, placed: list[Placed]) -> None:
        """Those take in newcomers only, give nobody away, and move rows only out of places that go."""
        known = {row for shape in self.shapes for row in shape.rows}
        olds = [each.old for each in placed if each.old is not None]
        assert all(count == 1 for count in Counter(olds).values())
        for each in placed:
            if each.old is None:
                continue
            old, shape = each.old, each.shape
            assert old in self.shapes
            assert (old.places, old.room) == (shape.places, shape.room)
            assert set(old.rows) & set(self.lengths) == set(shape.rows) & known
            for place, row in enumerate(shape.rows):
                stood = old.rows.index(row) if row in old.rows else None
                assert stood in (None, place) or (stood or 0) >= len(shape.rows)


lengths = st.one_of(st.integers(0, 70), st.integers(0, 3000), st.sampled_from((31, 32, 255, 256, 511, 1023)))
deeds = st.one_of(
    st.tuples(st.just("join"), st.lists(lengths, min_size=1, max_size=4)),
    st.tuples(st.just("leave"), st.integers(1, 6)),
    st.tuples(st.just("grow"), st.integers(1, 80)),
    st.tuples(st.just("memory"), st.sampled_from((0.0, 0.7, 1.0, 1.05, 1.2, 1.5, 1e9))),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(costs=st.sampled_from(COSTS), history=st.lists(deeds, min_size=4, max_size=14), chance=st.randoms())
@pytest.mark.parametrize("alone", [False, True], ids=["groups", "by rows"])
def test_whatever_comes_and_goes_the_laws_hold(
    alone: bool, costs: PlaceCosts, history: list[tuple[str, Any]], chance: random.Random
) -> None:
    world = World(costs, alone=alone)
    for deed, detail in history:
        match deed:
            case "join":
                world.join(*detail)
            case "leave":
                present = list(world.lengths)
                world.leave(*chance.sample(present, min(len(present), detail)))
            case "memory":
                world.bytes_max = int(detail * world.exact_bytes)
                world.arrange()
            case _:
                for _ in range(detail):
                    world.step()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    costs=st.sampled_from(COSTS),
    rows=st.lists(lengths, min_size=1, max_size=20),
    bytes_share=st.sampled_from((0.5, 1.0, 1.1, 1e9)),
)
def test_groups_come_to_rest_where_nothing_changes(
    costs: PlaceCosts, rows: list[int], bytes_share: float
) -> None:
    """One pair is merged at a time, so it may take as many decisions as there were groups."""
    world = World(costs)
    world.join(*rows)
    world.bytes_max = int(bytes_share * world.exact_bytes)
    for _ in range(len(rows) + 1):
        world.arrange()
    at_rest = list(world.shapes)
    assert [(each.shape, each.old) for each in world.arrange()] == [(shape, shape) for shape in at_rest]


# --- few groups -------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    costs=st.sampled_from(COSTS[:3]), longest=st.integers(0, SHORT_TOKENS - PAD) | st.integers(700, 100_000)
)
def test_rows_within_a_fifth_of_each_other_are_one_group(costs: PlaceCosts, longest: int) -> None:
    """Spread evenly they waste a tenth; between these lengths room for next tokens is a tenth more."""
    world = World(costs)
    world.join(*(round(longest * (1 - place / 75)) for place in range(16)))
    assert len(world.shapes) == 1


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    length=st.integers(0, 100_000),
    count=st.integers(1, 40),
    costs=st.sampled_from(COSTS[:3]),
    bytes_share=st.sampled_from((0.9, 1.0, 1e9)),
)
def test_equal_rows_are_one_group_however_they_come_and_however_short_memory_is(
    length: int, count: int, costs: PlaceCosts, bytes_share: float
) -> None:
    world = World(costs)
    for _ in range(count):
        world.join(length)
        world.bytes_max = int(bytes_share * (world.exact_bytes + costs.place_bytes(costs.room(length))))
    assert len(world.shapes) == 1


def test_short_rows_are_one_group_whatever_their_lengths() -> None:
    world = World(WHOLE)
    world.join(*range(1, SHORT_TOKENS - PAD, 15))
    assert len(world.shapes) == 1


@pytest.mark.parametrize("spread", [10, 100, 1000])
def test_groups_are_as_many_as_lengths_have_powers_of_the_bound(spread: int) -> None:
    """A group holds lengths down to two thirds of its longest at least, whatever else it holds."""
    numbers = random.Random(spread)
    world = World(WHOLE)
    world.join(*(round(SHORT_TOKENS * spread ** numbers.random()) for _ in range(200)))
    groups_max = 1
    longest = SHORT_TOKENS * spread
    while longest > SHORT_TOKENS:
        longest = longest * 5 // 6
        groups_max += 1
    assert 1 < len(world.shapes) <= groups_max


def test_a_row_that_is_far_longer_than_others_is_a_group_of_its_own() -> None:
    world = World(WHOLE)
    world.join(100, 100, 100, 20_000)
    assert sorted(len(shape.rows) for shape in world.shapes) == [1, 3]


def test_rows_that_only_have_state_are_one_group_whatever_their_lengths() -> None:
    world = World(STATE)
    world.join(1, 50_000, 7)
    world.join(300)
    assert [len(shape.rows) for shape in world.shapes] == [4]
    assert world.nbytes == 0


def test_beyond_its_window_a_row_counts_as_any_other() -> None:
    world = World(ONLY_WINDOWS)
    world.join(ONLY_WINDOWS.window_tokens, 50_000)
    assert len(world.shapes) == 1


# --- seldom anything copied ---------------------------------------------------------------------------------


@pytest.mark.parametrize("costs", [WHOLE, WINDOWS])
@settings(max_examples=10, deadline=None, derandomize=True)
@given(rows=st.lists(lengths, min_size=1, max_size=12))
def test_rows_that_only_grow_are_seldom_copied(costs: PlaceCosts, rows: list[int]) -> None:
    """Beside its growth, once in PAD steps, a group is made anew only where rows part or meet for good."""
    steps = 1500
    world = World(costs)
    world.join(*rows)
    world.made, turns, groups = 0, 0, [len(world.shapes)]
    for _ in range(steps):
        world.step()
        turns += len(world.shapes)
        groups.append(len(world.shapes))
    changes = sum(before != after for before, after in itertools.pairwise(groups))
    assert changes <= len(rows)
    assert world.made <= turns / PAD + 3 * len(rows)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(rows=st.lists(lengths, min_size=1, max_size=12))
def test_a_step_copies_less_than_a_sixteenth_of_what_is_held(rows: list[int]) -> None:
    steps = 1000
    world = World(WHOLE)
    world.join(*rows)
    world.made_bytes = 0
    held = 0
    for _ in range(steps):
        world.step()
        held += world.nbytes
    assert world.made_bytes <= held / 16


def test_rows_that_grow_until_they_are_alike_become_one_group_once() -> None:
    world = World(WHOLE)
    world.join(300, 600, 1200)
    groups = [len(world.shapes)]
    for _ in range(9000):
        world.step()
        groups.append(len(world.shapes))
    assert [count for count, _same in itertools.groupby(groups)] == [3, 2, 1]


def test_a_row_that_leaves_and_one_that_comes_move_nobody_else() -> None:
    world = World(WHOLE)
    world.join(*([1000] * 16))
    world.made = 0
    numbers = random.Random(1)
    for _ in range(50):
        world.leave(numbers.choice(list(world.lengths)))
        world.join(numbers.randrange(980, 1001))
    assert (world.made, len(world.shapes)) == (0, 1)


def test_a_group_that_has_spare_places_takes_more_rows_in_without_being_made_anew() -> None:
    world = World(WHOLE)
    world.join(*([1000] * 16))
    assert [shape.places for shape in world.shapes] == [18]
    world.made = 0
    world.join(1000, 1000)
    assert world.made == 0
    world.join(1000)
    assert world.made == 1


def test_a_group_whose_rows_are_mostly_gone_gives_their_places_back() -> None:
    world = World(WHOLE)
    world.join(*([1000] * 16))
    world.leave(*list(world.lengths)[4:])
    assert world.nbytes <= BOUND * world.held_bytes


def test_a_group_is_taken_apart_once_memory_is_short_and_not_before() -> None:
    world = World(WHOLE)
    world.join(*(1000, 900, 1000, 900))
    assert len(world.shapes) == 1
    world.bytes_max = world.nbytes
    world.arrange()
    assert len(world.shapes) == 1
    world.bytes_max = world.exact_bytes
    world.arrange()
    assert world.nbytes == world.exact_bytes
