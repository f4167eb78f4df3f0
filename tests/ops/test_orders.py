"""`forebay restart worker`, `drain` and `stop` against a gateway that the test plays."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ops import drain as gate
from ops import foreground_lock
from ops.cli import app
from ops.command import OrderFailed
from ops.gateway import GatewayAbsent, OrderRefused
from ops.restart_worker import restart_worker
from ops.screen import Screen
from ops.stop import Stop
from shared.clock import FalseClock, SystemClock
from shared.config import Settings
from shared.errors import SettingsError
from shared.run_folder import RunFolder
from tests.ops.played_gateway import played, restarting, told

PORT = 8123
RESTART, DRAIN, STOP, STATUS = (
    "POST /admin/restart",
    "POST /admin/drain",
    "POST /admin/stop",
    "GET /admin/status",
)
BEGUN = (202, told(restart=restarting("draining"), running=2, live=3))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load(home=tmp_path, port=PORT)


@pytest.fixture
def seen() -> StringIO:
    return StringIO()


@pytest.fixture
def screen(seen: StringIO) -> Screen:
    class Restless:
        """Every look at it is three seconds later, so that each tick is shown."""

        def __init__(self) -> None:
            self.now_s = 0.0

        def now(self) -> float:
            self.now_s += 3.0
            return self.now_s

    return Screen(Console(file=seen), Restless())


def run(settings: Settings, *arguments: str) -> Any:
    file = settings.home_folder / "forebay.toml"
    file.write_text(f'home = "{settings.home_folder}"\nport = {settings.port}\n')
    return CliRunner().invoke(app, [*arguments, "--config", str(file)])


# --- restart ------------------------------------------------------------------------------------------------


def restart(settings: Settings, screen: Screen, *, drain: bool = False) -> str:
    return restart_worker(settings, drain=drain, timeout_s=9.0, screen=screen, poll_s=0.001)


def test_a_restart_shows_how_far_it_is_and_ends_with_a_line(
    settings: Settings, screen: Screen, seen: StringIO
) -> None:
    loading = {"status": "loading", "epoch": None, "breaker": "closed"}
    looks = [
        (200, told(restart=restarting("draining"), running=1, live=3)),
        (200, told(restart=restarting("restarting"), worker=loading, live=2)),
        (200, told(restart=restarting("done", new_epoch=8, took_s=3.24))),
    ]
    with played(settings, {RESTART: [BEGUN], STATUS: looks}) as gateway:
        line = restart(settings, screen, drain=True)
    assert line == "The worker of epoch 7 was replaced by that of epoch 8 in 3.2 s; 2 answers were live."
    assert gateway.orders == [(RESTART, {"drain": True, "timeout_s": 9.0})]
    assert "nothing new starts, 1 answer still runs" in seen.getvalue()
    assert "the worker is loading, 2 answers wait" in seen.getvalue()


def test_a_restart_that_fails_says_why(settings: Settings, screen: Screen) -> None:
    failed = (200, told(restart=restarting("failed", problem="2 answers still ran after 9 s")))
    with (
        played(settings, {RESTART: [BEGUN], STATUS: [failed]}),
        pytest.raises(OrderFailed, match="was not replaced: 2 answers still ran after 9 s"),
    ):
        restart(settings, screen)


def test_a_refused_restart_says_why(settings: Settings, screen: Screen) -> None:
    with (
        played(settings, {RESTART: [(409, {"problem": "the breaker is open"})]}),
        pytest.raises(OrderRefused, match="isn't replaced: the breaker is open"),
    ):
        restart(settings, screen)


@pytest.mark.parametrize("later", [None, restarting("done", number=2)], ids=["none", "another"])
def test_a_gateway_that_forgot_the_restart_was_restarted_itself(
    later: dict[str, Any] | None, settings: Settings, screen: Screen
) -> None:
    with (
        played(settings, {RESTART: [BEGUN], STATUS: [(200, told(restart=later))]}),
        pytest.raises(OrderFailed, match="gateway itself was restarted"),
    ):
        restart(settings, screen)


def test_whoever_interrupts_a_restart_is_told_that_it_goes_on(
    settings: Settings, screen: Screen, seen: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    with played(settings, {RESTART: [BEGUN]}), pytest.raises(KeyboardInterrupt):
        restart(settings, screen)
    assert "The gateway goes on with it" in seen.getvalue()


@pytest.mark.parametrize("order", [("restart", "worker"), ("drain",), ("drain", "--off"), ("reload",)])
def test_without_a_gateway_an_order_is_one_line_and_status_2(
    order: tuple[str, ...], settings: Settings
) -> None:
    result = run(settings, *order)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert f"no gateway of home {settings.home_folder} and port {PORT} answers" in result.stderr


def test_the_command_passes_on_what_it_was_given(settings: Settings) -> None:
    done = (202, told(restart=restarting("done", new_epoch=8, took_s=1.0, live=1)))
    with played(settings, {RESTART: [done]}) as gateway:
        result = run(settings, "restart", "worker", "--drain", "--timeout", "12")
    assert (result.exit_code, result.stdout) == (
        0,
        "The worker of epoch 7 was replaced by that of epoch 8 in 1.0 s; 1 answer was live.\n",
    )
    assert gateway.orders == [(RESTART, {"drain": True, "timeout_s": 12.0})]


def test_what_ends_badly_is_one_line_and_status_1(settings: Settings) -> None:
    failed = (202, told(restart=restarting("failed", problem="its supervisor can't be reached")))
    with played(settings, {RESTART: [failed]}):
        result = run(settings, "restart", "worker")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "forebay: the worker was not replaced: its supervisor can't be reached"
    )


# --- drain --------------------------------------------------------------------------------------------------


def test_a_drain_waits_until_nothing_is_live(settings: Settings, screen: Screen, seen: StringIO) -> None:
    busy = (200, told(draining=True, live=2))
    with played(settings, {DRAIN: [busy], STATUS: [busy, (200, told(draining=True))]}) as gateway:
        line = gate.drain(settings, None, screen, SystemClock())
    assert line == "Nothing is live, and the gateway takes nothing new; `forebay drain --off` opens it again."
    assert gateway.asked == [(DRAIN, {"on": True}), (STATUS, None), (STATUS, None)]
    assert "2 answers live" in seen.getvalue()


def test_a_drain_that_takes_too_long_says_that_the_gateway_stays_closed(
    settings: Settings, screen: Screen
) -> None:
    clock, busy = FalseClock(), (200, told(draining=True, live=1))
    with played(settings, {DRAIN: [busy], STATUS: [busy]}) as gateway:
        gateway.before = lambda _order: clock.advance(3.0)
        with pytest.raises(OrderFailed, match="1 answer still live after 5 s; the gateway takes nothing new"):
            gate.drain(settings, 5.0, screen, clock)
    assert gateway.orders == [(DRAIN, {"on": True})]


def test_a_drain_that_another_ends_is_no_drain(settings: Settings, screen: Screen) -> None:
    busy, opened = (200, told(draining=True, live=1)), (200, told(live=1))
    with (
        played(settings, {DRAIN: [busy], STATUS: [opened]}),
        pytest.raises(OrderFailed, match="somebody opened the gateway"),
    ):
        gate.drain(settings, None, screen, SystemClock())


def test_off_opens_the_gateway_again(settings: Settings) -> None:
    with played(settings, {DRAIN: [(200, told())]}) as gateway:
        result = run(settings, "drain", "--off")
    assert (result.exit_code, result.stdout) == (0, "The gateway takes requests again.\n")
    assert gateway.asked == [(DRAIN, {"on": False})]


# --- stop ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def holding(lock: Path) -> Iterator[Callable[[], None]]:
    """Hold a lock of the run folder until the block ends, or what is yielded is called."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield lambda: fcntl.flock(file, fcntl.LOCK_UN)


def test_where_nothing_runs_a_stop_says_so_and_ends_well(settings: Settings) -> None:
    result = run(settings, "stop")
    assert (result.exit_code, result.stdout) == (
        0,
        f"Nothing runs for home {settings.home_folder} and port {PORT}.\n",
    )


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("role", ["proxy_lock", "supervisor_lock"])
def test_a_stop_is_over_when_proxy_and_supervisor_are_gone(
    role: str, at_once: bool, settings: Settings, screen: Screen, seen: StringIO
) -> None:
    folder, looks = RunFolder(settings.home_folder, PORT), []
    with (
        played(settings, {STOP: [(202, told(live=3))], STATUS: [(200, told(live=2))]}) as gateway,
        holding(getattr(folder, role)) as let_go,
    ):

        def look(order: str) -> None:
            looks.append(order)
            if len(looks) == 3:
                let_go()

        gateway.before = look
        line = Stop(settings, screen, SystemClock()).end(at_once=at_once)
    assert line == "Gateway and worker are gone."
    assert gateway.asked[0] == (STOP, {"at_once": at_once})
    assert len(looks) == 3
    assert "2 answers live" in seen.getvalue()


def test_a_service_is_not_stopped_behind_its_keepers_back(
    settings: Settings, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.stop.kept_by", lambda port: f"end {port}")
    with (
        played(settings, {STOP: [(202, told())]}) as gateway,
        holding(RunFolder(settings.home_folder, PORT).supervisor_lock),
        pytest.raises(SettingsError, match=f"`end {PORT}` ends them"),
    ):
        Stop(settings, screen, SystemClock()).end(at_once=False)
    assert gateway.asked == []


def test_what_doesnt_end_in_time_is_said(settings: Settings, screen: Screen) -> None:
    clock = FalseClock()
    with (
        played(settings, {STOP: [(202, told())], STATUS: [(200, told())]}) as gateway,
        holding(RunFolder(settings.home_folder, PORT).proxy_lock),
    ):
        gateway.before = lambda _order: clock.advance(settings.proxy.drain_s)
        with pytest.raises(OrderFailed, match=r"still there; `forebay stop --at-once` insists"):
            Stop(settings, screen, clock).end(at_once=False)


def test_a_gateway_that_is_there_but_silent_is_not_called_gone(settings: Settings, screen: Screen) -> None:
    with (
        holding(RunFolder(settings.home_folder, PORT).proxy_lock),
        pytest.raises(OrderFailed, match="something holds"),
    ):
        Stop(settings, screen, SystemClock()).end(at_once=False)


# --- who runs `forebay up` ----------------------------------------------------------------------------------


def test_one_up_holds_a_home_and_port_and_its_pid_is_known_as_long(settings: Settings) -> None:
    folder, other = RunFolder(settings.home_folder, PORT), RunFolder(settings.home_folder, PORT + 1)
    assert foreground_lock.holder(folder) is None
    with foreground_lock.held_by_us(folder):
        assert foreground_lock.holder(folder) == os.getpid()
        assert foreground_lock.holder(other) is None
        with (
            pytest.raises(SettingsError, match=f"runs already, as process {os.getpid()}"),
            foreground_lock.held_by_us(folder),
        ):
            pass
        with foreground_lock.held_by_us(other):
            pass
    assert foreground_lock.holder(folder) is None


def test_a_pid_in_a_lock_that_nobody_holds_is_nobody(settings: Settings) -> None:
    folder = RunFolder(settings.home_folder, PORT)
    folder.create()
    folder.up_lock.write_text("1\n")
    assert foreground_lock.holder(folder) is None


def test_a_second_up_is_refused_before_anything_is_fetched(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.up.resolve", lambda _model, _home: pytest.fail("the lock comes first"))
    with foreground_lock.held_by_us(RunFolder(settings.home_folder, PORT)):
        result = run(settings, "up")
    assert result.exit_code == 2
    assert f"`forebay up` runs already, as process {os.getpid()}" in result.stderr


def test_words_that_are_no_status_are_no_gateway(settings: Settings, screen: Screen) -> None:
    with (
        played(settings, {RESTART: [(202, {"restart": {"number": "x"}})]}),
        pytest.raises(GatewayAbsent),
    ):
        restart(settings, screen)
