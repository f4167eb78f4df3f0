"""`forebay quarantine`: the requests that aren't run because they killed the worker; see them, forgive them.

A running gateway is asked. Without one its file is read, and changed.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ops.command import Config, OrderFailed, Port, load, plain_errors

if TYPE_CHECKING:
    from proxy.quarantine import Entry
    from shared.config import Settings

_PIPE_COLUMNS = 1000  # wide enough for every entry to stay on its line

app = typer.Typer(
    name="quarantine", help="Requests that killed the worker: list, clear.", no_args_is_help=True
)


@app.command("list")
def list_entries(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    config: Config = None,
    port: Port = None,
) -> None:
    """Show what is quarantined, the newest last. Clients get 422 request_quarantined for it."""
    with plain_errors():
        entries = _entries(load(config, {"port": port}))
        if as_json:
            _print_json(entries)
        elif entries:
            _print_table(entries)
        else:
            typer.echo("Nothing is quarantined.", err=True)


@app.command()
def clear(
    fingerprints: Annotated[
        list[str] | None,
        typer.Argument(metavar="FINGERPRINT", help="As `forebay quarantine list` has them."),
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Clear all of it.")] = False,
    config: Config = None,
    port: Port = None,
) -> None:
    """Let requests run again, by their fingerprints or all of them."""
    if bool(fingerprints) == everything:
        raise typer.BadParameter("say which fingerprints, or --all")
    with plain_errors():
        cleared, unknown = _clear(load(config, {"port": port}), fingerprints)
        typer.echo(f"{cleared} cleared.", err=True)
        if unknown:
            raise OrderFailed(f"not quarantined: {', '.join(unknown)}")


def _entries(settings: "Settings") -> list["Entry"]:
    from ops.gateway import Gateway, GatewayAbsent  # noqa: PLC0415 (--help must not wait for it)
    from ops.quarantine_file import QuarantineFile, Told  # noqa: PLC0415 (likewise)

    try:
        return list(Gateway(settings).ask(Told, "/admin/quarantine").entries)
    except GatewayAbsent as problem:
        return QuarantineFile(settings).read(problem)


def _clear(settings: "Settings", fingerprints: list[str] | None) -> tuple[int, Sequence[str]]:
    """Return how many were cleared, and which were not there."""
    from ops.gateway import Gateway, GatewayAbsent  # noqa: PLC0415 (--help must not wait for it)
    from ops.quarantine_file import Cleared, QuarantineFile  # noqa: PLC0415 (likewise)

    try:
        told = Gateway(settings).ask(
            Cleared, "/admin/quarantine/clear", {"fingerprints": fingerprints or None}
        )
    except GatewayAbsent as problem:
        told = QuarantineFile(settings).clear(fingerprints, problem)
    return told.cleared, told.unknown


def _print_json(entries: Sequence["Entry"]) -> None:
    import json  # noqa: PLC0415 (needed only here)
    from dataclasses import asdict  # noqa: PLC0415 (likewise)

    for entry in entries:
        typer.echo(json.dumps(asdict(entry), ensure_ascii=False))


def _print_table(entries: Sequence["Entry"]) -> None:
    from rich import box  # noqa: PLC0415 (--help must not wait for it)
    from rich.console import Console  # noqa: PLC0415 (likewise)
    from rich.table import Table  # noqa: PLC0415 (likewise)
    from rich.text import Text  # noqa: PLC0415 (likewise)

    table = Table(
        "fingerprint",
        "since",
        "until",
        "lane",
        "key",
        "prompt",
        "killed it by",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.columns[0].no_wrap = True
    for entry in entries:
        since, until = (time.strftime("%m-%d %H:%M", time.localtime(at)) for at in (entry.at, entry.until))
        # Text, because what came from outside is no markup.
        free = [Text(entry.lane), Text(entry.key or "-"), Text(f"{entry.prompt_tokens} tokens")]
        table.add_row(entry.fingerprint, since, until, *free, Text(f"{entry.cause}: {entry.detail}"))
    console = Console(highlight=False)
    wide = console if console.is_terminal else Console(highlight=False, width=_PIPE_COLUMNS)
    wide.print(table)
