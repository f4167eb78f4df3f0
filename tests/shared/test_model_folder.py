"""A model's folder: what is read from it, and what is said when something is missing or wrong."""

import json

import pytest

from shared.errors import ModelError
from shared.limits import CONTEXT_TOKENS_MAX, VOCABULARY_MAX
from shared.model_folder import ModelFolder

CONFIG = {"model_type": "llama", "vocab_size": 1000, "max_position_embeddings": 2048, "eos_token_id": 2}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    configure(tmp_path)
    return tmp_path


def configure(folder, **changes):
    """Write config.json; a change to ... leaves the key out."""
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")


def complaint(folder):
    with pytest.raises(ModelError) as problem:
        ModelFolder.read(folder)
    assert str(folder) in str(problem.value)
    return str(problem.value)


def test_the_facts_are_those_of_the_files(folder):
    (folder / "model-2.safetensors").write_bytes(b"123")
    read = ModelFolder.read(folder)
    assert (read.path, read.name, read.family) == (folder, folder.name, "llama")
    assert (read.context_tokens, read.vocabulary, read.stop_ids, read.weights_bytes) == (2048, 1000, (2,), 8)


def test_weights_of_something_else_are_not_the_models(folder):
    """An adapter, or a copy in another format; MLX loads model*.safetensors."""
    (folder / "adapters.safetensors").write_bytes(b"123")
    assert ModelFolder.read(folder).weights_bytes == 5


def test_the_name_is_the_one_given_or_the_configurations_or_the_folders(folder):
    assert ModelFolder.read(folder).name == folder.name
    configure(folder, forebay_name="mine")
    assert ModelFolder.read(folder).name == "mine"
    assert ModelFolder.read(folder, "given").name == "given"


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("config.json", "no config.json"),
        ("tokenizer.json", "no tokenizer.json"),
        ("model.safetensors", "no model*.safetensors"),
    ],
)
def test_a_missing_file_is_named(folder, file, said):
    (folder / file).unlink()
    assert said in complaint(folder)


def test_a_missing_folder_and_a_file_in_its_place_are_named(folder):
    assert complaint(folder / "nowhere").endswith("no such folder")
    assert complaint(folder / "config.json").endswith("no such folder")


def test_weights_that_are_a_link_to_nowhere_are_named(folder):
    """As in a cache whose blobs were cleaned up."""
    (folder / "model-2.safetensors").symlink_to(folder / "blob")
    assert "model-2.safetensors: a link to nowhere" in complaint(folder)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[" * 100_000], ids=["empty", "cut", "no text", "deep"])
def test_a_corrupt_file_is_named(folder, file, raw):
    (folder / file).write_bytes(raw)
    assert f"{file}: not readable as JSON" in complaint(folder)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("raw", ["[]", "5", "null", '"a"'])
def test_a_file_that_holds_no_object_is_named(folder, file, raw):
    (folder / file).write_text(raw, "utf-8")
    assert f"{file}: not a JSON object" in complaint(folder)


@pytest.mark.parametrize("value", [..., None, 0, -1, "1000", 1000.0, True, [], VOCABULARY_MAX + 1])
def test_a_vocabulary_that_is_no_size_is_said(folder, value):
    configure(folder, vocab_size=value)
    assert "vocab_size" in complaint(folder)


@pytest.mark.parametrize("value", [0, -1, "2048", 2048.0, True, [], 1 << 41])
def test_a_context_that_is_no_size_is_said(folder, value):
    configure(folder, max_position_embeddings=value)
    assert "max_position_embeddings" in complaint(folder)


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({"max_position_embeddings": ..., "n_positions": 512}, 512),
        ({"max_position_embeddings": None, "seq_length": 512}, 512),
        ({"max_position_embeddings": ...}, 32_768),
        ({"max_position_embeddings": 1 << 30}, CONTEXT_TOKENS_MAX),
    ],
)
def test_the_context_has_several_names_and_an_end(folder, changes, tokens):
    configure(folder, **changes)
    assert ModelFolder.read(folder).context_tokens == tokens


def test_what_a_text_config_says_counts_first(folder):
    text = {"vocab_size": 500, "max_position_embeddings": 128, "eos_token_id": 9, "model_type": "llama_text"}
    configure(folder, text_config=text)
    read = ModelFolder.read(folder)
    assert (read.vocabulary, read.context_tokens, read.stop_ids) == (500, 128, (9,))
    assert read.family == "llama"


@pytest.mark.parametrize("nothing", [None, {}])
def test_an_empty_text_config_says_nothing(folder, nothing):
    configure(folder, text_config=nothing)
    assert ModelFolder.read(folder).vocabulary == 1000


@pytest.mark.parametrize("wrong", [5, "a", [1], True])
def test_a_text_config_of_another_kind_is_said(folder, wrong):
    configure(folder, text_config=wrong)
    assert "text_config" in complaint(folder)


@pytest.mark.parametrize(
    ("configured", "generation", "ids"),
    [
        (2, None, (2,)),
        ([7, 2, 7], None, (2, 7)),
        (None, None, ()),
        (..., [5], (5,)),
        (2, 3, (2, 3)),
        ([2], [3, 2], (2, 3)),
        ([True, -1, "2", 2.0, None, VOCABULARY_MAX], None, ()),
        (0, None, (0,)),
    ],
)
def test_stop_ids_are_all_that_both_files_name(folder, configured, generation, ids):
    configure(folder, eos_token_id=configured)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}), "utf-8")
    assert ModelFolder.read(folder).stop_ids == ids


def test_the_fingerprint_changes_with_the_configuration_and_with_the_weights(folder):
    seen = {ModelFolder.read(folder).fingerprint}
    configure(folder, rope_theta=1.0)
    seen.add(ModelFolder.read(folder).fingerprint)
    (folder / "model.safetensors").write_bytes(b"123456")
    seen.add(ModelFolder.read(folder).fingerprint)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    seen.add(ModelFolder.read(folder).fingerprint)
    assert len(seen) == 4
    (folder / "tokenizer.json").write_text("{ }", "utf-8")
    assert ModelFolder.read(folder).fingerprint in seen
