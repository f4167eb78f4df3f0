"""A run's result as JSON: what was measured, where, with what; written whole or not at all."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from ops.bench.aftermath import lane_ratios, peer_ratios, scenario_figures
from ops.bench.doing import Measured
from ops.bench.figures import arm_figures
from ops.bench.plan import Plan, Work
from ops.bench.prompts import Prompts
from ops.bench.target import Target
from ops.figures.processes import machine
from shared.errors import SettingsError
from shared.limits import BENCH_RESULT_BYTES_MAX

KIND: Final = "forebay bench"
FORMAT: Final = 1

_PACKAGES: Final = ("forebay", "aiohttp", "uvloop", "mlx", "mlx-lm")


def run_metadata(
    plan: Plan, prompts: Prompts, targets: Sequence[Target], began: str, skipped: Mapping[Work, str]
) -> dict[str, Any]:
    """Return what somebody needs who wants to measure the same again; no key, and of addresses the host."""
    return {
        "began": began,
        "targets": {
            # Of a model that is a folder here its name will do: nobody needs to know where it is.
            target.name: {
                "host": target.address.host,
                "model": Path(target.model).name if target.model.startswith("/") else target.model,
                "more": dict(target.more),
            }
            for target in targets
        },
        "mode": "open" if plan.axes.rates_hz else "closed",
        "works": list(plan.works),
        "skipped": {str(work): why for work, why in skipped.items()},
        "axes": asdict(plan.axes),
        "requests": plan.requests,
        "warm_up": plan.warm_up,
        "repetitions": plan.repetitions,
        "shared_prefix_tokens": plan.shared_prefix_tokens,
        "seed": plan.seed,
        "salt": prompts.salt,
        "prompt_fit": asdict(prompts.fit),
        "seconds_max": plan.seconds_max,
        "timeout_s": plan.timeout_s,
        "machine": {**machine(), "processor": platform.processor() or platform.machine()},
        "python": platform.python_version(),
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def whole_result(metadata: Mapping[str, Any], measured: Measured, seed: int) -> dict[str, Any]:
    """Return metadata and figures of all that was measured so far."""
    results = [arm_figures(arm, passes, seed) for arm, passes in measured.passes.items() if passes]
    server, *peers = metadata["targets"]
    return {
        "kind": KIND,
        "format": FORMAT,
        "interrupted": measured.stopped == "interrupted",
        "stopped": measured.stopped or None,
        "run": dict(metadata),
        "results": results,
        "scenarios": scenario_figures(measured.passes, measured.killed_at),
        "ratios": [
            *lane_ratios(results, seed),
            *(found for peer in peers for found in peer_ratios(results, server, peer, seed)),
        ],
    }


def write(file: Path, text: str) -> None:
    """Put a text in place of what is there. SettingsError if it can't be."""
    aside = file.with_name(f".{file.name}.part")
    try:
        aside.write_text(text, "utf-8")
        aside.replace(file)
    except OSError as problem:
        raise SettingsError(f"{file}: {problem.strerror}") from problem


def require_writable(file: Path | None) -> None:
    """Raise SettingsError if a result couldn't be written there: better now than after an hour."""
    if file is None:
        return
    if file.is_dir() or not file.parent.is_dir():
        raise SettingsError(f"{file}: {'a folder' if file.is_dir() else 'its folder is not there'}")
    aside = file.with_name(f".{file.name}.part")
    try:
        aside.touch()
        aside.unlink()
    except OSError as problem:
        raise SettingsError(f"{file}: {problem.strerror}") from problem


def as_json(result: Mapping[str, Any]) -> str:
    return json.dumps(result, indent=1, allow_nan=False) + "\n"


def read(file: Path) -> dict[str, Any]:
    """Return a result that was written here. SettingsError if it is none."""
    try:
        if file.stat().st_size > BENCH_RESULT_BYTES_MAX:
            raise SettingsError(f"{file} is larger than any result")
        found = json.loads(file.read_text("utf-8"))
    except OSError as problem:
        raise SettingsError(f"{file}: {problem.strerror}") from problem
    except (ValueError, RecursionError) as problem:
        raise SettingsError(f"{file} is no JSON: {str(problem)[:200]}") from problem
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise SettingsError(f"{file} is no result of `forebay bench`")
    if found.get("format") != FORMAT:
        raise SettingsError(f"{file} has format {found.get('format')}; this version reads {FORMAT}")
    return found
