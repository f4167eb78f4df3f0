"""A service's log stays bounded while it is written to, and a full disk doesn't keep it from being cut."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ops.services.log_bound import append_always, bound
from tests.waiting import until


def test_a_log_is_left_alone_until_it_is_too_large(tmp_path: Path) -> None:
    log = tmp_path / "proxy.log"
    assert not bound(log, 4)
    log.write_bytes(b"1234")
    assert not bound(log, 4)
    log.write_bytes(b"12345")
    assert bound(log, 4)
    assert (log.read_bytes(), (tmp_path / "proxy.log.1").read_bytes()) == (b"", b"12345")


def test_a_full_disk_loses_the_copy_and_not_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_source: Path, aside: Path) -> None:
        aside.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", fail)
    log = tmp_path / "proxy.log"
    log.write_bytes(b"12345")
    assert bound(log, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["proxy.log"]
    assert log.read_bytes() == b""


def test_what_is_written_after_the_cut_begins_the_file(tmp_path: Path) -> None:
    log = tmp_path / "proxy.log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
    append_always(descriptor)
    os.write(descriptor, b"12345")
    assert bound(log, 4)
    os.write(descriptor, b"6")
    os.close(descriptor)
    assert log.read_bytes() == b"6"


async def test_a_process_looks_after_its_own_log(tmp_path: Path) -> None:
    log = tmp_path / "proxy.log"
    log.write_bytes(b"old")
    code = (
        "import sys\nfrom pathlib import Path\nfrom ops.services import log_bound\n"
        "log_bound.bound.__defaults__ = (2,)\n"
        "log_bound.keep_bounded(Path(sys.argv[1]), 0.01)\n"
        "sys.stdin.readline(); print('new', file=sys.stderr, flush=True); sys.stdin.readline()\n"
    )
    with log.open("r+b") as output:
        output.seek(0, os.SEEK_END)
        process = subprocess.Popen(  # noqa: ASYNC220 (it is only started here)
            [sys.executable, "-c", code, str(log)], stdin=subprocess.PIPE, stderr=output, text=True
        )
    assert process.stdin is not None
    aside = log.with_name("proxy.log.1")
    await until(lambda: aside.exists() and aside.read_bytes() == b"old" and not log.read_bytes())
    process.stdin.write("\n")
    process.stdin.flush()
    await until(lambda: aside.read_bytes() == b"new\n" and not log.read_bytes())
    process.communicate("\n")
    assert process.returncode == 0
