"""`forebay up` with false children: ready is said, deaths are mended, and nothing outlives it."""

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import cast

import psutil
import pytest
from rich.console import Console

from ops.child import Child, ChildSpec, RestartDelay
from ops.screen import Screen
from ops.stop import Stop
from ops.up import _Life, refuse_taken_port
from ops.welcome import base_address, curl_line, kill_line
from shared.clock import FalseClock, SystemClock
from shared.config import Settings
from shared.errors import SettingsError
from shared.model_folder import ModelFolder
from shared.run_folder import RunFolder
from tests.free_port import free_port

DEADLINE_S = 60.0
FALSE_CHILD = str(Path(__file__).with_name("false_child.py"))
KEEP_UP = """
import sys
from pathlib import Path
from ops.foreground_lock import held_by_us
from ops.up import keep_up
from shared.config import Settings
from shared.model_folder import ModelFolder
from shared.run_folder import RunFolder

folder, port = Path(sys.argv[1]), sys.argv[2]
model = ModelFolder(folder, "org/tiny", "llama", 32, 8, (2,), 7, "f")
commands = {
    role: (sys.executable, sys.argv[3], role, port, str(folder)) for role in ("proxy", "worker")
}
with held_by_us(RunFolder(folder, int(port))):
    sys.exit(keep_up(Settings.load(home=folder, port=int(port)), model, commands))
"""


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.02)


class Up:
    """One run of `forebay up`, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "up.out"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", KEEP_UP, str(self.folder), str(self.port), FALSE_CHILD],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def start_until_ready(self) -> None:
        self.start()
        eventually(lambda: "Ctrl-C ends Forebay" in self.said(), "it says that it is ready")
        eventually(lambda: self.lives("proxy") and self.lives("worker"), "both run")

    def said(self) -> str:
        return self.output.read_text()

    def pids(self, role: str) -> list[int]:
        file = self.folder / f"{role}.pids"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def lives(self, role: str) -> bool:
        return any(
            psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
            for pid in self.pids(role)
        )

    def any_lives(self) -> bool:
        return self.lives("proxy") or self.lives("worker")

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def status(self) -> int:
        assert self.process is not None
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    run = Up(tmp_path)
    yield run
    if run.process is not None and run.process.poll() is None:
        run.process.kill()
        run.process.wait()
    eventually(lambda: not run.any_lives(), "children end with their test")


def test_it_says_when_it_is_ready_and_how_to_ask(up: Up) -> None:
    (up.folder / "not-ready").touch()
    up.start()
    eventually(lambda: "loading the model" in up.said(), "it says that it waits")
    eventually(lambda: bool(up.pids("proxy")), "the proxy runs")
    assert "Forebay is ready" not in up.said()
    (up.folder / "not-ready").unlink()
    eventually(lambda: "Ctrl-C ends Forebay" in up.said(), "it is ready")
    assert f"curl -N http://127.0.0.1:{up.port}/v1/chat/completions" in up.said()
    assert "org/tiny" in up.said()
    assert str(up.folder / "logs" / "proxy.log") in up.said()


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_proxy_then_the_worker_and_exits_0(up: Up, kind: signal.Signals) -> None:
    up.start_until_ready()
    up.signal(kind)
    assert up.status() == 0
    assert not up.any_lives()
    assert (up.folder / "ended").read_text().split() == ["proxy", "worker"]


def test_a_signal_while_it_loads_ends_all(up: Up) -> None:
    (up.folder / "not-ready").touch()
    up.start()
    eventually(lambda: bool(up.pids("proxy")) and bool(up.pids("worker")), "both run")
    up.signal(signal.SIGINT)
    assert up.status() == 0
    assert not up.any_lives()


def test_a_second_signal_ends_a_drain_at_once(up: Up) -> None:
    (up.folder / "proxy-lingers").touch()
    up.start_until_ready()
    up.signal(signal.SIGINT)
    eventually((up.folder / "ended").exists, "the proxy drains")
    assert up.lives("proxy")
    up.signal(signal.SIGINT)
    assert up.status() == 0
    assert not up.any_lives()


def test_a_child_that_dies_is_started_again_and_said(up: Up) -> None:
    up.start_until_ready()
    os.kill(up.pids("worker")[-1], signal.SIGKILL)
    eventually(lambda: len(up.pids("worker")) == 2, "a second life")
    assert "The worker was killed by SIGKILL; it starts again in 1 s." in up.said()
    assert len(up.pids("proxy")) == 1


def test_a_child_that_cannot_start_shows_its_last_words_and_exits_1(up: Up) -> None:
    (up.folder / "not-ready").touch()
    (up.folder / "worker-fails").touch()
    up.start()
    assert up.status() == 1
    assert "The worker ended with exit status 3 before it was ready." in up.said()
    assert "  this role can't start, said the child" in up.said()
    assert not up.any_lives()


@pytest.mark.parametrize("detail", ["small/model.safetensors: it is cut off", "it doesn't fit in memory"])
def test_a_model_that_cannot_be_loaded_at_the_first_start_is_said_once_and_exits_1(
    up: Up, detail: str
) -> None:
    worker = {"last_death": "cannot_load", "last_death_detail": detail}
    (up.folder / "not-ready").write_text(json.dumps({"worker": worker}))
    up.start()
    assert up.status() == 1
    assert f"Forebay can't start; its worker says: {detail}\n" in up.said()
    assert "tried again" not in up.said()
    assert not up.any_lives()


def test_another_death_while_it_starts_is_said_and_waited_for(up: Up) -> None:
    worker = {"last_death": "memory", "last_death_detail": "exit status 1"}
    (up.folder / "not-ready").write_text(json.dumps({"worker": worker}))
    up.start()
    eventually(lambda: "tried again: exit status 1" in up.said(), "it says that a worker died")
    (up.folder / "not-ready").unlink()
    eventually(lambda: "Ctrl-C ends Forebay" in up.said(), "it is ready")


def stop(up: Up, *, at_once: bool) -> str:
    settings = Settings.load(home=up.folder, port=up.port)
    return Stop(settings, Screen(Console(file=StringIO())), SystemClock()).end(at_once=at_once)


def test_forebay_stop_ends_it_in_order(up: Up) -> None:
    up.start_until_ready()
    assert up.process is not None
    line = stop(up, at_once=False)
    assert line == f"`forebay up` (process {up.process.pid}) is gone, and all it ran."
    assert not up.any_lives()
    assert up.status() == 0
    assert (up.folder / "ended").read_text().split() == ["proxy", "worker"]
    assert stop(up, at_once=False).startswith("Nothing runs")


def test_forebay_stop_at_once_waits_for_no_drain(up: Up) -> None:
    (up.folder / "proxy-lingers").touch()
    up.start_until_ready()
    stop(up, at_once=True)
    assert up.status() == 0
    assert not up.any_lives()


def test_sigkill_of_up_leaves_nothing(up: Up) -> None:
    up.start_until_ready()
    up.signal(signal.SIGKILL)
    up.status()
    eventually(lambda: not up.any_lives(), "the children see their lifelines end")


def test_only_this_lifes_words_are_shown_and_a_large_log_is_put_aside(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_bytes(b"x" * 10_000_001)
    child = Child(ChildSpec("worker", (sys.executable, "-c", "print('new words')"), log))
    for _ in range(2):
        child.start()
        eventually(lambda: not child.running, "it ends")
    assert child.last_lines(15) == ["new words"]
    assert log.read_text() == "new words\nnew words\n"
    assert log.with_name("worker.log.1").stat().st_size == 10_000_001
    child.kill()


class Refused:
    """A child that ended, and that the system can't start again for some tries."""

    ending = "was killed by SIGKILL"

    def __init__(self, tries: int) -> None:
        self.spec = ChildSpec("proxy", (), Path("nowhere"))
        self.running = False
        self.tries = tries

    def start(self) -> None:
        self.tries -= 1
        if self.tries >= 0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        self.running = True

    def bound_log(self) -> None:
        pass


def test_a_child_that_the_system_cannot_start_now_is_tried_again_and_the_other_goes_on() -> None:
    child, clock, said = Refused(tries=2), FalseClock(0.0), list[str]()
    life = _Life(cast("Child", child), clock, said.append)
    for _ in range(10):
        life.look_after()
        clock.advance(1.0)
    assert child.running
    assert said == [
        "The proxy was killed by SIGKILL; it starts again in 1 s.",
        "The proxy can't be started (Resource temporarily unavailable); it starts again in 2 s.",
        "The proxy can't be started (Resource temporarily unavailable); it starts again in 4 s.",
    ]


def test_the_delay_doubles_up_to_half_a_minute_and_a_good_life_resets_it() -> None:
    delay = RestartDelay()
    assert [delay.after_life_of(0) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert [delay.after_life_of(lived_s) for lived_s in (60, 0)] == [1, 2]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_free_port_is_free_and_stays_so(host: str) -> None:
    port = free_port()
    refuse_taken_port(host, port)
    refuse_taken_port(host, port)


def test_an_address_of_another_machine_is_refused_without_a_word_about_ports() -> None:
    with pytest.raises(SettingsError) as problem:
        refuse_taken_port("192.0.2.1", 8000)
    assert "--port" not in str(problem.value)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("localhost", "http://localhost:8000"),
    ],
)
def test_a_wildcard_is_shown_as_an_address_that_can_be_asked(host: str, address: str) -> None:
    assert base_address(Settings.load(host=host, port=8000)) == address


def test_the_curl_line_survives_a_shell_whatever_the_model_is_called() -> None:
    folder = ModelFolder(Path("/m"), 'it\'s "mine" $HOME', "llama", 32, 8, (2,), 7, "f")
    line = curl_line(Settings.load(), folder).replace("curl ", "printf '%s\\n' ", 1)
    out = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout
    assert '"model": "it\'s \\"mine\\" $HOME"' in out


def test_the_kill_line_means_this_forebays_worker_and_no_other() -> None:
    settings = [Settings.load(home=Path("/h/a b"), port=port) for port in (8000, 8001)]
    program, *options, pattern = shlex.split(kill_line(settings[0]))
    assert (program, options) == ("pkill", ["-9", "-f"])
    mine, other = (
        f'python -P -m worker.process {{"endpoint":"{RunFolder(each.home_folder, each.port).endpoint}"}}'
        for each in settings
    )
    assert re.search(pattern, mine)
    assert not re.search(pattern, other)
    assert not re.search(pattern, kill_line(settings[0]))


def test_a_log_that_grows_large_in_one_life_is_put_aside_and_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    child = Child(
        ChildSpec("worker", (sys.executable, "-c", "import os; os.write(1, b'x' * 10_000_001)"), log)
    )
    child.start()
    eventually(lambda: not child.running, "it has written and ended")
    with log.open("ab") as still_open:
        child.bound_log()
        still_open.write(b"new words\n")
    assert log.read_bytes() == b"new words\n"
    assert log.with_name("worker.log.1").stat().st_size == 10_000_001
    child.bound_log()
    assert log.read_bytes() == b"new words\n"
    assert child.last_lines(5) == ["new words"]
    child.kill()
