"""ops/security.md says what is so: addresses, orders, settings, options and file modes in it are checked."""

import re
import stat
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ops import cli, up
from ops.child import Child, ChildSpec
from shared import limits
from shared.config import LogSettings, Settings, WorkerSettings
from tests.proxy.small_gateway import NAME, Gateway

NOTES = (Path(__file__).parents[2] / "ops" / "security.md").read_text("utf-8")


def section(heading):
    return NOTES.split(f"# {heading}\n")[1].split("\n## ")[0]


async def test_what_is_shown_without_a_key_is_listed_and_nothing_else_is_shown(tmp_path):
    listed = set(re.findall(r"^\| `(/[^`]*)` \|", section("What is shown without a key"), re.MULTILINE))
    here = Gateway(tmp_path / NAME)
    here.add_key("ci")
    async with here:
        routes = [route for route in here.proxy.app.router.routes() if route.resource]
        shown = set()
        for path in {route.resource.canonical for route in routes if route.method == "GET"}:
            if (await here.get(path.replace("{id}", "x"))).status not in {401, 403}:
                shown.add(path)
    assert {path for path in shown if not path.startswith("/status/assets/")} == listed


async def test_the_orders_of_an_admin_key_are_those_listed(tmp_path):
    cells = "\n".join(re.findall(r"^\| (`.*?) \|", section("What is shown without a key"), re.MULTILINE))
    assert "/admin" not in cells
    table = NOTES.split("### Admin keys")[1].split("\n\n")[2]
    listed = set(re.findall(r"`((?:GET|POST) /admin/[^`]+)`", table))
    async with Gateway(tmp_path / NAME) as here:
        taken = {f"{each.method} {each.path}" for each in here.proxy.admin.orders if each.from_afar}
    assert listed == taken


def test_every_setting_in_it_exists():
    named = set(re.findall(r"`proxy\.([a-z_]+)", NOTES))
    assert named
    assert named <= set(Settings.model_fields["proxy"].annotation.model_fields)
    assert "prefix_disk_gb" in WorkerSettings.model_fields
    assert WorkerSettings().prefix_disk_gb == 0
    assert (LogSettings().prompts, Settings.model_fields["host"].default) == (False, "127.0.0.1")


def test_every_option_for_keys_in_it_exists():
    named = set(re.findall(r"`(--[a-z-]+)`", NOTES.split("## Keys")[1].split("\n## ")[0]))
    command = typer.main.get_command(cli.app).commands["keys"].commands["add"]
    assert named <= {option for parameter in command.params for option in parameter.opts}
    assert {"--lane", "--model", "--admin"} <= named


def test_its_numbers_are_the_limits():
    assert limits.BODY_BYTES_MAX == 16 * limits.MIB
    assert limits.BODY_DEPTH_MAX == 64
    assert f"{limits.BODY_PARTS_MAX:,} parts" in NOTES
    assert (limits.HEADER_LINE_BYTES_MAX, limits.HEADER_BYTES_MAX) == (8 * limits.KIB, 16 * limits.KIB)
    assert f"comment every {limits.KEEPALIVE_INTERVAL_S:g} s" in NOTES.replace("\n", " ")
    assert f"in steps of {limits.PREFIX_BLOCK_TOKENS} tokens" in NOTES


# --- the files of `forebay up` ------------------------------------------------------------------------------


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_logs_of_up_are_their_owners_alone(tmp_path):
    log = tmp_path / "home" / "logs" / "proxy.log"
    child = Child(ChildSpec("proxy", (sys.executable, "-c", "print('x' * 11_000_000)"), log))
    child.start()
    child._process.wait()
    child.bound_log()
    child.kill()
    assert (mode(log.parent), mode(log), mode(log.with_name("proxy.log.1"))) == (0o700, 0o600, 0o600)
    assert (log.stat().st_size, log.with_name("proxy.log.1").stat().st_size) == (0, 11_000_001)


@pytest.mark.parametrize(
    "given", [{"format": "json"}, {"level": "error"}, {"format": "json", "level": "debug"}]
)
def test_up_hands_its_log_options_on_and_they_win_over_the_file(tmp_path, monkeypatch, given):
    file = tmp_path / "forebay.toml"
    file.write_text(f'home = "{tmp_path}"\n[log]\nlevel = "warning"\nprompts = true\n')
    handed = []
    monkeypatch.setattr(up, "up", lambda settings, _config, options: handed.append((settings, options)) or 0)
    words = [f"--log-{name}={value}" for name, value in given.items()]
    assert CliRunner().invoke(cli.app, ("up", "--config", str(file), *words)).exit_code == 0
    ((settings, options),) = handed
    assert settings.log == LogSettings(**({"level": "warning", "prompts": True} | given))
    assert {name: value for name, value in options.items() if value is not None} == {
        f"log-{name}": value for name, value in given.items()
    }


def test_a_log_option_that_is_none_is_refused():
    assert CliRunner().invoke(cli.app, ("proxy", "--log-format", "xml")).exit_code == 2
