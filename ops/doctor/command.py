"""`forebay doctor`: looks at all that Forebay needs, and says what is good and what to do about the rest."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.command import Config, Port, load
from shared.errors import SettingsError

if TYPE_CHECKING:
    from ops.doctor.checks import Patient
    from shared.config import Settings

Model = Annotated[
    str | None, typer.Option("--model", help="A folder, a Hugging Face id like org/name, or demo.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def doctor(config: Config = None, model: Model = None, port: Port = None, *, as_json: AsJson = False) -> None:
    """Check machine, MLX, memory, model, settings, disk and port; say what to do about what isn't good.

    It changes nothing and fetches nothing. Exit status 1 if anything is bad, else 0.
    """
    from rich.console import Console  # noqa: PLC0415 (--help must not wait for it)

    from ops.doctor.checks import CHECKS, look_at  # noqa: PLC0415 (likewise)
    from ops.doctor.show import as_json as in_json  # noqa: PLC0415 (likewise)
    from ops.doctor.show import counts, show  # noqa: PLC0415 (likewise)
    from ops.screen import Screen  # noqa: PLC0415 (likewise)
    from shared.clock import SystemClock  # noqa: PLC0415 (likewise)

    patient = _patient(config, {"model": model, "port": port})
    with Screen().step("Looking at machine, MLX, model and settings") as step:
        looked = look_at(patient, CHECKS, SystemClock(), step.tick)
    if as_json:
        typer.echo(in_json(looked))
    else:
        show(looked, Console(highlight=False))
    raise typer.Exit(1 if counts(looked)["bad"] else 0)


def _patient(config: Path | None, overrides: dict[str, Any]) -> "Patient":
    """Read the settings; where they can't be read, the defaults stand in, and the problem is a finding."""
    from ops.doctor.checks import Patient  # noqa: PLC0415 (--help must not wait for it)

    source = str(config) if config is not None else "the settings of variables and defaults"
    try:
        return Patient(load(config, overrides), source)
    except SettingsError as problem:
        return Patient(_defaults(), source, str(problem))


def _defaults() -> "Settings":
    """Return what is set without a file and options, or at least the plain defaults."""
    from shared.config import Settings  # noqa: PLC0415 (--help must not wait for it)

    try:
        return load(None, {})
    except SettingsError:
        return Settings.model_construct()
