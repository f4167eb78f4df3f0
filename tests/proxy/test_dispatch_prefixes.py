"""The dispatcher on kept prompts: what the worker keeps and finds reaches admission, and the client."""

import pytest

from proxy.prompt_use import PromptUse, prompt_use
from shared.messages import Prefixes
from tests.proxy.dispatch_world import World, name_of

NAMES = (11, 12, 13)
PROMPT = tuple(range(1, 194))  # three blocks, and a token


@pytest.fixture
def world():
    world = World()
    come(world)
    return world


def come(world, epoch=1):
    world.come(epoch, reuse="any", shares_from=128, context_tokens=1 << 10)


def keep(world, *added, gone=()):
    world.dispatcher.keeps(Prefixes(world.link.epoch, added, gone))


def cached(world, admitted, answer=0):
    """Return how many tokens admission takes to be there."""
    return world.dispatcher.admission.state.answers[name_of(admitted, answer)].cached


def ask(world, *names, choices=1, **ticket):
    return world.admit(prompts=(PROMPT,), names=(names,) if names else (), choices=choices, **ticket)


def test_what_the_worker_keeps_is_reckoned_on_until_it_goes_or_the_worker_does(world):
    keep(world, *NAMES)
    assert cached(world, ask(world, *NAMES)) == 192
    keep(world, 21)
    assert cached(world, ask(world, 21, 22)) == 64
    keep(world, gone=(21,))
    assert cached(world, ask(world, 21, 23)) == 0
    world.die()
    come(world, 2)
    assert cached(world, ask(world, 11, 12, 33)) == 128, "of what runs, and of nothing that was kept"


def test_of_a_prompt_without_names_nothing_is_reckoned_on(world):
    keep(world, *NAMES)
    assert cached(world, ask(world)) == 0


def test_a_salt_goes_with_each_submit(world):
    ask(world, *NAMES, salt="of a key")
    ask(world, *NAMES)
    assert [submit.salt for submit in world.sent()] == ["of a key", ""]
    world.die()
    come(world, 2)
    assert [(submit.attempt, submit.salt) for submit in world.sent()] == [(2, "of a key"), (2, "")]


def test_rows_with_a_common_beginning_have_it_reserved_once(world):
    admission = world.dispatcher.admission
    ask(world, *NAMES)
    alone = admission.reserved_bytes
    ask(world, *NAMES)
    assert admission.reserved_bytes < 2 * alone - 128


# --- what the client is told --------------------------------------------------------------------------------


def test_what_the_first_share_of_an_answer_found_is_told_and_none_after_it(world):
    admitted = ask(world)
    name = name_of(admitted)
    assert prompt_use(admitted) == PromptUse(193, 0)
    world.step(prefills=[(name, 1, 0, 0.0, 128)])
    world.step(prefills=[(name, 1, 65, 65.0)])
    assert cached(world, admitted) == 128
    assert prompt_use(admitted) == PromptUse(193, 128)
    world.die()
    come(world, 2)
    world.step(prefills=[(name, 2, 0, 0.0, 192)])
    assert cached(world, admitted) == 192
    assert prompt_use(admitted) == PromptUse(193, 128), "the client was told before the worker died"


def test_nothing_found_is_found_out_too(world):
    admitted = ask(world)
    world.step(prefills=[(name_of(admitted), 1, 10, 10.0)])
    world.die()
    come(world, 2)
    world.step(prefills=[(name_of(admitted), 2, 0, 0.0, 192)])
    assert admitted.sequences[0].cached_tokens == 0


def test_a_stale_share_says_nothing(world):
    admitted = ask(world)
    world.die()
    come(world, 2)
    world.step(prefills=[(name_of(admitted), 1, 0, 0.0, 192), ("nobody", 2, 0, 0.0, 192)])
    assert admitted.sequences[0].cached_tokens is None
    assert cached(world, admitted) == 0
