"""How a model's rows can decode side by side is found by trying, whatever its code claims."""

from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.base import create_attention_mask, scaled_dot_product_attention
from mlx_lm.models.cache import CacheList, ConcatenateKVCache, KVCache, RotatingKVCache

from shared.errors import ModelError
from shared.model_folder import ModelFolder
from tests.worker.tiny_models import load_saved, save, tiny
from tests.worker.workbench import Workbench
from worker.engine import model as worker_model
from worker.engine import trial
from worker.engine.beginnings_trial import BeginningsTrial
from worker.engine.hooks import Way
from worker.engine.model import LoadedModel, warm_up
from worker.engine.trial import Together, Trial

WIDTH: Final = 16
HEADS: Final = 2
VOCABULARY: Final = 30


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stubs below don't look at how many slots a group has."""
    monkeypatch.setattr(trial, "_SPLITS", frozenset({__name__}))


class Attention(nn.Module):
    """Does as mlx-lm's families do: positions by the cache's offset, and attention by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, 3 * WIDTH, bias=False)

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        x = x + self.positions(cache.offset, x.shape[1])
        rows, tokens, _ = x.shape
        heads = (each.reshape(rows, tokens, HEADS, -1).swapaxes(1, 2) for each in self.mix(x).split(3, -1))
        queries, keys, values = heads
        keys, values = cache.update_and_fetch(keys, values)
        return self.weigh(queries, keys, values, cache, mask).swapaxes(1, 2).reshape(rows, tokens, -1)

    def positions(self, offset: Any, tokens: int) -> mx.array:
        places = mx.array(offset).reshape(-1, 1) + mx.arange(tokens)
        return mx.sin(places[..., None] * mx.arange(1, WIDTH + 1) / 3)

    def weigh(self, queries: mx.array, keys: Any, values: Any, cache: Any, mask: Any) -> mx.array:
        return scaled_dot_product_attention(queries, keys, values, cache=cache, scale=1.0, mask=mask)


class ByHand(Attention):
    """Needs keys and values as arrays."""

    def weigh(self, queries: mx.array, keys: Any, values: Any, cache: Any, mask: Any) -> mx.array:
        scores = queries @ keys.swapaxes(-1, -2)
        if isinstance(mask, str):
            mask = mx.arange(keys.shape[2]) <= mx.arange(keys.shape[2])[-queries.shape[2] :, None]
        if mask is not None:
            scores = mx.where(mask, scores, -mx.inf)
        return mx.softmax(scores, axis=-1) @ values


class Counts(ByHand):
    """Needs a plain number as offset, and keys and values as arrays."""

    def positions(self, offset: Any, tokens: int) -> mx.array:
        return super().positions(len(range(offset)), tokens)


class SeesAll(ByHand):
    """Looks at all that is stored when it decodes, whatever its mask hides."""

    def weigh(self, queries: mx.array, keys: Any, values: Any, cache: Any, mask: Any) -> mx.array:
        return super().weigh(queries, keys, values, cache, None if queries.shape[2] == 1 else mask)


class SumsAll(ByHand):
    """Weighs without a softmax, whatever its mask hides: nothing is seen of places where zeros stand."""

    def weigh(self, queries: mx.array, keys: Any, values: Any, cache: Any, mask: Any) -> mx.array:
        if queries.shape[2] > 1:
            return super().weigh(queries, keys, values, cache, mask)
        return (queries @ keys.swapaxes(-1, -2)) @ values / 9


class TellsHooksApart(Attention):
    """Does something else as soon as its class isn't its own."""

    def positions(self, offset: Any, tokens: int) -> mx.array:
        return super().positions(offset, tokens) * (1.0 if type(self) is TellsHooksApart else 2.0)


class Stub(nn.Module):
    """A model of two layers of such attention."""

    def __init__(self, attention: type[Attention] = Attention, cache: Any = KVCache) -> None:
        super().__init__()
        self._cache = cache
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.embed.weight = mx.random.normal((VOCABULARY, WIDTH), key=mx.random.key(2))
        self.layers = [attention() for _ in range(2)]
        for number, layer in enumerate(self.layers):
            layer.mix.weight = mx.random.normal(layer.mix.weight.shape, key=mx.random.key(number)) / 3

    def __call__(self, ids: mx.array, cache: list[Any]) -> mx.array:
        hidden = self.before(self.embed(ids), cache)
        mask = self.mask(hidden, cache[0])
        for layer, own in zip(self.layers, cache, strict=True):
            hidden = hidden + layer(hidden, mask, cache=own)
        return self.embed.as_linear(hidden)

    def before(self, hidden: mx.array, _cache: list[Any]) -> mx.array:
        return hidden

    def mask(self, hidden: mx.array, cache: Any) -> Any:
        return create_attention_mask(hidden, cache)

    def make_cache(self) -> list[Any]:
        return [self._cache() for _ in self.layers]


class MakesItsMask(Stub):
    """Makes a mask itself, for one length."""

    def __init__(self) -> None:
        super().__init__(ByHand)

    def mask(self, hidden: mx.array, cache: Any) -> mx.array:
        places = mx.array(cache.offset).max() + mx.arange(hidden.shape[1])
        return mx.arange(int(places[-1].item()) + 1) <= places[:, None]


class MixesRows(Stub):
    def before(self, hidden: mx.array, _cache: list[Any]) -> mx.array:
        return hidden + hidden.mean(axis=0, keepdims=True)


class TakesTheLongestOffset(Stub):
    def before(self, hidden: mx.array, cache: list[Any]) -> mx.array:
        return hidden * (1 + mx.array(cache[0].offset).max() / 9)


class BreaksBesideOthers(Stub):
    def before(self, hidden: mx.array, _cache: list[Any]) -> mx.array:
        return hidden.reshape(1, -1, WIDTH)


class InsistsOnOneRow(Stub):
    def before(self, hidden: mx.array, _cache: list[Any]) -> mx.array:
        assert hidden.shape[0] == 1, "only one is supported"
        return hidden


class GivesNoNumbers(Stub):
    def before(self, hidden: mx.array, _cache: list[Any]) -> mx.array:
        return hidden if hidden.shape[0] == 1 else hidden * mx.nan


class LooksAhead(Stub):
    """Sees the whole chunk, and so what a prompt is padded with; nothing of it when it decodes."""

    def before(self, hidden: mx.array, _cache: list[Any]) -> mx.array:
        return hidden + hidden.mean(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def a_folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """What it says doesn't matter: the model is in memory."""
    return save(tmp_path_factory.mktemp("folder"), "llama")


def warm(stub: Stub, folder: ModelFolder, kv_bits: int = 0) -> LoadedModel:
    return warm_up(stub, folder, None, lambda: None, kv_bits)


def classes_of(stub: Stub) -> list[type]:
    return [type(module) for _name, module in stub.named_modules()]


@pytest.mark.parametrize(
    ("attention", "way"),
    [
        (Attention, Way.HOOKED),
        (ByHand, Way.SPLIT),
        (Counts, Way.BY_ROWS),
        (SeesAll, Way.BY_ROWS),
        (SumsAll, Way.BY_ROWS),
    ],
)
def test_the_first_way_that_agrees_with_each_row_alone_is_taken(
    attention: type[Attention], way: Way, a_folder: ModelFolder
) -> None:
    loaded = warm(Stub(attention), a_folder)
    assert (loaded.way, loaded.facts.batches, loaded.facts.why_not) == (way, True, "")
    assert loaded.layout is not None
    assert loaded.layout.by_rows == (way is Way.BY_ROWS)
    assert loaded.together is Together.PADDED


def test_a_mask_that_a_model_makes_itself_gives_way_to_each_groups_own(a_folder: ModelFolder) -> None:
    assert warm(MakesItsMask(), a_folder).way is Way.SPLIT


@pytest.mark.parametrize("attention", [Attention, ByHand, Counts, SeesAll])
def test_rows_of_each_way_answer_side_by_side_as_they_do_alone(
    attention: type[Attention], a_folder: ModelFolder
) -> None:
    prompts = {
        str(length): [(3 * place + length) % VOCABULARY for place in range(length)]
        for length in (1, 4, 5, 70)
    }
    expected = {}
    for name, prompt in prompts.items():
        expected[name] = greedy(Stub(attention), prompt, 12)
    bench = Workbench(warm(Stub(attention), a_folder), slots=4, kv_bytes_max=0)
    for name, prompt in prompts.items():
        bench.submit(name, prompt, 12)
        bench.turn()
    bench.run()
    assert bench.answers == expected


def greedy(stub: Stub, prompt: list[int], count: int) -> list[int]:
    """Answer by running everything anew for each token."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(stub(mx.array([ids]), cache=stub.make_cache())[0, -1].argmax().item()))
    return ids[len(prompt) :]


@pytest.mark.parametrize(
    "make",
    [
        MixesRows,
        TakesTheLongestOffset,
        BreaksBesideOthers,
        InsistsOnOneRow,
        GivesNoNumbers,
        lambda: Stub(TellsHooksApart),
    ],
)
def test_a_model_whose_rows_do_not_agree_runs_one_at_a_time_and_is_left_as_it_was(
    make: Any, a_folder: ModelFolder
) -> None:
    stub = make()
    before = classes_of(stub)
    loaded = warm(stub, a_folder)
    assert (loaded.layout, loaded.way, loaded.facts.batches) == (None, None, False)
    assert loaded.together is Together.NEVER
    assert loaded.facts.why_not == "rows side by side give other logits than each row alone"
    assert classes_of(stub) == before
    assert loaded.facts.kv_bytes_per_token == warm(Stub(), a_folder).facts.kv_bytes_per_token


@pytest.mark.parametrize(
    ("make", "way"),
    [
        (Stub, Way.HOOKED),
        (lambda: Stub(ByHand), Way.SPLIT),
        (lambda: Stub(SeesAll), Way.BY_ROWS),
        (MixesRows, None),
        (TakesTheLongestOffset, None),
    ],
)
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_ways_are_told_apart_by_coarse_numbers_too(
    dtype: mx.Dtype, make: Any, way: Way | None, a_folder: ModelFolder
) -> None:
    stub = make()
    stub.set_dtype(dtype)
    assert warm(stub, a_folder).way is way


def test_a_model_that_looks_ahead_batches_but_its_prompts_are_not_padded(a_folder: ModelFolder) -> None:
    loaded = warm(LooksAhead(), a_folder)
    assert (loaded.way, loaded.together) == (Way.HOOKED, Together.EQUAL)


class MixesPrompts(Stub):
    """Adds up all rows' prompts, but not their later tokens."""

    def __call__(self, ids: mx.array, cache: list[Any]) -> mx.array:
        mixed = ids.sum(axis=0, keepdims=True) % 29 + 0 * ids
        return super().__call__(ids if ids.shape[1] == 1 else mixed, cache)


def test_a_model_that_mixes_prompts_of_one_length_prefills_each_alone(a_folder: ModelFolder) -> None:
    loaded = warm(MixesPrompts(), a_folder)
    assert (loaded.way, loaded.together) == (Way.HOOKED, Together.NEVER)
    prompts = {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8]}
    bench = Workbench(loaded, slots=4)
    for name, prompt in prompts.items():
        bench.submit(name, prompt, 6)
    bench.run()
    alone = {name: Workbench(loaded).answer(tuple(prompt), 6) for name, prompt in prompts.items()}
    assert bench.answers == alone


def test_modules_that_are_not_known_not_to_look_at_a_groups_slots_are_called_row_by_row(
    a_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_SPLITS", frozenset())
    assert warm(Stub(ByHand), a_folder).way is Way.BY_ROWS


def test_what_all_tokens_have_in_common_hides_no_difference(a_folder: ModelFolder) -> None:
    one, other = mx.array([[1.0, 2.0, 3.0]]), mx.array([[1.0, 2.5, 3.0]])
    assert trial._distance(one + 1000, other + 1000) == pytest.approx(trial._distance(one, other), rel=1e-3)
    assert trial._distance(one, one + 1000) < 1e-3


def test_marks_of_what_must_not_be_drawn_are_compared_by_where_they_stand() -> None:
    lowest = float(mx.finfo(mx.float32).min)
    one = mx.array([[1.0, -float("inf"), 3.0, lowest]])
    assert trial._distance(one, one) == 0
    assert trial._distance(one, mx.array([[1.0, 2.0, 3.0, lowest]])) == float("inf")
    assert trial._distance(mx.array([[float("nan"), 1.0]]), mx.array([[2.0, 1.0]])) == float("inf")


@pytest.mark.parametrize(
    ("cache", "why_not"),
    [
        (ConcatenateKVCache, "its layers use ConcatenateKVCache, which this engine runs one row at a time"),
        (
            lambda: RotatingKVCache(100, keep=4),
            "its layers use RotatingKVCache, which this engine runs one row at a time",
        ),
    ],
)
def test_a_kind_of_cache_that_is_not_known_is_named(cache: Any, why_not: str, a_folder: ModelFolder) -> None:
    facts = warm(Stub(cache=cache), a_folder).facts
    assert (facts.batches, facts.why_not) == (False, why_not)


class HasACacheToSpare(Stub):
    """Keeps a second cache a layer that it never writes."""

    def __call__(self, ids: mx.array, cache: list[Any]) -> mx.array:
        return super().__call__(ids, [each[0] for each in cache])

    def make_cache(self) -> list[Any]:
        return [CacheList(KVCache(), KVCache()) for _ in self.layers]


def test_a_cache_that_stays_empty_is_told(a_folder: ModelFolder) -> None:
    facts = warm(HasACacheToSpare(), a_folder).facts
    assert (facts.batches, facts.why_not) == (False, "some of its caches stay empty")


def test_a_model_that_is_warmed_up_again_is_found_the_same(a_folder: ModelFolder) -> None:
    for attention in (Attention, ByHand, Counts):
        stub = Stub(attention)
        first, second = warm(stub, a_folder), warm(stub, a_folder)
        assert (first.facts, first.way, first.layout) == (second.facts, second.way, second.layout)


def test_caches_that_cannot_be_quantised_are_refused_in_words(a_folder: ModelFolder, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"kv_bits = 8\b.*\bwindow\b"):
        warm(Stub(cache=lambda: RotatingKVCache(100)), a_folder, kv_bits=8)
    with pytest.raises(ModelError, match="8 numbers can't be quantised: 32 must divide it"):
        worker_model.load(save(tmp_path, "llama"), None, lambda: None, kv_bits=8)


def test_a_family_whose_claim_is_false_is_clamped_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tiny("llama").facts
    monkeypatch.setattr("worker.engine.trial.Trial.way", lambda _trial: None)
    loaded = load_saved(save(tmp_path, "llama"))
    assert (loaded.layout, loaded.way, loaded.facts.batches) == (None, None, False)
    assert "give other logits" in loaded.facts.why_not
    assert loaded.facts.kv_bytes_per_token == facts.kv_bytes_per_token


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Trial, "_agrees"),
        (Trial, "_prefills"),
        (BeginningsTrial, "_is_restored"),
        (BeginningsTrial, "_is_shared"),
    ],
)
def test_want_of_memory_in_a_trial_is_no_trait_of_the_family(
    kind: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_arguments: object, **_options: object) -> bool:
        raise RuntimeError("cudaMallocAsync(&data, size, stream) failed: out of memory")

    folder = save(tmp_path / "model", "llama")
    monkeypatch.setattr(kind, name, fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        load_saved(folder)
