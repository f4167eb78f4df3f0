"""Installing and removing: all or nothing, nobody else's files, and each failure said with what it leaves."""

from pathlib import Path

import pytest

from ops.command import OrderFailed
from ops.services.install import Outcome, plan_lines, refuse_others, run_command
from ops.services.keeper import ServiceKeeper
from shared.errors import SettingsError
from tests.services.world import KEEPERS, HandClock, Machine, files, installer, launchd, systemd, whole


@pytest.fixture(params=KEEPERS)
def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> ServiceKeeper:
    return KEEPERS[request.param](tmp_path)


def there(keeper: ServiceKeeper) -> list[bytes | None]:
    return [path.read_bytes() if path.exists() else None for path in keeper.paths()]


def litter(keeper: ServiceKeeper) -> list[Path]:
    return [file for file in keeper.paths()[0].parent.iterdir() if file not in keeper.paths()]


def test_an_install_writes_both_files_and_has_both_loaded(keeper: ServiceKeeper, tmp_path: Path) -> None:
    machine = Machine()
    wanted = files(keeper, whole(tmp_path))
    assert "are installed" in installer(keeper, machine).install(wanted, force=False)
    assert there(keeper) == [file.text for file in wanted]
    assert len(machine.loaded) == 2
    assert litter(keeper) == []
    assert {path.stat().st_mode & 0o777 for path in keeper.paths()} == {0o644}


def test_launchd_is_told_in_its_order_and_waits_for_a_job_that_drains(tmp_path: Path) -> None:
    keeper, machine, clock = launchd(tmp_path), Machine(), HandClock()
    installer(keeper, machine).install(files(keeper, whole(tmp_path)), force=False)
    assert [line.removeprefix("/bin/launchctl ").split()[0] for line in machine.told] == [
        *("enable", "bootstrap"),
        *("enable", "bootstrap"),
    ]
    machine.told.clear()
    machine.drains = 3
    changed = files(keeper, whole(tmp_path, drain_s=60.0))
    assert "written anew" in installer(keeper, machine, clock).install(changed, force=False)
    ends = [line for line in machine.told if "bootout" in line or "bootstrap" in line]
    assert ["proxy" in line for line in ends] == [True, False, False, True]
    assert clock.now_s > 0
    assert len(machine.loaded) == 2


def test_systemd_is_told_in_its_order(tmp_path: Path) -> None:
    keeper, machine = systemd(tmp_path), Machine()
    installer(keeper, machine).install(files(keeper, whole(tmp_path)), force=False)
    units = "forebay-8000-worker.service forebay-8000-proxy.service"
    assert machine.told == [
        "systemctl --user daemon-reload",
        f"systemctl --user enable {units}",
        f"systemctl --user restart {units}",
    ]
    assert "--user" not in " ".join(systemd(tmp_path, system=True).load()[0].words)


def test_the_same_install_again_changes_nothing_and_says_so(keeper: ServiceKeeper, tmp_path: Path) -> None:
    machine = Machine()
    wanted = files(keeper, whole(tmp_path))
    installer(keeper, machine).install(wanted, force=False)
    machine.told.clear()
    assert "already" in installer(keeper, machine).install(wanted, force=False)
    asked = [" ".join(command.words) for command in keeper.is_loaded()]
    assert machine.told == asked


def test_the_same_install_again_loads_what_is_not_loaded(keeper: ServiceKeeper, tmp_path: Path) -> None:
    machine = Machine()
    wanted = files(keeper, whole(tmp_path))
    installer(keeper, machine).install(wanted, force=False)
    machine.loaded.pop()
    assert "loaded again" in installer(keeper, machine).install(wanted, force=False)
    assert len(machine.loaded) == 2


def test_a_file_of_somebody_elses_is_never_written_over(keeper: ServiceKeeper, tmp_path: Path) -> None:
    machine = Machine()
    theirs = keeper.paths()[1]
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"theirs")
    for force in (False, True):
        with pytest.raises(SettingsError, match="move it away"):
            installer(keeper, machine).install(files(keeper, whole(tmp_path)), force=force)
        with pytest.raises(SettingsError, match="move it away"):
            installer(keeper, machine).uninstall(force=force)
    assert there(keeper) == [None, b"theirs"]
    assert machine.told == []


def test_a_file_changed_by_hand_is_written_over_and_removed_only_by_force(
    keeper: ServiceKeeper, tmp_path: Path
) -> None:
    machine = Machine()
    wanted = files(keeper, whole(tmp_path))
    installer(keeper, machine).install(wanted, force=False)
    path = keeper.paths()[0]
    path.write_bytes(wanted[0].text.replace(b"8000", b"9000"))
    machine.told.clear()
    with pytest.raises(SettingsError, match="by hand"):
        installer(keeper, machine).install(wanted, force=False)
    with pytest.raises(SettingsError, match="by hand"):
        installer(keeper, machine).uninstall(force=False)
    assert machine.told == []
    installer(keeper, machine).install(wanted, force=True)
    assert path.read_bytes() == wanted[0].text
    path.write_bytes(wanted[0].text + b"\n")
    installer(keeper, machine).uninstall(force=True)
    assert there(keeper) == [None, None]


@pytest.mark.parametrize("verb", ["bootstrap gui/501 {worker}", "bootstrap gui/501 {proxy}", "enable"])
def test_a_first_install_that_fails_leaves_nothing(verb: str, tmp_path: Path) -> None:
    keeper = launchd(tmp_path)
    worker, proxy = keeper.paths()
    machine = Machine(failing=lambda line: verb.format(worker=worker, proxy=proxy) in line)
    with pytest.raises(OrderFailed) as failed:
        installer(keeper, machine).install(files(keeper, whole(tmp_path)), force=False)
    assert "failed with status 5: Bootstrap failed: 5: Input/output error. Nothing of it is left" in str(
        failed.value
    )
    assert there(keeper) == [None, None]
    assert machine.loaded == set()


def test_a_change_that_fails_brings_back_what_was_there(tmp_path: Path) -> None:
    keeper, machine = systemd(tmp_path), Machine()
    before = files(keeper, whole(tmp_path))
    installer(keeper, machine).install(before, force=False)
    failures = iter([True])
    machine.failing = lambda line: "restart" in line and next(failures, False)
    with pytest.raises(OrderFailed, match="What was installed before is back"):
        installer(keeper, machine).install(files(keeper, whole(tmp_path, drain_s=90.0)), force=False)
    assert there(keeper) == [file.text for file in before]
    assert len(machine.loaded) == 2


def test_undoing_that_fails_too_is_said_with_what_is_still_loaded(tmp_path: Path) -> None:
    keeper, machine = launchd(tmp_path), Machine()
    machine.failing = lambda line: "bootout" in line or ("bootstrap" in line and "proxy" in line)
    with pytest.raises(OrderFailed, match="Undoing it didn't go well either") as failed:
        installer(keeper, machine).install(files(keeper, whole(tmp_path)), force=False)
    assert "launchd still has one of the services loaded" in str(failed.value)


def test_a_job_that_never_ends_is_waited_for_no_longer_than_patience(tmp_path: Path) -> None:
    keeper, machine, clock = launchd(tmp_path), Machine(), HandClock()
    installer(keeper, machine).install(files(keeper, whole(tmp_path)), force=False)
    machine.drains = 10**9
    with pytest.raises(OrderFailed, match=r"proxy is still there after 55 s\. The files are left"):
        installer(keeper, machine, clock).uninstall(force=False)
    assert 55 < clock.now_s < 60
    assert None not in there(keeper)


def test_an_uninstall_ends_the_proxy_first_and_removes_both_files(
    keeper: ServiceKeeper, tmp_path: Path
) -> None:
    machine = Machine()
    installer(keeper, machine).install(files(keeper, whole(tmp_path)), force=False)
    machine.told.clear()
    assert "removed" in installer(keeper, machine).uninstall(force=False)
    ends = [line for line in machine.told if "bootout" in line or " stop " in line]
    assert ["proxy" in line for line in ends] == [True, False]
    assert (there(keeper), machine.loaded) == ([None, None], set())
    assert "No service" in installer(keeper, machine).uninstall(force=False)


def test_half_an_install_can_be_mended_and_removed(keeper: ServiceKeeper, tmp_path: Path) -> None:
    machine = Machine()
    wanted = files(keeper, whole(tmp_path))
    for finish in ("install", "uninstall"):
        installer(keeper, machine).install(wanted, force=False)
        keeper.paths()[0].unlink()
        if finish == "install":
            installer(keeper, machine).install(wanted, force=False)
            assert there(keeper) == [file.text for file in wanted]
        else:
            installer(keeper, machine).uninstall(force=False)
            assert there(keeper) == [None, None]


def test_a_dry_run_shows_files_and_commands_and_changes_nothing(
    keeper: ServiceKeeper, tmp_path: Path
) -> None:
    wanted = files(keeper, whole(tmp_path))
    shown = "\n".join(plan_lines(keeper, wanted, [tmp_path / "logs"]))
    assert f"make the folder {tmp_path / 'logs'}" in shown
    for file in wanted:
        assert f"{file.path} (new)" in shown
        assert file.text.decode().strip() in shown
    assert all(" ".join(command.words) in shown for command in keeper.load())
    assert there(keeper) == [None, None]
    machine = Machine()
    installer(keeper, machine).install(wanted, force=False)
    assert "(there, and the same)" in "\n".join(plan_lines(keeper, wanted, []))
    changed = "\n".join(plan_lines(keeper, files(keeper, whole(tmp_path, drain_s=90.0)), []))
    assert "(there, and different)" in changed
    assert all(" ".join(command.words) in changed for command in keeper.unload())


def test_force_lets_pass_what_was_changed_by_hand_and_no_more() -> None:
    refuse_others([(Path("a"), "edited"), (Path("b"), "ours")], force=True)
    with pytest.raises(SettingsError, match="b wasn't written"):
        refuse_others([(Path("a"), "edited"), (Path("b"), "foreign")], force=True)


def test_a_command_is_run_for_its_status_and_its_words() -> None:
    assert run_command(("sh", "-c", "echo why >&2; exit 5")) == Outcome(5, "why")
    assert run_command(("/nonexistent/launchctl",)).status == 127
