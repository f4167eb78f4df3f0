"""What rows hold in common, or begin with, takes no more memory than admission counts on, at any time."""

from pathlib import Path
from typing import Any

import pytest

from proxy.admission.commons import Commons
from shared.messages import Submit
from shared.prefix_chain import keys_of, name_of, root_key
from tests.worker.beginnings_bench import BLOCK, STOP, Ids, Talk, alone, disk_tier, ids_of, reusing, turn_of
from tests.worker.workbench import GREEDY
from worker.engine import disk_beginnings, prefilling
from worker.engine.bases import Bases, Other
from worker.sequence import Sequence

ANSWER = 6


def names_of(ids: Ids) -> list[int]:
    return [name_of(key) for key in keys_of(root_key("", 0), ids[:-1])]


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("tails", [(150, 150), (200, 10), (10, 200, 90)])
def test_rows_that_begin_alike_hold_no_more_than_admission_counts_at_any_turns_end(
    tails: tuple[int, ...], is_kept: bool
) -> None:
    """Also while the first of them, whose own the beginning was, still prefills what is behind it."""
    loaded = reusing("llama")
    bench = Talk(loaded, chunk_tokens_max=2 * BLOCK)
    beginning = turn_of(1, 4 * BLOCK)
    if is_kept:
        bench.say({"before": (*beginning, 5)}, 2)
    counted = Commons(loaded.facts)
    prompts = {str(row): (*beginning, *ids_of(10 + row, tail)) for row, tail in enumerate(tails)}
    for name, prompt in prompts.items():
        counted.add(name, len(prompt) + ANSWER, names_of(prompt))
        bench.ask(name, prompt, ANSWER)
    bench.engine.limit_bytes(counted.bytes)
    while bench.held or bench.channel.incoming:
        bench.turn()
        assert bench.engine.kv_bytes <= counted.bytes
    assert bench.shared_bytes_max == len(beginning) * loaded.facts.kv_bytes_per_token
    for name, prompt in prompts.items():
        alone("llama", prompt, ANSWER).assert_same(bench.answers[name])


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_a_row_that_is_put_behind_a_base_while_it_prefills_is_answered_as_alone(family: str) -> None:
    loaded = reusing(family)
    bench = Talk(loaded, chunk_tokens_max=BLOCK // 2)
    system = turn_of(1, 2 * BLOCK)
    first = (*system, *turn_of(2, BLOCK), *turn_of(3, 3 * BLOCK))
    prompts = {
        "first": first,
        "second": (*first[: 3 * BLOCK], *ids_of(4, 9)),
        "third": (*system, *ids_of(5, 5)),
    }
    for name, prompt in prompts.items():
        bench.ask(name, prompt, ANSWER)
    bench.run()
    assert bench.engine.prefixes.shared_bytes == 0
    for name, prompt in prompts.items():
        alone(family, prompt, ANSWER).assert_same(bench.answers[name])


def test_a_row_that_leaves_while_it_prefills_behind_others_base_gives_its_bytes_back() -> None:
    bench = Talk(reusing("llama"), chunk_tokens_max=BLOCK // 2)
    beginning = turn_of(1, 2 * BLOCK)
    bench.ask("first", (*beginning, *ids_of(2, 4 * BLOCK)), ANSWER)
    bench.ask("second", (*beginning, *ids_of(3, 5)), ANSWER)
    while not bench.engine.prefixes.shared_bytes:
        bench.turn()
    bench.cancel("first")
    bench.run()
    alone("llama", (*beginning, *ids_of(3, 5)), ANSWER).assert_same(bench.answers["second"])
    assert bench.engine.prefixes.shared_bytes == 0


@pytest.mark.parametrize(
    ("family", "cached"), [("llama", 4 * BLOCK), ("qwen3_5", 4 * BLOCK), ("gemma2", BLOCK)]
)
def test_what_is_kept_isnt_copied_where_there_is_no_room_for_it_twice(
    family: str, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row begins behind it as behind a base; or, where there are none, with what there is room for."""
    loaded = reusing(family)
    before = turn_of(1, 4 * BLOCK)
    prompt = (*before, *ids_of(2, BLOCK))
    bench = Talk(loaded)
    bench.say({"before": (*before, 5)}, 2)
    budget = loaded.facts.row_bytes(len(prompt) + ANSWER) + BLOCK * loaded.facts.kv_bytes_per_token
    bench.engine.limit_bytes(budget)
    held: list[int] = []
    restore = prefilling.restore

    def watched(parts: list[object], *arguments: object, **named: object) -> None:
        restore(parts, *arguments, **named)  # type: ignore[arg-type]  # as it was called
        own = sum(int(part.nbytes) for part in parts)  # type: ignore[attr-defined]  # caches have it
        reading = bench.engine.prefixes
        held.append(own + reading.shared_bytes + reading.kept_bytes)

    monkeypatch.setattr(prefilling, "restore", watched)
    bench.say({"after": prompt}, ANSWER)
    assert bench.cached("after") == cached
    assert held
    assert max(held) <= budget
    alone(family, prompt, ANSWER).assert_same(bench.answers["after"])


def test_what_comes_from_disk_keeps_within_the_room_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And prompts are read one after the other, so that what was read of many doesn't pile up."""
    loaded = reusing("llama")
    prompts = {str(n): (*turn_of(n, 3 * BLOCK), *ids_of(9 + n, 8)) for n in range(4)}
    with disk_tier(tmp_path, loaded) as tier:
        Talk(loaded, tier=tier).say(prompts, ANSWER)
        assert tier.drain()
    monkeypatch.setattr(disk_beginnings, "_AWAITED_BYTES", 1)
    with disk_tier(tmp_path, loaded) as tier:
        budget = 2 * loaded.facts.row_bytes(4 * BLOCK)
        bench = Talk(loaded, tier=tier, kv_bytes_max=budget)
        disk = bench.engine._beginnings._disk
        assert disk is not None
        for name, prompt in prompts.items():
            bench.ask(name, prompt, ANSWER)
        while bench.held or bench.channel.incoming:
            bench.turn()
            assert len(disk._awaited) <= 1
        assert bench.cached("0") == 3 * BLOCK
        assert bench.engine.prefixes.kept_bytes <= budget
    for name, prompt in prompts.items():
        alone("llama", prompt, ANSWER).assert_same(bench.answers[name])


@pytest.mark.parametrize(("turn_ends_at", "end"), [(None, 288), (260, 256), (300, 288), (320, 288)])
def test_a_base_ends_within_what_names_tell_admission_of(turn_ends_at: int | None, end: int) -> None:
    """A row whose last id is prefilled has one token more than its blocks' names: it may fill a block."""
    text = list(ids_of(1, 5 * BLOCK))
    if turn_ends_at is not None:
        text[turn_ends_at - 1] = STOP
    facts = reusing("llama").facts
    nothing: Any = None  # is stored here
    bases = Bases(facts, nothing, nothing)
    whole, longer = sequence_of("whole", tuple(text)), sequence_of("longer", (*text, *ids_of(2, 9)))
    other = Other(whole, computed=len(text), base_tokens=0, source=None)
    assert bases.closest(longer, [other]) == (other, 4 * BLOCK)
    assert bases._further(longer, other, 4 * BLOCK) == end


def sequence_of(name: str, ids: Ids) -> Sequence:
    return Sequence.of(Submit(0, name, 1, ids, (), 9, (STOP,), GREEDY, 0, 1.0), 0.0)
