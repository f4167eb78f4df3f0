"""What is planned of a model is what the worker measures of it: tiny families, and the demo model."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from ops.plan.source import find, of_folder
from shared.model_facts import ModelFacts
from tests.worker.tiny_families import EVERY_FAMILY
from tests.worker.tiny_models import build, save, tiny
from worker.engine.estimate import Estimate, estimate
from worker.engine.estimate_build import Told
from worker.engine.estimate_graph import Passes, passing_bytes
from worker.engine.model import WARM_UP_TOKENS, _prefill, load
from worker.engine.probes import Prober
from worker.engine.row_caches import RowCosts, row_costs

# What is tried, or comes from a folder's own files.
_TRIED = {"fingerprint": "", "reuse": "none", "why_not_shared": "", "shares_from": 0}


def planned(config: dict[str, Any], folder: Path | None = None, kv_bits: int = 0) -> Estimate:
    return estimate(Told(config, "tiny", None, folder), kv_bits, with_passes=False)


def known(facts: ModelFacts) -> ModelFacts:
    return dataclasses.replace(facts, **_TRIED)


@pytest.mark.parametrize("family", ["llama", "baichuan_m1"])
def test_a_familys_facts_are_those_that_the_worker_measures(family: str) -> None:
    _model, config = build(family)
    found = planned({**config, "torch_dtype": "float32"})
    assert known(found.facts) == known(tiny(family).facts)
    assert found.weights_from == "config.json"


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_every_familys_caches_take_the_bytes_that_are_planned(family: str) -> None:
    model, config = build(family)
    facts = planned({**config, "torch_dtype": "float32"}).facts
    assert facts.weights_bytes == sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    mx.eval(model.parameters())
    caches = _prefill(model, WARM_UP_TOKENS, 0)
    model(mx.array([[1]]), cache=caches)
    mx.eval([cache.state for cache in caches])
    measured = row_costs(caches, WARM_UP_TOKENS + 1, lambda tokens: _prefill(model, tokens, 0))
    assert measured == RowCosts(
        facts.kv_bytes_per_token,
        facts.window_tokens,
        facts.window_bytes_per_token,
        facts.fixed_bytes_per_row,
    )
    assert sum(cache.nbytes for cache in caches) > 0


def test_quantised_caches_are_planned_as_the_worker_measures_them(tmp_path: Path) -> None:
    folder = save(tmp_path, "llama", head_dim=64)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    facts = load(folder, None, lambda: None, 8).facts
    assert facts.kv_bits == 8
    assert known(planned({**config, "torch_dtype": "float32"}, kv_bits=8).facts) == known(facts)


def test_of_a_folder_with_weights_only_the_headers_are_read(tmp_path: Path) -> None:
    """The config names another type than the files have, and files count."""
    save(tmp_path, "llama")
    source = of_folder(tmp_path, "tiny")
    assert source.folder == str(tmp_path)
    found = planned({**source.config, "torch_dtype": "bfloat16"}, tmp_path)
    assert found.weights_from == "the headers of its files"
    assert known(found.facts) == known(tiny("llama").facts)


def test_the_demo_models_figures_are_those_of_its_files() -> None:
    """30 layers of 3 heads, keys and values 64 wide, in float32."""
    source = find("demo", Path("~/.forebay").expanduser())
    assert source.folder is not None
    folder = Path(source.folder)
    facts = planned(source.config, folder).facts
    assert facts.weights_bytes == 538_060_032
    assert facts.kv_bytes_per_token == 30 * 3 * (64 + 64) * 4 == 46_080
    assert facts == planned(source.config).facts


@pytest.mark.parametrize(("tokens", "context"), [(64, 0), (16, 512), (256, 256)])
def test_a_pass_takes_no_more_than_its_graph_says_twice_over(tokens: int, context: int) -> None:
    """And no less than a third of that: a plan that sets everything aside would be none."""
    model, _config = build("llama", hidden_size=128, intermediate_size=384, head_dim=32)
    mx.eval(model.parameters())

    def new_caches(_tokens: int) -> list[Any]:
        caches = make_prompt_cache(model)
        for cache in caches:
            cache.step = 512
        return list(caches)

    prober = Prober(model, new_caches, lambda: None)
    prober.measure(tokens, context)
    measured = prober.measure(tokens, context)
    assert measured is not None
    nodes = Passes(model, new_caches).graph(tokens, context)
    assert nodes is not None
    foreseen = 2 * passing_bytes(nodes)
    assert measured <= 1.15 * foreseen
    assert measured >= foreseen / 4
