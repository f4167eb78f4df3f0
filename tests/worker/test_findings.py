"""A worker's next life doesn't try again what the one before has found out, and serves in the same way."""

from dataclasses import replace
from pathlib import Path

import pytest

from shared.model_folder import ModelFolder
from tests.worker.tiny_models import save
from worker.engine import model as loading
from worker.engine.hooks import Way
from worker.engine.model import LoadedModel
from worker.engine.output_head import OutputHead
from worker.engine.probes import Prober
from worker.engine.side_by_side import Remembered, SideBySide
from worker.engine.trial import Together, Trial
from worker.engine.working_set import WorkingSet
from worker.findings import Findings, FindingsFile

PASSES = WorkingSet((16, 48), (0, 1024), ((1e6, 2.5e6), (1.5e6, 3e6)))
FOUND = Findings(
    "m",
    "HOOKED",
    "PADDED",
    "any",
    "",
    prefills_last=True,
    context_tokens=700,
    free_bytes=1 << 30,
    working_set=PASSES,
)


def loaded(folder: ModelFolder, findings: FindingsFile | None) -> LoadedModel:
    return loading.load(folder, None, lambda: None, share_tokens=64, findings=findings)


def ways_of(found: LoadedModel) -> tuple[object, ...]:
    return found.facts, found.layout, found.way, found.together, found.head is None


@pytest.mark.parametrize("family", ["llama", "qwen3_5", "deepseek_v3", "llama4"])
def test_what_was_found_out_is_not_tried_again(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "model", family)
    file = FindingsFile(tmp_path / "findings.json")
    tried = loaded(folder, file)
    assert ways_of(tried) == ways_of(loaded(folder, None))
    monkeypatch.setattr(Trial, "way", lambda _trial: pytest.fail("it is tried again"))
    monkeypatch.setattr(Prober, "working_set", lambda *_: pytest.fail("it is probed again"))
    again = loaded(folder, file)
    assert ways_of(again) == ways_of(tried)
    assert again.working_set == tried.working_set


def test_passes_are_probed_again_for_another_context(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "llama")
    file = FindingsFile(tmp_path / "findings.json")
    loading.load(folder, 300, lambda: None, findings=file)
    known = file.read(f"{folder.fingerprint}/0")
    assert known is not None
    assert known.context_tokens == 300
    found = loaded(folder, file)
    renewed = file.read(f"{folder.fingerprint}/0")
    assert renewed == replace(known, context_tokens=700, working_set=found.working_set)


def test_what_was_probed_with_little_room_is_probed_again_with_more(tmp_path: Path) -> None:
    """A life that began while somebody else held the memory says little of what passes take."""
    folder = save(tmp_path / "model", "llama")
    file = FindingsFile(tmp_path / "findings.json")
    crowded = loading.load(folder, None, lambda: None, limit_bytes=1 << 10, findings=file)
    free = loading.load(folder, None, lambda: None, limit_bytes=1 << 34, findings=file)
    assert len(free.working_set.tokens) > len(crowded.working_set.tokens)
    assert loading.load(folder, None, lambda: None, limit_bytes=1 << 33, findings=file).working_set == (
        free.working_set
    )


def test_what_was_measured_is_remembered_with_the_room_that_there_was(tmp_path: Path) -> None:
    """As much was found with more room: the next life needn't probe again. What is used again isn't newer."""
    file = FindingsFile(tmp_path / "findings.json")
    file.write(FOUND)
    way = SideBySide(
        way=Way.HOOKED, together=Together.PADDED, head=OutputHead(), reuse="any", why_not_shared=""
    )
    more = 4 * FOUND.free_bytes
    Remembered.of(file, "m").keep(way, 700, more, replace(PASSES))
    assert file.read("m") == replace(FOUND, free_bytes=more)
    again = Remembered.of(file, "m")
    used = again.working_set(700, FOUND.free_bytes)
    assert used == PASSES
    assert used is not None
    again.keep(way, 700, FOUND.free_bytes, used)
    assert file.read("m") == replace(FOUND, free_bytes=more)


def test_findings_of_another_model_or_of_other_precision_are_none(tmp_path: Path) -> None:
    file = FindingsFile(tmp_path / "findings.json")
    assert file.read("m") is None
    file.write(FOUND)
    assert file.read("m") == FOUND
    assert file.read("n") is None
    file.write(replace(FOUND, model="n"))
    assert (file.read("m"), file.read("n")) == (None, replace(FOUND, model="n"))


@pytest.mark.parametrize("words", [b"", b"{}", b"\xff", b'{"model": "m"}', b"[" * 9000])
def test_a_file_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, words: bytes) -> None:
    (tmp_path / "findings.json").write_bytes(words)
    assert FindingsFile(tmp_path / "findings.json").read("m") is None


def test_where_nothing_can_be_written_nothing_is_remembered_and_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("")
    file = FindingsFile(tmp_path / "in the way" / "findings.json")
    file.write(FOUND)
    assert file.read("m") is None
    assert FindingsFile().read("m") is None


@pytest.mark.parametrize("change", [{"way": "SIDEWAYS"}, {"together": "?"}, {"way": "BY_ROWS"}])
def test_a_way_that_is_unknown_or_does_not_go_is_tried_anew_or_done(
    change: dict[str, str], tmp_path: Path
) -> None:
    """By rows goes with every family; what is written is then what is done."""
    folder = save(tmp_path / "model", "llama")
    file = FindingsFile(tmp_path / "findings.json")
    tried = loaded(folder, None)
    file.write(replace(FOUND, model=f"{folder.fingerprint}/0", **change))
    found = loaded(folder, file)
    if change.get("way") == "BY_ROWS":
        assert found.layout is not None
        assert found.layout.by_rows
    else:
        assert ways_of(found) == ways_of(tried)
