"""The order of prefill between ranks, as laws: the higher comes first, and yet no rank starves."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages import Submit
from shared.sampling import Sampling
from worker.plan import Chunk, ChunkBound, StepTimes
from worker.prefill_order import OWED_SHARE, PATIENCE, PRESSURE_MAX, PrefillOrder
from worker.sequence import Sequence

SMALL_CHUNK = 16
TURNS = 400

lengths = st.lists(st.integers(20, 1500), min_size=1, max_size=8)
quanta = st.integers(SMALL_CHUNK, 400).map(float)


def prompt(rank: int, tokens: int, quantum_ms: float = 100.0) -> Sequence:
    """Return a prompt of so many tokens to prefill, a millisecond each."""
    submit = Submit(1, "a", 1, (1,) * (tokens + 1), (), 4, (), Sampling(), rank, quantum_ms)
    sequence = Sequence.of(submit, now=0.0)
    sequence.begin(0)
    return sequence


@dataclass
class Line:
    """Ranks that always have prompts to prefill: as soon as one is done, the next of its lengths follows."""

    lengths: list[list[int]]
    quanta_ms: list[float]
    fixed_ms: float = 0.0
    got_ms: list[float] = field(init=False)
    prompts: list[Sequence] = field(init=False)

    def __post_init__(self) -> None:
        times = StepTimes(prefill_ms_per_token=1.0, decode_ms_per_step=5.0, prefill_fixed_ms=self.fixed_ms)
        self.order = PrefillOrder(times)
        self.got_ms = [0.0] * len(self.lengths)
        self.prompts = [self.next(rank) for rank in range(len(self.lengths))]

    def next(self, rank: int) -> Sequence:
        lengths = self.lengths[rank]
        lengths.append(lengths.pop(0))
        return prompt(rank, lengths[-1], self.quanta_ms[rank])

    def turn(self) -> list[Chunk]:
        chunks = self.order.chunks(self.prompts, decoding=4, now=0.0)
        for chunk in chunks:
            self.got_ms[chunk.sequence.rank] += chunk.tokens
        self.prompts = [each if each.to_prefill else self.next(each.rank) for each in self.prompts]
        return chunks


@settings(max_examples=60, deadline=None)
@given(high=lengths, low=lengths, lowest=lengths, quanta_ms=st.tuples(quanta, quanta, quanta))
def test_no_rank_starves_however_much_the_higher_ones_prefill(
    high: list[int], low: list[int], lowest: list[int], quanta_ms: tuple[float, ...]
) -> None:
    """It gets most of its share of all that higher ranks got, but for what it may be owed at any time.

    Most: with one owed chunk a turn, a much smaller quantum or two ranks of short prompts can't carry it all.
    """
    line = Line([high, low, lowest], list(quanta_ms))
    carried = min(0.8, 8 * min(*quanta_ms, *low, *lowest) / max(quanta_ms))
    for _ in range(TURNS):
        line.turn()
        for rank in (1, 2):
            owed_ms = carried * OWED_SHARE * sum(line.got_ms[:rank]) - line.got_ms[rank]
            bound_ms = PATIENCE * line.quanta_ms[rank] + OWED_SHARE * PRESSURE_MAX * sum(quanta_ms)
            assert owed_ms <= bound_ms + 1e-6, f"rank {rank}"


@settings(max_examples=60, deadline=None)
@given(high=lengths, low=lengths, quanta_ms=st.tuples(quanta, quanta))
def test_a_lower_rank_gets_no_more_than_its_share_or_what_is_left(
    high: list[int], low: list[int], quanta_ms: tuple[float, ...]
) -> None:
    line = Line([high, low], list(quanta_ms))
    left_over_ms = 0.0
    for _ in range(TURNS):
        (higher, _) = line.prompts
        chunks = line.turn()
        if not higher.to_prefill:
            left_over_ms += sum(chunk.tokens for chunk in chunks if chunk.sequence.rank == 1)
    assert line.got_ms[1] <= OWED_SHARE * line.got_ms[0] + left_over_ms


@settings(max_examples=100, deadline=None)
@given(
    high=lengths,
    low=lengths,
    lowest=lengths,
    quanta_ms=st.tuples(quanta, quanta, quanta),
    fixed_ms=st.floats(0, 500),
)
def test_a_turn_keeps_to_the_first_ranks_budget(
    high: list[int], low: list[int], lowest: list[int], quanta_ms: tuple[float, ...], fixed_ms: float
) -> None:
    """And no lower rank's chunk makes it longer than that rank's own quantum, but one that was owed."""
    line = Line([high, low, lowest], list(quanta_ms), fixed_ms)
    for _ in range(100):
        chunks = line.turn()
        spent_ms = fixed_ms + sum(chunk.tokens for chunk in chunks)
        assert spent_ms <= max(fixed_ms, quanta_ms[0]) + 2 * SMALL_CHUNK
        last = chunks[-1].sequence
        if last.rank:
            assert spent_ms <= last.quantum_ms


@settings(max_examples=60, deadline=None)
@given(low=lengths, lowest=lengths, quanta_ms=st.tuples(quanta, quanta, quanta), turns=st.integers(0, 150))
def test_a_higher_prompts_first_chunk_is_in_the_very_next_turn(
    low: list[int], lowest: list[int], quanta_ms: tuple[float, ...], turns: int
) -> None:
    line = Line([[100_000], low, lowest], list(quanta_ms))
    first, *others = line.prompts
    line.prompts = others
    for turn in range(turns):
        line.turn()
        if turn % 20 == 10:
            line.prompts = [first, *line.prompts] if first not in line.prompts else line.prompts[1:]
    arrived = prompt(0, 10, quanta_ms[0])
    line.prompts = [arrived, *line.prompts]
    assert arrived in [chunk.sequence for chunk in line.turn()]


def ranks(chunks: list[Chunk]) -> list[int]:
    return [chunk.sequence.rank for chunk in chunks]


def turns_until_served(line: Line, rank: int) -> int:
    return next(turn for turn in range(1, 10_000) if rank in ranks(line.turn()))


def test_in_the_middle_of_a_higher_prompt_a_lower_one_waits_for_four_times_what_it_needs() -> None:
    line = Line([[1_000_000], [1000]], [100.0, 100.0])
    turns = turns_until_served(line, 1)
    assert turns == 1 + PATIENCE / OWED_SHARE
    assert turns_until_served(line, 1) == 1 + 1 / OWED_SHARE, "it waits only once"


def test_between_two_higher_prompts_a_lower_one_needs_to_wait_only_once() -> None:
    line = Line([[99], [1000]], [99.0, 50.0])
    assert turns_until_served(line, 1) == pytest.approx(1 + 50 / (OWED_SHARE * 99), abs=1)


def test_the_end_of_a_prompt_is_a_chunk_and_need_not_wait_for_a_quantum() -> None:
    """Ten tokens are left to it, which are owed after two turns of a hundred milliseconds."""
    line = Line([[100], [10]], [100.0, 100.0])
    assert turns_until_served(line, 1) == 3


def test_what_a_rank_got_for_free_counts_against_what_it_is_owed() -> None:
    line = Line([[80], [100_000]], [100.0, 100.0])
    for _ in range(100):
        chunks = line.turn()
        assert ranks(chunks) == [0, 1]
        assert chunks[1].tokens == 20


def test_when_nobody_prefills_nothing_is_owed_any_more() -> None:
    line = Line([[100], [1000]], [100.0, 100.0])
    for _ in range(19):
        line.turn()
    assert line.order.chunks([], decoding=4, now=0.0) == []
    assert turns_until_served(line, 1) == 21


@settings(max_examples=60, deadline=None)
@given(high=lengths, low=lengths, quanta_ms=st.tuples(quanta, quanta), fixed_ms=st.floats(0, 50))
def test_a_share_of_all_quanta_cuts_what_quanta_of_that_size_cut(
    high: list[int], low: list[int], quanta_ms: tuple[float, float], fixed_ms: float
) -> None:
    shared = Line([list(high), list(low)], list(quanta_ms), fixed_ms)
    shared.order.quantum_share = 0.5
    smaller = Line([list(high), list(low)], [0.5 * each for each in quanta_ms], fixed_ms)
    for _ in range(60):
        assert [cut_of(chunk) for chunk in shared.turn()] == [cut_of(chunk) for chunk in smaller.turn()]


def cut_of(chunk: Chunk) -> tuple[int, int, int]:
    return chunk.sequence.rank, chunk.start, chunk.tokens


@settings(max_examples=60, deadline=None)
@given(
    high=lengths,
    low=lengths,
    quanta_ms=st.tuples(quanta, quanta),
    longest=st.lists(st.integers(16, 200), min_size=4, max_size=4),
)
def test_no_chunk_is_longer_than_memory_is_set_aside_for_whatever_time_it_has(
    high: list[int], low: list[int], quanta_ms: tuple[float, ...], longest: list[int]
) -> None:
    bound = ChunkBound((0, 20, 100, 500), tuple(sorted(longest, reverse=True)))
    line = Line([high, low], list(quanta_ms))
    line.order = PrefillOrder(StepTimes(1.0, 5.0), bound)
    for _ in range(TURNS):
        for chunk in line.turn():
            assert 0 < chunk.tokens <= bound.tokens_for(chunk.start)


def test_a_bounded_prompt_goes_on_from_where_its_chunk_ended() -> None:
    order = PrefillOrder(StepTimes(0.01, 5.0), ChunkBound((0, 50), (40, 20)))
    one = prompt(0, 70, 250.0)
    cut = [[(each.start, each.tokens) for each in order.chunks([one], 0, 0.0)] for _ in range(3)]
    assert cut == [[(0, 40)], [(40, 20)], [(60, 10)]]


@pytest.mark.parametrize(("begun", "unbegun", "spent"), [(8, 0, 200), (1, 7, 200), (1, 0, 100), (1, 3, 100)])
def test_prompts_that_have_yet_to_begin_make_a_turn_longer_but_get_nothing(
    begun: int, unbegun: int, spent: int
) -> None:
    """They wait for what is prefilled: eight prompts and four rows, and so two quanta."""
    order = PrefillOrder(StepTimes(1.0, 5.0))
    waiting = [Sequence.of(Submit(1, "b", 1, (1,) * 900, (), 4, (), Sampling(), 0, 100.0), 0.0)] * unbegun
    chunks = order.chunks([*waiting, *(prompt(0, 900) for _ in range(begun))], decoding=4, now=0.0)
    assert not {chunk.sequence for chunk in chunks} & {*waiting}
    assert sum(chunk.tokens for chunk in chunks) == spent


def test_a_prompt_that_began_behind_what_was_there_is_not_in_the_middle_of_its_prefill() -> None:
    """Between two prompts a lower one needn't wait four times as long."""
    line = Line([[99], [1000]], [99.0, 50.0])
    turns = 0
    while True:
        turns += 1
        line.prompts[0] = Sequence.of(Submit(1, "a", 1, (1,) * 150, (), 4, (), Sampling(), 0, 99.0), 0.0)
        line.prompts[0].begin(50)
        if 1 in ranks(line.turn()):
            break
    assert turns == pytest.approx(1 + 50 / (OWED_SHARE * 99), abs=1)
