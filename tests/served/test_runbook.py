"""Every command in the runbook's blocks, run as it stands, in its order, on a real gateway."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.free_port import free_port
from tests.served.gateway import wait_until

RUNBOOK = Path(__file__).parents[2] / "ops" / "runbook.md"
# What the runbook takes for granted.
BEFORE = "forebay keys add carol --lane interactive && forebay reload"
# Right beside 0: doctor may find the machine lacking, and nothing has that fingerprint.
ALSO = {"forebay doctor": {1}, "forebay quarantine clear 0123456789abcdef": {1, 2}}


def blocks() -> list[str]:
    return re.findall(r"^```\n(.*?)^```", RUNBOOK.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def desk(tmp_path_factory, small_folder):
    """A home directory as an operator has it, with a gateway on the port that `forebay` means."""
    home = tmp_path_factory.mktemp("operator")
    port = free_port()
    found = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    tools = Path(sys.executable).parent
    environment = {
        **found,
        "HOME": str(home),
        "FOREBAY_PORT": str(port),
        "FOREBAY_MODEL": str(small_folder),
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    with (home / "up.log").open("wb") as log:
        command = [tools / "forebay", "up"]
        gateway = subprocess.Popen(command, env=environment, cwd=home, stdout=log, stderr=log)
    try:
        wait_until(lambda: "Forebay is ready" in (home / "up.log").read_text(), f"ready; see {home}")
        yield Desk(home, port, environment)
    finally:
        gateway.terminate()
        gateway.wait(60)


class Desk:
    """Where an operator sits."""

    def __init__(self, home: Path, port: int, environment: dict[str, str]) -> None:
        self.home = home
        self.port = port
        self._environment = environment

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", line.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")],
            env=self._environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )


def test_every_command_in_the_runbooks_blocks_does_what_it_is_there_for(desk):
    """One test, because they stand in an order: keys are made before they are revoked."""
    assert desk.run(BEFORE).returncode == 0
    lines = [line for block in blocks() for line in block.splitlines() if line.strip()]
    assert len(lines) > 15
    for line in lines:
        command = line.split("  #")[0].strip()
        ended = desk.run(command)
        allowed = {0} | ALSO.get(command, set())
        assert ended.returncode in allowed, f"{command}: {ended.stdout}{ended.stderr}"
        if command.startswith("forebay") and ">" not in command:
            assert ended.stdout.strip() or ended.stderr.strip(), command
    evidence = desk.run("tar tzf evidence.tgz").stdout.split()
    assert {"journal.jsonl", "ready.json", "metrics.txt", "logs/proxy.log"} <= set(evidence)


@pytest.mark.parametrize(
    "command",
    [
        "forebay restart worker",
        "forebay restart worker --drain",
        "forebay drain",
        "forebay drain --off",
        "forebay keys list",
        "forebay journal --stderr",
    ],
)
def test_the_orders_in_its_tables_can_be_given(desk, command):
    assert command in RUNBOOK.read_text("utf-8")
    ended = desk.run(command)
    assert ended.returncode == 0, ended.stderr
