"""What prompts took: each counted once, and never more of it there than it has."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from proxy.admitted import Admitted
from proxy.live_answers import sequences_of
from proxy.prompt_use import PromptUse, prompt_use
from tests.proxy.small_worlds import measured


def admitted(prompts, choices, found):
    """Return a request. `found` has for each answer: None isn't begun, -1 not told, else its tokens."""
    asked = measured(prompts=prompts, choices=choices)
    events = asyncio.Queue()
    sequences = tuple(sequences_of(asked, "r", events))
    for sequence, tokens in zip(sequences, found, strict=True):
        sequence.attempt = 0 if tokens is None else 1
        sequence.cached_tokens = tokens if tokens is not None and tokens >= 0 else None
    return Admitted(asked, sequences, events, 0.0, 0.0, lambda _sequence, *, complete: None, "lane")


def test_prompts_are_summed():
    assert prompt_use(admitted([(1,) * 5, (2,) * 8], 1, [3, 7])) == PromptUse(13, 10)


def test_choices_that_found_what_the_first_had_computed_do_not_count_as_found():
    assert prompt_use(admitted([(1,) * 9], 3, [0, 8, 8])) == PromptUse(9, 0)
    assert prompt_use(admitted([(1,) * 9, (2,) * 9], 2, [8, 4, 8, 6])) == PromptUse(18, 10)


def test_a_prompt_that_was_not_begun_took_nothing():
    assert prompt_use(admitted([(1,) * 5, (2,) * 8], 1, [None, 7])) == PromptUse(8, 7)
    assert prompt_use(admitted([(1,) * 5], 2, [None, None])) == PromptUse(0, 0)


def test_a_choice_that_heard_nothing_yet_leaves_it_to_the_others():
    assert prompt_use(admitted([(1,) * 5], 2, [-1, 4])) == PromptUse(5, 4)
    assert prompt_use(admitted([(1,) * 5], 2, [-1, None])) == PromptUse(5, 0)


WORDS = st.none() | st.integers(-1, 40)
SHAPES = st.tuples(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(1, 4))
REQUESTS = SHAPES.flatmap(
    lambda shape: st.tuples(
        st.just(shape), st.lists(WORDS, min_size=len(shape[0]) * shape[1], max_size=len(shape[0]) * shape[1])
    )
)


@given(REQUESTS)
def test_never_more_is_found_than_there_is_nor_counted_than_was_asked(request_):
    (lengths, choices), found = request_
    use = prompt_use(admitted([(1,) * length for length in lengths], choices, found))
    assert 0 <= use.cached <= use.tokens <= sum(lengths)
    told = [tokens for tokens in found if tokens is not None]
    assert (use.tokens == 0) == (not told)
