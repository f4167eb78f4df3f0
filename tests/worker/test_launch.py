"""What a worker process is told, and what it is started with."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from shared.config import LogSettings, WorkerSettings
from worker import launch
from worker.launch import (
    LaunchSpec,
    find_openblas,
    identity,
    supervisor_identity,
    without_prefixes,
    worker_environment,
)

SPEC = LaunchSpec(
    worker="0",
    epoch=1_700_000_000_000,
    endpoint="ipc:///somewhere/wire",
    folder="/models/ä b",
    name="demo",
    progress_fd=7,
    lifeline_fd=8,
    manifest_fd=9,
    settings=WorkerSettings(slots=3, context_tokens=None, hang_floor_s=0.5),
    log=LogSettings(format="json"),
    prefix_folder="/models/ä b/prefixes",
    findings_file="/run/findings.json",
)


def test_a_spec_survives_its_json() -> None:
    assert LaunchSpec.from_json(SPEC.to_json()) == SPEC


@pytest.mark.parametrize(
    "change", [{"epoch": "late"}, {"progress_fd": None}, {"manifest_fd": "x"}, {"surprise": 1}]
)
def test_a_spec_that_is_wrong_is_a_value_error(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="LaunchSpec"):
        LaunchSpec.from_json(json.dumps({**json.loads(SPEC.to_json()), **change}))


def test_without_prefixes_nothing_is_kept_and_all_else_is_as_set() -> None:
    settings = SPEC.settings.model_copy(update={"cache_memory_mb": 900, "prefix_disk_gb": 5.0})
    without = without_prefixes(settings)
    assert (without.cache_memory_mb, without.prefix_disk_gb) == (0, 0.0)
    assert (settings.cache_memory_mb, settings.prefix_disk_gb) == (900, 5.0)
    changed = {"cache_memory_mb", "prefix_disk_gb"}
    assert without.model_dump(exclude=changed) == settings.model_dump(exclude=changed)


def test_identities_tell_lives_and_supervisors_apart() -> None:
    assert identity("0", 42) == b"w-0-42"
    assert supervisor_identity("0") == b"s-0"


def test_a_preload_goes_behind_what_is_preloaded_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/lib/first.so /lib/second.so")
    ours = Path("/lib/openblas.so")
    assert worker_environment(ours)["LD_PRELOAD"] == "/lib/first.so:/lib/second.so:/lib/openblas.so"


def test_a_library_is_preloaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/lib/openblas.so")
    assert worker_environment(Path("/lib/openblas.so"))["LD_PRELOAD"] == "/lib/openblas.so"


def test_without_a_preload_the_environment_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert worker_environment(None) == dict(os.environ)


def test_openblas_is_not_looked_for_on_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert find_openblas() is None


def test_the_loaders_cache_is_asked_when_the_usual_folders_have_no_openblas(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "libopenblas.so.0"
    library.touch()
    ldconfig = tmp_path / "ldconfig"
    ldconfig.write_text(
        f"#!/bin/sh\necho '1 libs found'\necho '\tlibopenblas.so.0 (libc6,x86-64) => {library}'\n"
    )
    ldconfig.chmod(0o755)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(launch, "_openblas_places", list)
    monkeypatch.setattr(launch, "_LDCONFIG", str(ldconfig))
    assert find_openblas() == library


def test_a_system_without_openblas_and_ldconfig_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(launch, "_openblas_places", list)
    monkeypatch.setattr(launch, "_LDCONFIG", str(tmp_path / "nothing"))
    assert find_openblas() is None


@pytest.mark.skipif(find_openblas() is None, reason="OpenBLAS isn't installed")
def test_a_process_starts_with_the_openblas_that_was_found() -> None:
    maps = subprocess.run(
        (sys.executable, "-c", "print(open('/proc/self/maps').read())"),
        env=worker_environment(find_openblas()),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "libopenblas" in maps.stdout
    assert maps.stderr == ""


def test_the_supervisor_imports_nothing_heavy() -> None:
    probe = "import worker.__main__, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    result = subprocess.run((sys.executable, "-c", probe), capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "worker" in loaded
    assert not loaded & {"mlx", "mlx_lm", "numpy", "aiohttp", "tokenizers", "transformers"}
