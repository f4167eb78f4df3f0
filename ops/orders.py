"""The commands given to what runs, or asking after it: status, top, reload, restart, drain, stop, journal."""

from typing import Annotated

import typer

from ops.command import Config, Port, load, plain_errors

Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", min=1, max=86_400, help="The longest wait.")
]

PANEL = "Orders to what runs"

_RESTART_S = 600.0

restart = typer.Typer(
    name="restart",
    help="`forebay restart worker`: replace the worker while streams stay open.",
    no_args_is_help=True,
)


def add_to(app: typer.Typer) -> None:
    """Give the commands of this file to the program."""
    app.add_typer(restart, rich_help_panel=PANEL)
    for command in (status, top, drain, stop, reload, journal):
        app.command(rich_help_panel=PANEL)(command)


def status(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
    config: Config = None,
    port: Port = None,
) -> None:
    """Show how the gateway is, once. Exit status: 0 it serves, 1 it doesn't now, 2 there is none."""
    with plain_errors():
        settings = load(config, {"port": port})
        from rich.console import Console  # noqa: PLC0415 (--help must not wait for it)

        from ops.status import status as show  # noqa: PLC0415 (likewise)

        raise typer.Exit(0 if show(settings, Console(highlight=False), as_json=as_json) else 1)


def top(
    *,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.2, max=60, help="Between two looks.")
    ] = 1.0,
    config: Config = None,
    port: Port = None,
) -> None:
    """Watch the gateway: lanes, rows, memory and the worker's ends, every second, until Ctrl-C."""
    with plain_errors():
        settings = load(config, {"port": port})
        from rich.console import Console  # noqa: PLC0415 (--help must not wait for it)

        from ops.status import top as watch  # noqa: PLC0415 (likewise)

        watch(settings, Console(highlight=False), interval)


@restart.command("worker")
def restart_worker(
    *,
    drain: Annotated[
        bool,
        typer.Option("--drain", help="Start nothing new, and wait until nothing runs; what comes queues."),
    ] = False,
    timeout: Timeout = _RESTART_S,
    config: Config = None,
    port: Port = None,
) -> None:
    """Replace the worker: streams pause, a new one loads the model, streams go on where they were.

    The gateway carries it out by itself; Ctrl-C only ends the watching.

    A drain that takes longer than --timeout is given up, and all goes on as before.
    """
    with plain_errors():
        settings = load(config, {"port": port})
        from ops.restart_worker import restart_worker as ask  # noqa: PLC0415 (--help must not wait for it)
        from ops.screen import Screen  # noqa: PLC0415 (likewise)

        typer.echo(ask(settings, drain=drain, timeout_s=timeout or _RESTART_S, screen=Screen()))


def drain(
    *,
    off: Annotated[bool, typer.Option("--off", help="Take requests again.")] = False,
    timeout: Timeout = None,
    config: Config = None,
    port: Port = None,
) -> None:
    """Take nothing new (503 draining), and wait until nothing is queued or runs. The gateway stays up.

    It stays closed until `forebay drain --off`, even if the wait is cut short by --timeout or Ctrl-C.
    """
    with plain_errors():
        settings = load(config, {"port": port})
        from ops import drain as gate  # noqa: PLC0415 (--help must not wait for it)
        from ops.screen import Screen  # noqa: PLC0415 (likewise)
        from shared.clock import SystemClock  # noqa: PLC0415 (likewise)

        typer.echo(
            gate.open_again(settings) if off else gate.drain(settings, timeout, Screen(), SystemClock())
        )


def stop(
    *,
    at_once: Annotated[bool, typer.Option("--at-once", help="Cut off what runs.")] = False,
    config: Config = None,
    port: Port = None,
) -> None:
    """End gateway and worker: what runs gets proxy.drain_s to finish. Says when all is gone."""
    with plain_errors():
        settings = load(config, {"port": port})
        from ops.screen import Screen  # noqa: PLC0415 (--help must not wait for it)
        from ops.stop import Stop  # noqa: PLC0415 (likewise)
        from shared.clock import SystemClock  # noqa: PLC0415 (likewise)

        typer.echo(Stop(settings, Screen(), SystemClock()).end(at_once=at_once))


def journal(
    *,
    count: Annotated[int, typer.Option("-n", metavar="COUNT", min=1, help="How many lives.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    stderr: Annotated[
        bool, typer.Option("--stderr", help="All of their last words, not five lines.")
    ] = False,
    config: Config = None,
    port: Port = None,
) -> None:
    """Show the worker's last lives, the newest at the end: how each ended, what ran, what it held."""
    with plain_errors():
        settings = load(config, {"port": port})
        from datetime import UTC, datetime  # noqa: PLC0415 (--help must not wait for it)

        from rich.console import Console  # noqa: PLC0415 (likewise)

        from ops import journal as reader  # noqa: PLC0415 (likewise)

        lives = reader.last_lives(settings, count)
        if as_json:
            for life in lives:
                typer.echo(reader.as_json(life))
        elif lives:
            living_epoch = lives[-1].epoch if reader.lives_now(settings) else None
            view = reader.View(datetime.now(UTC), living_epoch, whole_stderr=stderr)
            reader.show(lives, Console(highlight=False), view)
        else:
            place = f"home {settings.home_folder} and port {settings.port}"
            typer.echo(f"No life of a worker is in the journal of {place}.", err=True)


def reload(config: Config = None, port: Port = None) -> None:
    """Have the running gateway read lanes and keys again; a bad file changes nothing, and is said."""
    with plain_errors():
        settings = load(config, {"port": port})
        from ops.reload import reload as ask  # noqa: PLC0415 (--help must not wait for it)

        typer.echo(ask(settings))
