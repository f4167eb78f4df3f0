"""Every kind of family, whatever is kept of its prompts and however it is found: it answers as alone.

One short conversation for a family of each kind, or with `--all-families` for every one. Longer ones, in any
order, are in test_prefix_conversations.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.worker.beginnings_bench import BLOCK, STOP, Ids, Talk, alone, disk_tier, ids_of, reusing, turn_of
from tests.worker.test_families_loaded import MUST_SHARE, TO_THE_TOKEN

ANSWER: Final = 6
SYSTEM: Final = turn_of(1, BLOCK + 10)
# A conversation that several go on from, in different ways.
TALK: Final = (*SYSTEM, *turn_of(2, BLOCK + 30))


def check(family: str, prompts: Mapping[str, Ids], answers: Mapping[str, list[int]]) -> None:
    """Compare answers with those that each prompt gets alone; one that ends with STOP is shorter."""
    for name, prompt in prompts.items():
        alone(family, prompt, ANSWER).assert_same(answers[name])


def together() -> dict[str, Ids]:
    """Return prompts that begin alike at two levels, whose ends are of similar and of other lengths."""
    return {
        "talk-0": (*TALK, *turn_of(10, 5)),
        "talk-1": (*TALK, *turn_of(11, 30)),
        "talk-2": (*TALK, *turn_of(12, 31)),
        "system-0": (*SYSTEM, *turn_of(13, 9)),
        "system-1": (*SYSTEM, *turn_of(14, 80)),
        "other": turn_of(15, BLOCK + 3),
    }


def test_prompts_that_begin_alike_are_answered_as_alone(one_family: str) -> None:
    """All come at once to an empty store; then again, beside what goes on from them, in another order."""
    loaded = reusing(one_family)
    bench = Talk(loaded)
    prompts = together()
    answers = bench.say(prompts, ANSWER)
    check(one_family, prompts, answers)
    if one_family in MUST_SHARE:
        assert bench.shared_bytes_max >= BLOCK * loaded.facts.kv_bytes_per_token > 0
    first = prompts["talk-0"]
    next_turn = (*first, *answers["talk-0"], STOP, *turn_of(20, 8))
    again = {
        "next": next_turn,
        "same": first,
        "one less": first[:-1],
        "edited": (*first[: BLOCK + 3], 5, *first[BLOCK + 4 :]),
        "one more": (*first, *ids_of(21, 1)),
    }
    check(one_family, again, bench.say(again, ANSWER))
    if loaded.facts.reuse != "none":
        assert bench.cached("same") == len(first) - 1
        assert bench.cached("next") >= len(first) - 1
    # Alone, beside nobody: what is kept is copied into its own caches.
    solo = {"last": (*next_turn, *turn_of(22, 4))}
    check(one_family, solo, bench.say(solo, ANSWER))
    if one_family in TO_THE_TOKEN:
        assert bench.cached("one less") == len(first) - 2
        assert bench.cached("edited") == BLOCK + 3
        assert bench.cached("last") >= len(next_turn)


def test_what_is_given_up_in_the_middle_or_comes_from_disk_changes_no_answer(
    one_family: str, tmp_path: Path
) -> None:
    """Rows are taken out while some are shared; a new engine goes on with them from what the disk has."""
    loaded = reusing(one_family)
    prompts = {name: prompt for name, prompt in together().items() if name != "other"}
    with disk_tier(tmp_path, loaded) as tier:
        bench = Talk(loaded, tier=tier, chunk_tokens_max=BLOCK // 2)
        for name, prompt in prompts.items():
            bench.ask(name, prompt, ANSWER)
        while not all(len(bench.answers[name]) >= 2 for name in bench.held):
            bench.turn()
        bench.engine.limit_prefixes(keeps=False)
        bench.turn()
        bench.engine.limit_prefixes(keeps=True)
        left = dict(bench.held)
        dropped = [bench.drop(name) for name in left]
        bench.run()
        assert tier.drain()
    with disk_tier(tmp_path, loaded) as tier:
        reborn = Talk(loaded, tier=tier, kept_bytes_max=20_000)
        reborn.answers |= {name: bench.answers[name] for name in left}
        for each in dropped:
            assert each is not None
            reborn.resume(each)
        reborn.run()
        check(one_family, {name: prompts[name] for name in left}, reborn.answers)
        assert tier.drain()
        if loaded.facts.reuse != "none":
            assert reborn.engine.prefixes.disk_reads > 0
            assert reborn.cached("talk-2") >= 2 * BLOCK
        assert reborn.engine.prefixes.disk_bad == 0
