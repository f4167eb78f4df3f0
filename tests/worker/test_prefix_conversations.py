"""Conversations that branch, in any order and company: with a store each answers as it does without one."""

import functools
import random
from dataclasses import dataclass
from typing import Final

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.worker.beginnings_bench import BLOCK, STOP, Ids, Talk, ids_of, reusing, turn_of
from tests.worker.tiny_families import EVERY_FAMILY
from tests.worker.tiny_models import greedy_alone
from tests.worker.workbench import PLENTY
from worker.engine.model import LoadedModel
from worker.plan import CHUNK_TOKENS_MAX

# They differ in what can be used again, and how; the last one quantises what it keeps.
FAMILIES: Final = ("llama", "qwen3_5", "gemma3_text", "quantised")
ANSWER: Final = 8
_BEGINNINGS: Final = (turn_of(1, BLOCK + 5), turn_of(2, 2 * BLOCK), ids_of(3, 10))


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, made of an earlier one's prompt and its answer, `turns_before` turns after the one before.

    `change` says how: as it was, another turn behind it, one token less, one changed in its middle, only its
    beginning with something else, or nothing of it.
    """

    of: int
    change: str
    salt: str
    turns_before: int
    cut_after: int | None


CHANGES: Final = ("same", "next", "next", "less", "edit", "branch", "clear")
asks: Final = st.builds(
    Ask,
    of=st.integers(0, 9),
    change=st.sampled_from(CHANGES),
    salt=st.sampled_from(("", "", "", "a")),
    turns_before=st.sampled_from((0, 0, 0, 1, 3, 12, 40)),
    cut_after=st.none() | st.integers(0, 12),
)


@dataclass(frozen=True, slots=True)
class Setup:
    slots: int
    chunk_tokens_max: int
    kept_tokens: int
    kv_tokens: int


setups: Final = st.builds(
    Setup,
    slots=st.integers(2, 6),
    chunk_tokens_max=st.sampled_from((CHUNK_TOKENS_MAX, 30, BLOCK)),
    kept_tokens=st.sampled_from((0, 100, 500, 5000)),
    kv_tokens=st.sampled_from((0, 800, PLENTY)),
)


def model(name: str) -> LoadedModel:
    # The narrowest heads whose keys and values can be quantised.
    return reusing("llama", kv_bits=8, head_dim=32) if name == "quantised" else reusing(name)


@functools.cache
def expected(name: str, prompt: Ids) -> tuple[int, ...]:
    """Return what a prompt is answered alone: by mlx-lm, or quantised by an engine that keeps nothing."""
    loaded = model(name)
    if name != "quantised":
        return tuple(greedy_alone(loaded.model, prompt, ANSWER).tokens)
    return tuple(Talk(loaded, kept_bytes_max=0).answer(prompt, ANSWER))


def prompts_of(name: str, asked: list[Ask]) -> list[Ids]:
    """Return the prompts that are asked: each made of one before it, or of a beginning."""
    prompts: list[Ids] = []
    for number, ask in enumerate(asked):
        old = prompts[ask.of % len(prompts)] if prompts else _BEGINNINGS[ask.of % 3] + turn_of(9, 7)
        new = turn_of(100 + number, 5 + 11 * (number % 4))
        match ask.change:
            case "next" if len(old) < 350:
                prompts.append((*old, *expected(name, old), STOP, *new))
            case "less":
                prompts.append(old[:-1])
            case "edit":
                place = random.Random(number).randrange(len(old))
                prompts.append((*old[:place], 3 + (old[place] + 7) % 290, *old[place + 1 :]))
            case "branch":
                prompts.append((*old[: len(old) * 2 // 3], *new))
            case "clear":
                prompts.append((*_BEGINNINGS[ask.of % 3], *new))
            case _:
                prompts.append(old)
    return prompts


def carry_out(bench: Talk, asked: list[Ask], prompts: list[Ids]) -> None:
    """Ask all; a cut one is taken out after some turns, and goes on with what it had said."""
    cuts: dict[int, str] = {}
    turn = 0

    def one_turn() -> None:
        nonlocal turn
        bench.turn()
        turn += 1
        dropped = bench.drop(cuts.pop(turn)) if turn in cuts else None
        if dropped is not None:
            bench.turn()
            bench.resume(dropped)

    for number, ask in enumerate(asked):
        for _ in range(ask.turns_before):
            one_turn()
        bench.ask(str(number), prompts[number], ANSWER, salt=ask.salt)
        if ask.cut_after is not None:
            cuts.setdefault(turn + 1 + ask.cut_after, str(number))
    while any(due > turn for due in cuts):
        one_turn()
    bench.run()


def check(name: str, loaded: LoadedModel, asked: list[Ask], setup: Setup) -> None:
    token_bytes = loaded.facts.row_bytes(1000) // 1000
    bench = Talk(
        loaded,
        slots=setup.slots,
        chunk_tokens_max=setup.chunk_tokens_max,
        kept_bytes_max=setup.kept_tokens * token_bytes,
        kv_bytes_max=setup.kv_tokens * token_bytes,
    )
    prompts = prompts_of(name, asked)
    carry_out(bench, asked, prompts)
    reading = bench.engine.prefixes
    assert (bench.engine.kv_bytes, reading.shared_bytes) == (0, 0)
    assert reading.kept_bytes <= min(setup.kept_tokens, setup.kv_tokens) * token_bytes
    for number, prompt in enumerate(prompts):
        answer = list(expected(name, prompt))
        answer = answer[: answer.index(STOP)] if STOP in answer else answer
        if bench.answers[str(number)] != answer:  # two tokens may be equally likely, as mlx-lm's numbers tell
            assert name != "quantised", (number, prompt, bench.answers[str(number)], answer)
            greedy_alone(loaded.model, prompt, ANSWER).assert_same(bench.answers[str(number)])


@pytest.mark.parametrize("name", [*FAMILIES, *(each for each in EVERY_FAMILY if each not in FAMILIES)])
def test_conversations_that_branch_are_answered_as_without_a_store(name: str, all_families: bool) -> None:
    if name not in FAMILIES and not all_families:
        pytest.skip("takes minutes with all of them: --all-families")
    loaded = model(name)

    @seed(6)
    @settings(max_examples=60 if all_families else 4, deadline=None, database=None)
    @given(asked=st.lists(asks, min_size=3, max_size=9), setup=setups)
    def holds(asked: list[Ask], setup: Setup) -> None:
        check(name, loaded, asked, setup)

    holds()
