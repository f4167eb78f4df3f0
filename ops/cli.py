"""The `forebay` command: up, proxy, worker, fetch, keys, and the orders to what runs.

Everything heavy is imported inside a command, so that `forebay --help` answers at once.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ops import keys, orders, quarantine
from ops.bench import command as bench
from ops.command import Config, load, plain_errors
from ops.doctor.command import doctor
from ops.plan.command import plan
from ops.services import command as services

Model = Annotated[
    str | None, typer.Option("--model", help="A folder, a Hugging Face id like org/name, or demo.")
]
Host = Annotated[str | None, typer.Option("--host", help="The address to listen on.")]
Port = Annotated[int | None, typer.Option("--port", help="The port to listen on.")]
LogFormat = Annotated[
    Literal["console", "json"] | None,
    typer.Option("--log-format", help="How its log looks: for people, or an object a line."),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    typer.Option("--log-level", help="The least important that is logged."),
]
LifelineFd = Annotated[
    int | None,
    typer.Option("--lifeline-fd", hidden=True, help="A pipe; its end is the end of this process."),
]
BoundLog = Annotated[
    Path | None,
    typer.Option("--bound-log", hidden=True, help="The file that stderr goes to; it is kept bounded."),
]

app = typer.Typer(
    name="forebay",
    help="An admission gateway in front of a supervised MLX worker.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(quarantine.app, rich_help_panel=orders.PANEL)


@app.command()
def up(
    *,
    config: Config = None,
    model: Model = None,
    host: Host = None,
    port: Port = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
) -> None:
    """Run proxy and worker in this terminal, until Ctrl-C."""
    overrides = {"model": model, "host": host, "port": port}
    with plain_errors():
        settings = load(config, overrides | _log(log_format, log_level))
        from ops import up as foreground  # noqa: PLC0415 (--help must not wait for it)

        children = overrides | {"log-format": log_format, "log-level": log_level}
        raise typer.Exit(foreground.up(settings, config, children))


@app.command()
def proxy(
    config: Config = None,
    model: Model = None,
    host: Host = None,
    port: Port = None,
    *,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    lifeline_fd: LifelineFd = None,
    bound_log: BoundLog = None,
) -> None:
    """Run the proxy alone: HTTP in front, a socket for the worker behind."""
    with plain_errors():
        _keep_bounded(bound_log)
        overrides = {"model": model, "host": host, "port": port} | _log(log_format, log_level)
        settings = load(config, overrides)
        from ops.models import resolve  # noqa: PLC0415 (--help must not wait for it)
        from proxy.__main__ import run  # noqa: PLC0415 (likewise)
        from proxy.authenticate import refuse_open_door  # noqa: PLC0415 (likewise)
        from proxy.keys import KEY_FILE_NAME, KeyFile  # noqa: PLC0415 (likewise)

        refuse_open_door(settings.host, KeyFile(settings.home_folder / KEY_FILE_NAME).read())
        folder = resolve(settings.model, settings.home_folder)
        raise typer.Exit(run(settings, folder, lifeline_fd, lambda: load(config, overrides)))


@app.command()
def worker(
    config: Config = None,
    model: Model = None,
    host: Host = None,
    port: Port = None,
    *,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    lifeline_fd: LifelineFd = None,
    bound_log: BoundLog = None,
) -> None:
    """Run the supervised worker alone; it finds its proxy by home and port."""
    with plain_errors():
        _keep_bounded(bound_log)
        overrides = {"model": model, "host": host, "port": port} | _log(log_format, log_level)
        settings = load(config, overrides)
        from ops.models import resolve  # noqa: PLC0415 (--help must not wait for it)
        from shared import logs  # noqa: PLC0415 (likewise)
        from worker.__main__ import run  # noqa: PLC0415 (likewise)

        logs.configure(settings.log, "supervisor")
        raise typer.Exit(run(settings, resolve(settings.model, settings.home_folder), lifeline_fd))


@app.command()
def fetch(config: Config = None, model: Model = None) -> None:
    """Fetch the model and say where its folder is, without serving it."""
    with plain_errors():
        settings = load(config, {"model": model})
        from ops.models import resolve  # noqa: PLC0415 (--help must not wait for it)

        typer.echo(resolve(settings.model, settings.home_folder).path)


app.add_typer(keys.app)
app.add_typer(bench.app)
app.command()(doctor)
app.command()(plan)
orders.add_to(app)
services.add_to(app)


def _log(log_format: str | None, level: str | None) -> dict[str, Any]:
    """Return what the options say of [log], as settings."""
    given = {"format": log_format, "level": level}
    said = {name: value for name, value in given.items() if value is not None}
    return {"log": said} if said else {}


def _keep_bounded(log: Path | None) -> None:
    if log is not None:
        from ops.services.log_bound import keep_bounded  # noqa: PLC0415 (only services of launchd need it)

        keep_bounded(log)


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


def main() -> None:
    """Be the console script."""
    app()


if __name__ == "__main__":
    main()
