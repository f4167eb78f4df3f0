"""README and the documents in ops agree with the program: commands, settings, metrics, codes, links."""

import re
import shlex
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main

from ops.cli import app
from proxy import failures
from shared import errors
from shared.config import Settings, _known_keys
from shared.lane_settings import LaneSettings
from shared.messages import DeathCause
from shared.metrics import Metrics

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "ops").glob("*.md"))]
RUNBOOK = ROOT / "ops" / "runbook.md"
PROGRAM = typer.main.get_command(app)

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def fenced(text: str) -> list[str]:
    """Return the lines of blocks of code; one that goes on in the next is one."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def inline(text: str) -> list[str]:
    """Return what stands in backticks outside of blocks."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", outside)]


def commands_in(line: str) -> list[list[str]]:
    """Return the words of each `forebay …` that a line of shell runs."""
    words = shlex.split(line, comments=True) if "forebay " in line else []
    found = []
    for place, word in enumerate(words):
        if word == "forebay" and (
            place == 0 or words[place - 1] in ("|", "&&", ";") or "=" in words[place - 1]
        ):
            rest = words[place + 1 :]
            ends = [at for at, each in enumerate(rest) if each in ("|", "&&", ";", ">", "2>", "&")]
            found.append(rest[: min(ends, default=len(rest))])
    return found


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that words name, and what follows; it fails where there is none of the name."""
    command, rest = PROGRAM, list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith(("-", "[", "http")):
        assert rest[0] in command.commands, f"there is no command {' '.join(words)!r}"
        command = command.commands[rest.pop(0)]
    # `forebay bench URL` is `forebay bench run URL`.
    return getattr(command, "commands", {}).get("run", command), rest


@each_document
def test_every_command_in_a_block_can_be_run_as_it_stands(document: Path) -> None:
    for line in fenced(document.read_text("utf-8")):
        for words in commands_in(line):
            command, rest = command_of(words)
            command.make_context(
                "forebay", list(rest), resilient_parsing=False
            ) if "--help" not in rest else None


@each_document
def test_every_command_and_option_that_is_named_exists(document: Path) -> None:
    for code in inline(document.read_text("utf-8")):
        if code.startswith("forebay "):
            command, rest = command_of(code.split()[1:])
            options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
            wrong = [
                word
                for word in rest
                if word.startswith("-") and word.split("=")[0] not in {*options, "--help"}
            ]
            assert not wrong, code


SETTINGS = set(_known_keys(Settings))
TABLES = {name.split(".")[0] for name in SETTINGS if "." in name} - {"lanes"}


@each_document
def test_every_setting_that_is_named_exists(document: Path) -> None:
    for code in inline(document.read_text("utf-8")):
        named = re.fullmatch(rf"((?:{'|'.join(TABLES)})\.[a-z_]+)(?: = \S+)?", code)
        if named and not named[1].endswith((".py", ".md", ".log", ".toml", ".yml", ".json")):
            assert named[1] in SETTINGS | {f"worker.{name}" for name in ("prefixes", "process")}, code


@each_document
def test_every_metric_that_is_named_exists(document: Path) -> None:
    told = re.findall(r"^# TYPE (\S+) (\w+)", Metrics().exposition().decode(), re.MULTILINE)
    names = {name for name, _ in told} | {name.removesuffix("_total") for name, _ in told}
    for histogram in [name for name, kind in told if kind == "histogram"]:
        names |= {histogram + end for end in ("_bucket", "_sum", "_count")}
    for name, more in re.findall(r"\b(forebay_[a-z_]+)(…?)", document.read_text("utf-8")):
        assert any(each.startswith(name) for each in names) if more else name in names, name


def anchors_of(text: str) -> set[str]:
    """Return what headings can be linked by, as hosts of repositories make it."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.+)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@each_document
def test_every_link_leads_somewhere(document: Path) -> None:
    text = document.read_text("utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        other = (document.parent / path).resolve() if path else document
        assert other.exists(), target
        if anchor:
            assert anchor in anchors_of(other.read_text("utf-8")), target


# --- the runbook --------------------------------------------------------------------------------------------


def refusals(kind: type[errors.Refusal] = errors.Refusal) -> set[str]:
    return {kind.code}.union(*(refusals(each) for each in kind.__subclasses__()))


def test_the_runbook_has_every_code_that_a_client_may_be_told_and_no_other() -> None:
    told = {code for code, _ in failures._ROUTE_FAILURES.values()} | refusals() | {"server_error"}
    section = RUNBOOK.read_text("utf-8").split("## What a client is told")[1].split("\n## ")[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    assert {code for row in rows for code in re.findall(r"`(\w+)`", row)} == told


def test_the_statuses_of_the_runbooks_codes_are_those_that_are_sent() -> None:
    section = RUNBOOK.read_text("utf-8").split("## What a client is told")[1].split("\n## ")[0]
    sent = {code: status for status, (code, _) in failures._ROUTE_FAILURES.items()} | {"server_error": 500}
    kinds = {kind.code: kind for kind in all_kinds()}
    for row in (row.split("|") for row in section.splitlines() if row.startswith("| `")):
        codes, statuses = re.findall(r"`(\w+)`", row[1]), [int(each) for each in re.findall(r"\d+", row[2])]
        for place, code in enumerate(codes):
            kind = kinds.get(code)
            status = sent[code] if kind is None else failures.failure_response(made(kind), lambda: 1.0).status
            assert status == statuses[min(place, len(statuses) - 1)], code


def all_kinds(kind: type[errors.Refusal] = errors.Refusal) -> list[type[errors.Refusal]]:
    return [kind, *(below for each in kind.__subclasses__() for below in all_kinds(each))]


def made(kind: type[errors.Refusal]) -> errors.Refusal:
    return kind("no", retry_after_s=2.0) if issubclass(kind, errors.Unavailable) else kind("no")


def test_settings_of_lanes_that_the_runbook_names_exist() -> None:
    fields = set(LaneSettings.model_fields)
    named = {
        code
        for code in inline(RUNBOOK.read_text("utf-8"))
        if re.fullmatch(r"[a-z]+_(places|s|slots|mb)", code)
    }
    known = fields | {name.split(".")[-1] for name in SETTINGS}
    assert named <= known | {"since_s"}, named - known


CAUSES: dict[DeathCause, str] = {
    "memory": "died for want of memory",
    "crash": "crashed",
    "loop_exception": "ended by an exception",
    "hang": "hung",
    "killed": "was killed from outside",
    "stuck_load": "got stuck while loading",
    "planned": "replaced on purpose",
    "cannot_load": "could not load the model",
}


def test_the_runbook_says_what_to_do_for_every_cause_of_death() -> None:
    section = RUNBOOK.read_text("utf-8").split("## The worker dies again and again")[1].split("\n## ")[0]
    assert set(CAUSES) == set(get_args(DeathCause))
    assert not [words for words in CAUSES.values() if words not in section]
