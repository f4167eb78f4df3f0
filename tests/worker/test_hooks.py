"""Grouped attention in a model's place for it: mlx-lm's modules stay as they are, and so do other models."""

import importlib
import sys
import types
from typing import Any, Final

import mlx.core as mx
import pytest
from mlx.nn.layers.base import Module
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import CacheList, KVCache, make_prompt_cache

from tests.worker.tiny_models import build, greedy_alone, load_saved, save, tiny
from tests.worker.workbench import Workbench
from worker.engine.hooks import Hooks, callers, hookable, restore
from worker.engine.layers import GroupedCache, attend

PROMPT: Final = (1, 2, 3, 4, 5)


def classes_of(model: Any) -> list[type]:
    return [type(module) for _name, module in model.named_modules()]


def everything_in_mlx_lm() -> dict[str, Any]:
    """Return all that stands in mlx-lm's modules, and in the classes that these define, by its full name."""
    found: dict[str, Any] = {}
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] not in ("mlx_lm", "mlx") or not isinstance(module, types.ModuleType):
            continue
        for key, value in vars(module).items():
            found[f"{name}.{key}"] = value
            if isinstance(value, type) and value.__module__ == name:
                found |= {f"{name}.{key}.{member}": each for member, each in vars(value).items()}
    return found


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "deepseek_v3", "qwen3_5", "baichuan_m1"])
def test_mlx_lm_is_the_same_before_a_model_is_loaded_and_after_it_has_answered(
    family: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = save(tmp_path_factory.mktemp(family), family)
    before = everything_in_mlx_lm()
    assert f"mlx_lm.models.{family}.Model.__call__" in before
    bench = Workbench(load_saved(folder))
    bench.submit("a", PROMPT, 3)
    bench.submit("b", PROMPT[:2], 3)
    bench.run()
    after = everything_in_mlx_lm()
    assert [name for name in before if after.get(name) is not before[name]] == []


@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "baichuan_m1"])
def test_a_model_is_hooked_and_split_and_as_it_was_when_that_is_taken_back(family: str) -> None:
    model, _ = build(family)
    before = classes_of(model)
    caches = list(make_prompt_cache(model))
    hooks = Hooks()
    hooks.hook(hookable(model))
    hooks.split(callers(caches, lambda: mx.eval(model(mx.array([PROMPT]), cache=caches))))
    assert classes_of(model) != before
    hooks.remove()
    assert classes_of(model) == before


def test_a_model_is_made_as_it_was_whoever_has_changed_it() -> None:
    model, _ = build("llama")
    before = classes_of(model)
    for _ in range(2):
        Hooks().hook(hookable(model))
    restore(model)
    assert classes_of(model) == before


def test_two_models_of_one_family_are_changed_independently() -> None:
    changed, other = build("llama")[0], build("llama")[0]
    hooks = Hooks()
    hooks.hook(hookable(changed))
    plain = importlib.import_module("mlx_lm.models.llama").Attention
    assert {type(layer.self_attn) for layer in other.layers} == {plain}
    assert all(type(layer.self_attn) is not plain for layer in changed.layers)
    assert all(isinstance(layer.self_attn, plain) for layer in changed.layers)


def test_two_models_in_one_process_answer_each_for_itself() -> None:
    benches = {family: Workbench(tiny(family), slots=3) for family in ("llama", "qwen3", "mamba2")}
    for bench in benches.values():
        bench.submit("long", PROMPT * 8, 9)
        bench.submit("short", PROMPT, 9)
    for _ in range(20):
        for bench in benches.values():
            bench.turn()
    for family, bench in benches.items():
        bench.run()
        greedy_alone(tiny(family).model, PROMPT * 8, 9).assert_same(bench.answers["long"])
        greedy_alone(tiny(family).model, PROMPT, 9).assert_same(bench.answers["short"])


def test_weights_are_found_by_the_same_names_in_a_hooked_model() -> None:
    model, _ = build("llama")
    names = [name for name, _module in model.named_modules()]
    weights = dict(model.parameters())
    Hooks().hook(hookable(model))
    assert [name for name, _module in model.named_modules()] == names
    assert dict(model.parameters()).keys() == weights.keys()


def test_a_model_that_is_hooked_does_alone_what_it_did() -> None:
    model, _ = build("llama")
    before = greedy_alone(model, PROMPT, 9).tokens
    Hooks().hook(hookable(model))
    assert greedy_alone(model, PROMPT, 9).tokens == before


# --- functions ----------------------------------------------------------------------------------------------


class Base(Module):
    def __call__(self, x: mx.array, cache: Any = None) -> mx.array:
        keys, values = cache.update_and_fetch(x, x)
        return scaled_dot_product_attention(x, keys, values, cache=cache, scale=self.scale(), mask=None)

    def scale(self) -> float:
        return 1.0

    def other(self) -> str:
        return "untouched"


def has_a_closure(scale: float) -> type[Module]:
    """Make a class whose call has defaults by place and by name, variables of ours, and super()."""

    class Closed(Base):
        def __call__(self, x: mx.array, cache: Any = None, times: int = 2, *, more: float = 0.5) -> mx.array:
            if cache is None:
                return scaled_dot_product_attention(x, x, x, cache=None, scale=scale, mask=None)
            return times * super().__call__(x, cache) + more

    return Closed


def test_hooked_functions_keep_their_defaults_closures_and_super() -> None:
    plain, hooked = has_a_closure(0.7)(), has_a_closure(0.7)()
    Hooks().hook(hookable(hooked))
    before, after = type(plain).__call__, type(hooked).__call__
    assert after is not before
    assert (after.__name__, after.__defaults__, after.__kwdefaults__) == (
        before.__name__,
        before.__defaults__,
        before.__kwdefaults__,
    )
    x = mx.random.normal((1, 1, 4, 8), key=mx.random.key(1))
    for arguments, named in [((), {}), ((None, 3), {}), ((), {"more": 2.0})]:
        assert mx.array_equal(hooked(x, *arguments, **named), plain(x, *arguments, **named)).item()
    assert mx.array_equal(hooked(x, KVCache(), 3, more=2.0), plain(x, KVCache(), 3, more=2.0)).item()


def test_only_functions_that_name_attention_are_changed() -> None:
    module = Base()
    Hooks().hook(hookable(module))
    assert set(vars(type(module))) - {"__module__", "__doc__", "__qualname__", "changed_from"} == {"__call__"}
    assert (module.other(), module.scale()) == ("untouched", 1.0)


class Silent(Base):
    def __call__(self, x: mx.array, cache: Any = None) -> mx.array:
        return x


def calls_another_attention() -> type[Module]:
    """Make a class whose call has the name as an attribute only, as functions of other modules may."""
    names: dict[str, Any] = {"mx": mx}
    lines = (
        "def call(self, x, cache=None):\n    return mx.fast.scaled_dot_product_attention(x, x, x, scale=1.0)"
    )
    exec(lines, names)
    return type("Fast", (Base,), {"__call__": names["call"]})


@pytest.mark.parametrize("kind", [calls_another_attention(), Silent, Module])
def test_a_class_that_does_without_the_name_is_not_hooked_for_its_bases_sake(kind: type[Module]) -> None:
    assert hookable(kind()) == []


def test_attention_on_other_caches_is_the_originals() -> None:
    calls: list[tuple[Any, ...]] = []
    marker = object()

    def original(*arguments: Any, **named: Any) -> object:
        calls.append((*arguments, named))
        return marker

    assert attend(original)("q", "k", "v", "c", scale=1.0, mask="causal", sinks=None) is marker
    assert calls == [("q", "k", "v", "c", {"scale": 1.0, "mask": "causal", "sinks": None})]


def test_attention_on_parts_of_what_a_cache_returned_is_refused() -> None:
    token: Any = GroupedCache.__new__(GroupedCache)
    attention = attend(lambda *_arguments, **_named: None)
    with pytest.raises(TypeError, match="than its cache returned"):
        attention(mx.zeros(1), token, mx.zeros(1), token, scale=1.0, mask=None)
    with pytest.raises(TypeError, match="than its cache returned"):
        attention(mx.zeros(1), token, token, token, scale=1.0, mask=mx.zeros(1))


# --- who writes ---------------------------------------------------------------------------------------------


class Inner(Module):
    def __call__(self, x: mx.array, cache: Any) -> mx.array:
        return cache.update_and_fetch(x, x)[0]


class Outer(Module):
    """Writes a cache itself, and has a module inside that writes another."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def __call__(self, x: mx.array, cache: Any) -> mx.array:
        return self.inner(x, cache[0]) + cache[1].update_and_fetch(x, x)[0]


def test_of_modules_that_write_keys_and_values_the_outermost_is_found() -> None:
    outer, lone, caches = Outer(), Inner(), [CacheList(KVCache(), KVCache()), KVCache()]
    x = mx.zeros((1, 1, 1, 4))

    def run() -> None:
        outer(x, caches[0])
        lone(x, caches[1])

    assert callers(caches, run) == [outer, lone]
    assert all("update_and_fetch" not in vars(part) for part in (*caches[0].caches, caches[1]))


def test_caches_are_left_alone_though_the_run_breaks() -> None:
    cache = KVCache()

    def run() -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        callers([cache], run)
    assert "update_and_fetch" not in vars(cache)
