"""Every figure of ops/capacity.md is what `forebay plan` reckons today."""

import functools
import sys
from pathlib import Path
from typing import Any

import pytest

from ops.plan.machine import mac_of
from ops.plan.reckoning import Reckoning
from ops.plan.sizes import in_words
from shared.limits import GIB, KIB
from shared.model_facts import ModelFacts, room_tokens
from tests.plan import published
from worker.engine.estimate import Estimate, estimate
from worker.engine.estimate_build import Told

DOCUMENT = Path(__file__).parents[2] / "ops" / "capacity.md"
MODELS: dict[str, dict[str, Any]] = {
    "Llama 3.1 8B, bf16": published.LLAMA_8B,
    "Llama 3.1 8B, 4-bit": published.LLAMA_8B_4BIT,
    "gpt-oss 20B, mxfp4": published.GPT_OSS_20B,
    "Gemma 3 27B, bf16": published.GEMMA3_27B,
    "Qwen3 Next 80B, bf16": published.QWEN3_NEXT_80B,
    "DeepSeek V3, bf16": published.DEEPSEEK_V3,
}
MACS = (16, 24, 32, 36, 48, 64, 96, 128)
CONTEXTS = (4, 8, 32, 64, 128)


@functools.cache
def facts_of(name: str, kv_bits: int = 0) -> ModelFacts:
    return estimate(Told(MODELS[name], name), kv_bits, with_passes=False).facts


@functools.cache
def on_metal(kv_bits: int) -> Estimate:
    told = Told(published.LLAMA_8B_4BIT, "Llama")
    return estimate(told, kv_bits, share_tokens=256, as_metal=True)


def reckoning(memory_gib: int, kv_bits: int = 0) -> Reckoning:
    return Reckoning(on_metal(kv_bits), mac_of(memory_gib * GIB), 0.8)


def gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.1f}"


def model_row(name: str) -> str:
    facts = facts_of(name)
    window = facts.window_tokens * facts.window_bytes_per_token
    cells = (
        *(name, in_words(facts.weights_bytes), in_words(facts.kv_bytes_per_token)),
        *(
            in_words(window) if window else "none",
            in_words(facts.fixed_bytes_per_row) if facts.fixed_bytes_per_row else "none",
        ),
        *(in_words(facts.row_bytes(context * KIB)) for context in (8, 64)),
    )
    return f"| {' | '.join(cells)} |"


def mac_row(size: int) -> str:
    plain, packed = reckoning(size), reckoning(size, 8)
    counts = [
        f"{plain.most_streams(context * KIB)} / {packed.most_streams(context * KIB)}" for context in CONTEXTS
    ]
    return f"| {size} GB | {gib(plain.limit_bytes)} | {' | '.join(counts)} |"


def example() -> list[str]:
    """Return the lines of the worked example: a 4-bit Llama 8B on a Mac of 64 GB, streams of 32k."""
    on_64 = reckoning(64)
    context = 32 * KIB
    streams = on_64.most_streams(context)
    reserve_bytes, budget = on_64.budget(streams, context)
    weights, row = on_64.model.facts.weights_bytes, on_64.model.facts.row_bytes(context)
    usable = on_64.target.device.usable_bytes
    return [
        f"working set     3/4 x 64 GiB                = {gib(usable)} GiB",
        f"worker          0.8 x {gib(usable)}                  = {gib(on_64.limit_bytes)}",
        (
            f"KV budget       {gib(on_64.limit_bytes)} - {gib(weights)} - {gib(reserve_bytes)}            "
            f"= {gib(budget.kv_bytes)}"
        ),
        f"a stream        128 KiB x {room_tokens(context, 32)}             = {row / GIB:.3f}",
        f"streams         {gib(budget.kv_bytes)} / {row / GIB:.3f}                = {streams}",
    ]


def slots_figures() -> list[str]:
    on_64 = reckoning(64)
    few, many = (on_64.budget(streams, 4 * KIB)[0] for streams in (16, 256))
    return [f"{gib(few)} GiB with 16 slots", f"{gib(many)} GiB with 256"]


def token_figures() -> list[str]:
    plain, bits8, bits4 = (facts_of("Llama 3.1 8B, bf16", bits) for bits in (0, 8, 4))
    return [
        f"32 x 2 x 8 x 128 x 2 bytes = {plain.kv_bytes_per_token // KIB} KiB",
        f"{bits8.kv_bytes_per_token // KIB} KiB with `kv_bits = 8`",
        f"{bits4.kv_bytes_per_token // KIB} KiB with `kv_bits = 4`",
    ]


def hybrid_figures() -> list[str]:
    facts = estimate(Told(published.HYBRID_64_LAYERS, "hybrid"), with_passes=False).facts
    tokens = facts.kv_bytes_per_token * 64 * KIB
    return [
        f"16 x 4 KiB = {facts.kv_bytes_per_token // KIB} KiB a token",
        f"{tokens // GIB} GiB for a stream of 64k",
        f"{in_words(facts.fixed_bytes_per_row)} of state",
    ]


def figures() -> list[str]:
    lines = [*map(model_row, MODELS), *map(mac_row, MACS), *example()]
    return [*lines, *slots_figures(), *token_figures(), *hybrid_figures()]


def test_every_figure_of_the_document_is_what_is_reckoned() -> None:
    text = DOCUMENT.read_text("utf-8")
    missing = [figure for figure in figures() if figure not in text]
    assert not missing, "\n".join(["ops/capacity.md should say:", *missing])


def test_the_document_has_no_row_of_figures_that_nobody_reckons() -> None:
    reckoned = figures()
    rows = [
        line
        for line in DOCUMENT.read_text("utf-8").splitlines()
        if line.startswith("| ") and any(letter.isdigit() for letter in line) and "GiB" in line + " GiB"
    ]
    settings = [row for row in rows if "`" in row]
    headings = [row for row in rows if "memory" in row or "model" in row]
    assert set(rows) - set(settings) - set(headings) <= set(reckoned)


@pytest.mark.parametrize("word", ["not measured", "computed"])
def test_the_document_says_what_nobody_has_measured(word: str) -> None:
    assert word in DOCUMENT.read_text("utf-8")


if __name__ == "__main__":
    sys.stdout.write("\n".join(figures()) + "\n")
