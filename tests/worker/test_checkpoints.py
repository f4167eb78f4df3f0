"""Where states are kept: behind turns and at the end of what is prefilled, and chunks stop there."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages import Submit
from shared.model_facts import Reuse
from shared.sampling import Sampling
from tests.worker.prompt_scheduler import PromptScheduler
from worker.checkpoints import CHECKPOINTS_MAX, checkpoints_of
from worker.plan import Chunk, StepTimes
from worker.sequence import Sequence

END = 2
STOP_IDS = frozenset({END, 3})


def turns(*lengths: int) -> list[int]:
    """Return turns of so many tokens each, with the end of each as its last."""
    return [token for length in lengths for token in [*[9] * (length - 1), END]]


def test_a_chats_states_are_kept_behind_the_system_prompt_and_the_question_and_at_the_end() -> None:
    assert checkpoints_of([*turns(30, 12), 9, 9, 9], STOP_IDS, 45) == (30, 42, 44)


def test_of_many_turns_the_first_and_the_last_three_count() -> None:
    ids = [*turns(10, 10, 10, 10, 10, 10), 9, 9]
    assert checkpoints_of(ids, STOP_IDS, len(ids)) == (10, 40, 50, 60, 61)


def test_a_prompt_without_turns_is_kept_at_its_end() -> None:
    assert checkpoints_of([9] * 50, STOP_IDS, 50) == (49,)
    assert checkpoints_of([9] * 50, (), 50) == (49,)


def test_an_end_of_a_turn_in_the_last_place_is_no_place_of_its_own() -> None:
    assert checkpoints_of(turns(10, 10), STOP_IDS, 20) == (10, 19)


def test_what_goes_on_with_an_answer_is_kept_at_its_prompts_end_too() -> None:
    ids = [*turns(10, 10, 10, 10), 9, 9, *[7] * 30]
    assert checkpoints_of(ids, STOP_IDS, 42) == (10, 30, 40, 41, 71)


def test_a_prompt_of_one_token_has_no_place() -> None:
    assert checkpoints_of([9], STOP_IDS, 1) == ()
    assert checkpoints_of([9, 9], STOP_IDS, 1) == (1,)


tokens = st.sampled_from([END, 3, 7, 8, 9])


@settings(deadline=None)
@given(ids=st.lists(tokens, min_size=1, max_size=60), emitted=st.integers(0, 60))
def test_places_are_few_and_ascend_within_what_is_prefilled(ids: list[int], emitted: int) -> None:
    prompt_tokens = max(1, len(ids) - emitted)
    places = checkpoints_of(ids, STOP_IDS, prompt_tokens)
    assert len(places) <= CHECKPOINTS_MAX
    assert all(before < after for before, after in pairwise((0, *places, len(ids))))
    if len(ids) > 1:
        assert places[-1] == len(ids) - 1
    ends = {place + 1 for place, token in enumerate(ids[:prompt_tokens]) if token in STOP_IDS}
    assert {*places} <= ends | {len(ids) - 1, prompt_tokens - 1}
    assert not ends or min(ends) in places or min(ends) >= len(ids) - 1


# --- chunks -----------------------------------------------------------------------------------------------


def prefilled(ids: list[int], reuse: Reuse, quantum_ms: float = 25.0, cached: int = 0) -> list[Chunk]:
    """Return the chunks of a prompt, a millisecond a token."""
    plans = PromptScheduler(2, StepTimes(1.0, 5.0), reuse=reuse, share_tokens=256)
    plans.kept = {"a": cached}
    plans.submit(Sequence.of(Submit(1, "a", 1, tuple(ids), (), 1, (END, 3), Sampling(), 0, quantum_ms), 0.0))
    chunks: list[Chunk] = []
    while plans.names:
        plan = plans.plan(0.0)
        chunks += plan.chunks
        plans.settle(plan.rows, [7] * len(plan.rows))
    return chunks


def stops(chunks: list[Chunk]) -> list[int]:
    return [chunk.start + chunk.tokens for chunk in chunks]


def test_prefill_stops_at_each_place_of_a_family_whose_states_cannot_be_cut() -> None:
    ids = [*turns(30, 12), 9, 9, 9]
    assert stops(prefilled(ids, "checkpoints")) == [25, 30, 42, 44]
    assert stops(prefilled(ids, "checkpoints", cached=30)) == [42, 44]


@pytest.mark.parametrize("reuse", ["any", "none"])
def test_prefill_of_other_families_stops_nowhere(reuse: Reuse) -> None:
    assert stops(prefilled([*turns(30, 12), 9, 9, 9], reuse)) == [25, 44]


@settings(deadline=None, max_examples=60)
@given(
    ids=st.lists(tokens, min_size=1, max_size=120),
    quantum_ms=st.floats(1, 60),
    cached=st.integers(0, 120),
)
def test_no_chunk_crosses_a_place_and_every_place_behind_the_cached_is_met(
    ids: list[int], quantum_ms: float, cached: int
) -> None:
    cached = min(cached, len(ids) - 1)
    chunks = prefilled(ids, "checkpoints", quantum_ms, cached)
    places = checkpoints_of(ids, STOP_IDS, len(ids))
    assert [chunk.start for chunk in chunks] == [cached, *stops(chunks)][: len(chunks)]
    assert {place for place in places if place > cached} <= {*stops(chunks)}
    for chunk in chunks:
        assert chunk.tokens > 0
        assert not any(chunk.start < place < chunk.start + chunk.tokens for place in places)
