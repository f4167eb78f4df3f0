"""The `forebay` command: up, proxy, worker, fetch.

Everything heavy is imported inside a command, so that `forebay --help` answers at once.
"""

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
Model = Annotated[
    str | None, typer.Option("--model", help="A folder, a Hugging Face id like org/name, or demo.")
]
Host = Annotated[str | None, typer.Option("--host", help="The address to listen on.")]
Port = Annotated[int | None, typer.Option("--port", help="The port to listen on.")]
LifelineFd = Annotated[
    int | None,
    typer.Option("--lifeline-fd", hidden=True, help="A pipe; its end is the end of this process."),
]

app = typer.Typer(
    name="forebay",
    help="An admission gateway in front of a supervised MLX worker.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def up(config: Config = None, model: Model = None, host: Host = None, port: Port = None) -> None:
    """Run proxy and worker in this terminal, until Ctrl-C."""
    overrides = {"model": model, "host": host, "port": port}
    with _plain_errors():
        settings = _load(config, overrides)
        from ops import up as foreground  # noqa: PLC0415 (--help must not wait for it)

        raise typer.Exit(foreground.up(settings, config, overrides))


@app.command()
def proxy(
    config: Config = None,
    model: Model = None,
    host: Host = None,
    port: Port = None,
    lifeline_fd: LifelineFd = None,
) -> None:
    """Run the proxy alone: HTTP in front, a socket for the worker behind."""
    with _plain_errors():
        settings = _load(config, {"model": model, "host": host, "port": port})
        from ops.models import resolve  # noqa: PLC0415 (--help must not wait for it)
        from proxy.__main__ import run  # noqa: PLC0415 (likewise)

        raise typer.Exit(run(settings, resolve(settings.model, settings.home_folder), lifeline_fd))


@app.command()
def worker(
    config: Config = None,
    model: Model = None,
    host: Host = None,
    port: Port = None,
    lifeline_fd: LifelineFd = None,
) -> None:
    """Run the supervised worker alone; it finds its proxy by home and port."""
    with _plain_errors():
        settings = _load(config, {"model": model, "host": host, "port": port})
        from ops.models import resolve  # noqa: PLC0415 (--help must not wait for it)
        from shared import logs  # noqa: PLC0415 (likewise)
        from worker.__main__ import run  # noqa: PLC0415 (likewise)

        logs.configure(settings.log)
        raise typer.Exit(run(settings, resolve(settings.model, settings.home_folder), lifeline_fd))


@app.command()
def fetch(config: Config = None, model: Model = None) -> None:
    """Fetch the model and say where its folder is, without serving it."""
    with _plain_errors():
        settings = _load(config, {"model": model})
        from ops.models import resolve  # noqa: PLC0415 (--help must not wait for it)

        typer.echo(resolve(settings.model, settings.home_folder).path)


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # noqa: PLC0415 (read only when asked for)

        typer.echo(f"forebay {version('forebay')}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Say the version.")
    ] = False,
) -> None:
    """Take what stands before a command's name."""
    assert not version, "its callback has ended the program"


def _load(config: Path | None, overrides: dict[str, Any]) -> "Settings":
    from shared.config import Settings  # noqa: PLC0415 (pydantic: --help must not wait for it)

    return Settings.load(config, **overrides)


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn what an operator can mend into one line and exit status 2; anything else keeps its traceback."""
    try:
        yield
    except (SettingsError, ModelError) as problem:
        typer.secho(f"forebay: {problem}", fg=typer.colors.RED, err=True)
        raise typer.Exit(2) from problem


def main() -> None:
    """Be the console script."""
    app()


if __name__ == "__main__":
    main()
