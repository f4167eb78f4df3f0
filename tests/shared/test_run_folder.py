"""The run folder: private, short enough for a socket, and held by one proxy at a time."""

import os
import stat
from pathlib import Path

import pytest

from shared.errors import SettingsError
from shared.limits import SOCKET_PATH_BYTES_MAX
from shared.run_folder import RunFolder, RunLock, SupervisorLock


def test_the_folder_is_private_even_if_it_was_not(tmp_path):
    folder = RunFolder(tmp_path, 8000)
    folder.create()
    folder.path.chmod(0o777)
    folder.create()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_each_port_has_its_own(tmp_path):
    assert RunFolder(tmp_path, 8000).endpoint != RunFolder(tmp_path, 8001).endpoint


def test_the_socket_lies_under_a_home_with_a_short_path():
    assert RunFolder(Path("/h"), 8000).endpoint == "ipc:///h/run/8000/wire"


@pytest.mark.parametrize("letter", ["x", "ü"])
def test_under_a_long_home_both_sides_find_the_same_short_path(letter, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/t")
    home = tmp_path / (letter * 100)
    proxys, workers = RunFolder(home, 8000), RunFolder(home, 8000)
    assert proxys.endpoint == workers.endpoint
    assert proxys.path.parent == Path("/t")
    assert len(os.fsencode(proxys.socket)) <= SOCKET_PATH_BYTES_MAX
    others = {RunFolder(home, 8001).path, RunFolder(tmp_path / (letter * 101), 8000).path}
    assert proxys.path not in others
    assert len(others) == 2


def test_the_longest_path_that_fits_is_used_and_one_byte_more_is_not():
    def path(letters):
        return RunFolder(Path("/" + "x" * letters), 8000)

    fits = SOCKET_PATH_BYTES_MAX - len("//run/8000/admin")
    assert path(fits).path.parts[-2:] == ("run", "8000")
    assert path(fits + 1).path.name.startswith("forebay-")


def test_a_second_proxy_is_told_of_the_first(tmp_path):
    with RunLock(RunFolder(tmp_path, 8000)):
        with pytest.raises(SettingsError, match=r"another proxy holds .*is Forebay running"):
            RunLock(RunFolder(tmp_path, 8000)).__enter__()
        with RunLock(RunFolder(tmp_path, 8001)):
            pass


def test_a_supervisor_and_a_proxy_share_the_folder_but_no_two_supervisors(tmp_path):
    folder = RunFolder(tmp_path, 8000)
    with RunLock(folder) as held, SupervisorLock(folder):
        held.folder.socket.touch()
        with pytest.raises(SettingsError, match=r"another supervisor of a worker holds .*"):
            SupervisorLock(RunFolder(tmp_path, 8000)).__enter__()
        with SupervisorLock(RunFolder(tmp_path, 8001)):
            pass
    with SupervisorLock(folder):
        pass


def test_a_supervisor_that_leaves_takes_no_socket_away(tmp_path):
    folder = RunFolder(tmp_path, 8000)
    with RunLock(folder):
        folder.socket.touch()
        with SupervisorLock(folder):
            pass
        assert folder.socket.exists()


def test_a_folder_that_takes_no_lock_is_refused_in_clear_words(tmp_path):
    folder = RunFolder(tmp_path, 8000)
    folder.create()
    (folder.path / "worker.lock").mkdir()
    with pytest.raises(SettingsError, match=r"worker.lock: Is a directory"):
        SupervisorLock(folder).__enter__()


def test_whoever_leaves_makes_room_and_takes_the_socket_away(tmp_path):
    with RunLock(RunFolder(tmp_path, 8000)) as held:
        held.folder.socket.touch()
    assert not held.folder.socket.exists()
    with RunLock(RunFolder(tmp_path, 8000)):
        pass


def test_the_lock_goes_with_an_error_too(tmp_path):
    with pytest.raises(ZeroDivisionError), RunLock(RunFolder(tmp_path, 8000)):
        raise ZeroDivisionError
    with RunLock(RunFolder(tmp_path, 8000)):
        pass


def test_one_that_was_refused_leaves_the_firsts_socket(tmp_path):
    with RunLock(RunFolder(tmp_path, 8000)) as held:
        held.folder.socket.touch()
        with pytest.raises(SettingsError), RunLock(RunFolder(tmp_path, 8000)):
            pass
        assert held.folder.socket.exists()


def test_a_folder_of_somebody_else_is_refused(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path, 8000)
    folder.create()
    monkeypatch.setattr("os.getuid", lambda: folder.path.stat().st_uid + 1)
    with pytest.raises(SettingsError, match="another user"):
        folder.create()


def test_a_file_in_the_folders_place_is_said(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(SettingsError, match=str(tmp_path)):
        RunFolder(tmp_path, 8000).create()
    (tmp_path / "run").unlink()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "8000").touch()
    with pytest.raises(SettingsError, match="8000"):
        RunFolder(tmp_path, 8000).create()
