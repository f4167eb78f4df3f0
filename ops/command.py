"""What the commands share: the --config option, the settings, and an operator's errors as one line."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import ModelError, SettingsError

if TYPE_CHECKING:
    from shared.config import Settings

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A TOML file; forebay.example.toml lists every setting."),
]


def load(config: Path | None, overrides: dict[str, Any]) -> "Settings":
    from shared.config import Settings  # noqa: PLC0415 (pydantic: --help must not wait for it)

    return Settings.load(config, **overrides)


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turn what an operator can mend into one line and exit status 2; anything else keeps its traceback."""
    try:
        yield
    except (SettingsError, ModelError) as problem:
        typer.secho(f"forebay: {problem}", fg=typer.colors.RED, err=True)
        raise typer.Exit(2) from problem
