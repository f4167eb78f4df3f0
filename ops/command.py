"""What the commands share: the --config option, the settings, and an operator's errors as one line."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import ForebayError, ModelError, SettingsError

if TYPE_CHECKING:
    from shared.config import Settings

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A TOML file; forebay.example.toml lists every setting."),
]

Port = Annotated[int | None, typer.Option("--port", help="The port of the gateway that is meant.")]


def load(config: Path | None, overrides: dict[str, Any]) -> "Settings":
    from shared.config import Settings  # noqa: PLC0415 (pydantic: --help must not wait for it)

    return Settings.load(config, **overrides)


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turn what an operator can mend into one line: exit status 2 if nothing was done, 1 if it ended badly.

    Anything else keeps its traceback.
    """
    try:
        yield
    except OrderFailed as problem:
        typer.secho(f"forebay: {problem}", fg=typer.colors.RED, err=True)
        raise typer.Exit(1) from problem
    except (SettingsError, ModelError) as problem:
        typer.secho(f"forebay: {problem}", fg=typer.colors.RED, err=True)
        raise typer.Exit(2) from problem


class OrderFailed(ForebayError):
    """What a command began did not come to a good end; the message says what state that leaves."""
