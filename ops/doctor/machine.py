"""Verdicts on the machine and on what Python found on it: chip, system, versions, clock, descriptors."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from ops.doctor.finding import Finding, bad, gibibytes, good, warn

# MLX's wheels for macOS are built for this one and later.
_MACOS_MIN: Final = (14, 0)
# 2024-01-01: no clock that is right is before it.
_CLOCK_S_MIN: Final = 1_704_067_200
_DESCRIPTORS_BAD: Final = 256
_DESCRIPTORS_WARN: Final = 4096


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine says of itself. `system` is Darwin or Linux; `translated`: by Rosetta.

    `release` is the version of macOS, or the kernel's.
    """

    system: str
    chip: str
    architecture: str
    cores: int
    memory_bytes: int
    release: str
    translated: bool = False


def judge_machine(machine: Machine) -> Finding:
    words = f"{machine.chip}, {machine.cores} cores, {gibibytes(machine.memory_bytes)} of memory"
    if machine.system != "Darwin":
        return good("machine", f"{words}, {machine.system} {machine.release}")
    words = f"{words}, macOS {machine.release}"
    if machine.translated:
        return bad(
            "machine",
            f"{words}; this Python runs translated, by Rosetta",
            "MLX needs an arm64 Python: install one, and Forebay with it",
        )
    if machine.architecture != "arm64":
        return bad("machine", f"{words}, {machine.architecture}", "MLX needs a Mac with Apple silicon")
    if _version(machine.release) < _MACOS_MIN:
        return bad("machine", words, f"MLX needs macOS {_MACOS_MIN[0]} or later: update it")
    return good("machine", words)


def _version(text: str) -> tuple[int, ...]:
    """Read 15.6.1; ValueError if it isn't numbers with dots between."""
    return tuple(int(part) for part in text.split("."))


def judge_python(version: str, asked: str) -> Finding:
    if SpecifierSet(asked).contains(version, prereleases=True):
        return good("python", f"Python {version}")
    return bad("python", f"Python {version}", f"Forebay needs Python {asked}: install it with such a one")


def applying(requirements: Iterable[str]) -> list[Requirement]:
    """Return those of a distribution's requirements that hold on this machine, without its extras."""
    parsed = map(Requirement, requirements)
    return [each for each in parsed if each.marker is None or each.marker.evaluate({"extra": ""})]


def judge_packages(asked: Sequence[Requirement], installed: Mapping[str, str | None]) -> list[Finding]:
    """Compare versions; one finding if all are as asked, else one for each that isn't."""
    wrong = [_package(each, installed.get(each.name)) for each in asked]
    found = [finding for finding in wrong if finding is not None]
    return found or [good("packages", f"{len(asked)} packages, each of a version that Forebay asks for")]


def _package(asked: Requirement, version: str | None) -> Finding | None:
    if version is not None and asked.specifier.contains(version, prereleases=True):
        return None
    has = f"{asked.name} {version} is installed" if version else f"{asked.name} isn't installed"
    do = "install Forebay again, which brings what it needs; then `forebay restart worker`"
    return bad("packages", f"{has}, and {asked.name}{asked.specifier} is asked for", do)


def judge_clock(now_s: float) -> Finding:
    if now_s < _CLOCK_S_MIN:
        return bad(
            "clock",
            "the clock is before 2024",
            "set it: times of keys, of the journal and of TLS are wrong until then",
        )
    return good("clock", "the clock is after 2023")


def judge_descriptors(soft: int, hard: int, infinity: int) -> Finding:
    """Judge the limit of open files; the proxy raises its own to the hard one, so that only this counts."""
    if hard == infinity:
        return good("descriptors", "open files: no hard limit")
    says = f"open files: {soft} now, {hard} at most"
    do = (
        "raise it: `ulimit -Hn 65536`, as root, or LimitNOFILE of a systemd unit"
        if sys.platform == "linux"
        else "raise it: `sudo launchctl limit maxfiles 65536 65536`"
    )
    if hard < _DESCRIPTORS_BAD:
        return bad("descriptors", f"{says}, which is too few for a gateway", do)
    if hard < _DESCRIPTORS_WARN:
        return warn("descriptors", f"{says}, so that no more connections than that can be open", do)
    return good("descriptors", says)
