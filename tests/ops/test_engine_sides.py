"""Both sides on a tiny model: mlx-lm's samplers draw what ours are asked for, and every work runs."""

import io
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from rich.console import Console

from ops.engine import subject as subject_of_shapes
from ops.engine.bench import Bench
from ops.engine.lines import OURS, OURS_8_BIT, THEIRS
from ops.engine.mlx_lm_side import MlxLm, processors_of, sampler_of, seeded_sampler
from ops.engine.side import Request, Side
from ops.engine.subject import SHAPES, Subject, random_llama, spread_logits, twin
from ops.engine.works import SCALES, WORKS
from ops.load.progress import Progress
from shared.errors import ModelError
from shared.model_folder import ModelFolder
from shared.sampling import LogitBias, Sampling
from tests.worker.tiny_models import CONTEXT, VOCABULARY, build
from worker import memory

GREEDY = Sampling(temperature=0.0)
REPEATS = 1


@pytest.fixture(scope="module", autouse=True)
def uncompiled() -> Iterator[None]:
    """On a CPU MLX calls a C++ compiler for each of mlx-lm's compiled samplers: seconds."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture(scope="module")
def subject() -> Subject:
    # Quantised caches come in pieces of 32.
    model, _config = build("llama", head_dim=32)
    folder = ModelFolder(Path("tiny"), "tiny", "llama", CONTEXT, VOCABULARY, (), 0, "tiny")
    return Subject(model, folder)


def silent() -> Progress:
    return Progress(Console(file=io.StringIO()))


@pytest.fixture(scope="module")
def bench(subject: Subject) -> Bench:
    return Bench(subject, memory.device_report(), SCALES["small"], silent())


def drawn(sampling: Sampling, logprobs: list[float]) -> set[int]:
    sampler = sampler_of(sampling)
    row = mx.array([logprobs])
    return {int(sampler(row).item()) for _ in range(50)}


def test_samplers_of_mlx_lm_keep_to_what_a_row_asks_for():
    likely = [2.0, 1.9, 1.8, -9.0]
    assert drawn(GREEDY, likely) == {0}
    assert drawn(Sampling(temperature=2.0, top_k=2), likely) == {0, 1}
    assert drawn(Sampling(temperature=2.0, min_p=0.85), likely) == {0, 1}
    assert drawn(Sampling(temperature=2.0), likely) > {0, 1}


def test_biases_and_penalties_become_processors_and_nothing_else_does():
    assert processors_of(Sampling(temperature=0.7, top_p=0.9)) == []
    [bias] = processors_of(Sampling(logit_bias=(LogitBias(1, 2.5),)))
    assert bias(mx.array([0]), mx.zeros((1, 3))).tolist() == [[0.0, 2.5, 0.0]]
    [repetition] = processors_of(Sampling(repetition_penalty=2.0))
    assert repetition(mx.array([2]), mx.ones((1, 3))).tolist() == [[1.0, 1.0, 0.5]]
    assert len(processors_of(Sampling(presence_penalty=0.5, frequency_penalty=0.5))) == 2


def test_a_seeded_sampler_draws_the_same_again_whatever_others_draw():
    flat = mx.zeros((1, 1000))
    one, other = seeded_sampler(Sampling(seed=5)), seeded_sampler(Sampling(seed=5))
    first = [one(flat).item() for _ in range(4)]
    mx.random.uniform()
    assert [other(flat).item() for _ in range(4)] == first
    assert len(set(first)) > 1


def test_rows_that_draw_alike_share_a_sampler_and_a_seeded_one_has_its_own(subject):
    """Only then does mlx-lm draw for all of them at once: the other side is at its best."""
    side = MlxLm(subject.model)
    alike = Sampling(temperature=0.7)
    rows = [Request("a", (1,), 1, alike), Request("b", (1,), 1, alike), Request("c", (1,), 1, alike, True)]
    assert side._sampler(rows[0]) is side._sampler(rows[1])
    assert side._sampler(rows[2]) is not side._sampler(rows[2])


def answered(side: Side, requests: list[Request]) -> dict[str, int]:
    side.add(requests)
    counts = {request.name: 0 for request in requests}
    for _ in range(100):
        for token in side.turn():
            counts[token.row] += 1
    return counts


@pytest.mark.parametrize("name", [OURS, THEIRS])
def test_a_side_gives_each_row_the_tokens_it_asked_for_and_holds_nothing_at_the_end(bench, name):
    side = {OURS: bench.ours, THEIRS: bench.theirs}[name]().begin()
    requests = [Request("a", (1, 2, 3), 5, GREEDY), Request("b", (4,), 9, Sampling(seed=3))]
    assert answered(side, requests) == {"a": 5, "b": 9}
    assert side.kv_bytes == 0
    side.close()


def test_closing_our_side_gives_mlx_its_own_buffer_cache_back(bench):
    before = mx.set_cache_limit(1 << 30)
    side = bench.ours().begin()
    side.close()
    assert mx.set_cache_limit(before) == 1 << 30


@pytest.mark.parametrize("work", WORKS)
def test_every_work_runs_on_both_sides_and_makes_its_lines(bench, work):
    values = bench.values(work, REPEATS)
    assert values.keys() == ({OURS_8_BIT, OURS} if work == "kv8" else {OURS, THEIRS})
    for measures in values.values():
        assert all(len(each) == REPEATS and each[0] > 0 for each in measures.values())
    assert all(line.ours > 0 and line.theirs > 0 for line in bench.lines(work, values))


def test_quantised_caches_take_fewer_bytes_than_the_engines_own(bench):
    values = bench.values("kv8", REPEATS)
    assert values[OURS_8_BIT]["kv_bytes"] < values[OURS]["kv_bytes"]
    assert values[OURS_8_BIT]["held_bytes"] < values[OURS]["held_bytes"]


def test_both_sides_run_the_same_weights_and_mlx_lm_its_own_modules(bench, subject):
    """What the engine does to a model's modules mustn't reach the side it is measured against."""
    untouched, _config = build("llama", head_dim=32)
    bench.ours().begin().close()
    own = twin(subject.model)
    assert [type(each) for each in subject.model.modules()] == [type(each) for each in untouched.modules()]
    pairs = zip(tree_flatten(own.parameters()), tree_flatten(subject.model.parameters()), strict=True)
    assert all(one is another for (_, one), (_, another) in pairs)
    assert own.layers[0] is not subject.model.layers[0]


def test_a_context_that_is_too_short_for_a_scale_is_said_in_words(subject):
    with pytest.raises(ModelError, match=f"{CONTEXT} tokens"):
        Bench(subject, memory.device_report(), SCALES["gpu"], silent())


@pytest.mark.parametrize("tied", [False, True])
def test_random_weights_are_given_logits_as_far_apart_as_a_trained_models(tied):
    model, _config = build("llama", hidden_size=64, vocab_size=2000, tie_word_embeddings=tied)
    spread_logits(model, 64, tied=tied)
    output = model.model.embed_tokens if tied else model.lm_head
    inputs = mx.random.normal((8, 64))
    assert float(mx.std(inputs @ output.weight.T).item()) == pytest.approx(6, rel=0.2)


def test_the_shapes_are_those_of_models_that_batch_in_mlx_lm():
    for shape in SHAPES.values():
        assert shape["hidden_size"] == 32 * shape["head_dim"]


def test_a_random_model_is_in_memory_in_bfloat16_layer_by_layer_and_batches(monkeypatch):
    monkeypatch.setitem(subject_of_shapes._LLAMA, "vocab_size", 500)
    tiny = {**SHAPES["llama-1b"], "hidden_size": 64, "head_dim": 32, "num_hidden_layers": 2}
    monkeypatch.setitem(subject_of_shapes.SHAPES, "tiny", {**tiny, "intermediate_size": 64})
    layers: list[int] = []
    made = random_llama("tiny", lambda: layers.append(1))
    assert (len(layers), made.folder.vocabulary) == (2, 500)
    weights = [array for _name, array in tree_flatten(made.model.parameters())]
    assert {array.dtype for array in weights} == {mx.bfloat16}
    assert made.folder.weights_bytes == sum(array.nbytes for array in weights)
    side = Bench(made, memory.device_report(), SCALES["small"], silent()).ours().begin()
    assert answered(side, [Request("a", (1, 2, 3), 4, GREEDY)]) == {"a": 4}
    side.close()
