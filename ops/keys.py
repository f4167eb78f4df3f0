"""`forebay keys`: make API keys, list them, give them new secrets, revoke them. Only their hashes are kept.

The gateway reads the key file when it starts and at a reload; no command here needs a running one.
"""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ops.command import Config, load, plain_errors

if TYPE_CHECKING:
    from rich.console import Console

    from proxy.keys import KeyFile, KeyRecord
    from shared.config import Settings

_RELOAD = "A running gateway learns of it at the next `forebay reload`."
_OLD_ONE = (
    "A running gateway takes the old one until the next `forebay reload`, and the new one from then on."
)
_PIPE_COLUMNS = 1000  # wide enough for every key to stay on its line

Weight = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", help="Its share of a lane against other keys, 0.01 to 100; 1 if unsaid."),
]
Lane = Annotated[str | None, typer.Option(metavar="LANE", help="The highest lane it may use.")]
RequestsPerMinute = Annotated[
    int | None, typer.Option(metavar="COUNT", help="Requests it may make a minute.")
]
TokensPerMinute = Annotated[
    int | None, typer.Option(metavar="COUNT", help="Tokens of prompts and answers a minute.")
]
ConcurrentMax = Annotated[int | None, typer.Option(metavar="COUNT", help="Requests it may have at a time.")]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="NAME", help="A model it may use; repeat for more. Any if unsaid."),
]
ContextTokens = Annotated[
    int | None, typer.Option(metavar="COUNT", help="Longest prompt and answer together.")
]
MaxTokens = Annotated[int | None, typer.Option(metavar="COUNT", help="Longest answer.")]
PrivatePrefixes = Annotated[
    bool,
    typer.Option(
        "--private-prefixes",
        help="Share beginnings of prompts with no other key, so that none learns by timing what it asks.",
    ),
]
KeyClass = Annotated[
    str | None,
    typer.Option(
        "--class", metavar="NAME", help="What metrics and traces tell it by; 32 different ones at most."
    ),
]
IsAdmin = Annotated[
    bool,
    typer.Option("--admin", help="It gives orders over HTTP, as the status page does, and nothing else."),
]
NameOrId = Annotated[str, typer.Argument(metavar="NAME_OR_ID", help="Its name or its id.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

app = typer.Typer(name="keys", help="API keys: make, list, rotate, revoke.", no_args_is_help=True)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Whose key it is; no two keys have the same name.")],
    *,
    weight: Weight = None,
    lane: Lane = None,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    concurrent_max: ConcurrentMax = None,
    models: Models = None,
    context_tokens: ContextTokens = None,
    max_tokens: MaxTokens = None,
    private_prefixes: PrivatePrefixes = False,
    key_class: KeyClass = None,
    admin: IsAdmin = False,
    config: Config = None,
) -> None:
    """Make a key and print it, this once: only its hash is kept."""
    limits = {
        "weight": weight,
        "lane": lane,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "concurrent_max": concurrent_max,
        "models": tuple(models) if models else None,
        "context_tokens": context_tokens,
        "max_tokens": max_tokens,
        "private_prefixes": private_prefixes or None,
        "key_class": key_class,
        "admin": admin or None,
    }
    with plain_errors():
        from proxy.keys import refuse_unknown_lane  # noqa: PLC0415 (--help must not wait for it)

        settings = load(config, {})
        refuse_unknown_lane(lane, [each.name for each in settings.lanes])
        file = _key_file(settings)
        new = file.add(name, **{field: value for field, value in limits.items() if value is not None})
        _explain_new(new.record, file.read())
        typer.echo(new.text)


@app.command("list")
def list_keys(*, as_json: AsJson = False, config: Config = None) -> None:
    """Show the keys and what each may do; never the keys themselves."""
    with plain_errors():
        records = _key_file(load(config, {})).read()
        if as_json:
            _print_json(records)
        elif records:
            _print_table(records)
        else:
            typer.echo("There are no keys: whoever reaches the gateway may use it.", err=True)


@app.command()
def rotate(key: NameOrId, config: Config = None) -> None:
    """Give a key a new secret and print it, this once: what it may do stays, the old one is valid no more.

    A running gateway goes by the old one until `forebay reload`.
    """
    with plain_errors():
        new = _key_file(load(config, {})).rotate(key)
        typer.echo(
            f"The key {new.record.name!r} ({new.record.id}) has a new secret, shown this once; keep it safe. "
            f"{_OLD_ONE}",
            err=True,
        )
        typer.echo(new.text)


@app.command()
def revoke(key: NameOrId, config: Config = None) -> None:
    """Remove a key for good."""
    with plain_errors():
        from proxy.authenticate import any_ordinary  # noqa: PLC0415 (--help must not wait for it)

        file = _key_file(load(config, {}))
        record = file.revoke(key)
        typer.echo(f"The key {record.name!r} ({record.id}) is revoked. {_RELOAD}", err=True)
        if not record.admin and not any_ordinary(file.read()):
            typer.echo(
                "It was the last that makes requests: without one, whoever reaches the gateway may use it.",
                err=True,
            )


def _key_file(settings: "Settings") -> "KeyFile":
    from proxy.keys import KEY_FILE_NAME, KeyFile  # noqa: PLC0415 (--help must not wait for it)

    return KeyFile(settings.home_folder / KEY_FILE_NAME)


def _explain_new(record: "KeyRecord", records: Sequence["KeyRecord"]) -> None:
    """Explain on stderr, so that stdout has the key alone: `KEY=$(forebay keys add ci)`."""
    typer.echo(f"The key {record.name!r} ({record.id}) is shown this once; keep it safe. {_RELOAD}", err=True)
    ordinary = [each for each in records if not each.admin]
    if record.admin:
        typer.echo("It gives orders, and makes no requests.", err=True)
        if not ordinary:
            typer.echo("There is no other key: whoever reaches the gateway may make requests.", err=True)
    elif len(ordinary) == 1:
        typer.echo("It's the first: from then on every request needs a key.", err=True)


def _print_json(records: Sequence["KeyRecord"]) -> None:
    import json  # noqa: PLC0415 (needed only here)

    public = [record.model_dump(mode="json", exclude={"salt", "digest"}) for record in records]
    typer.echo(json.dumps(public, indent=2, ensure_ascii=False))


def _print_table(records: Sequence["KeyRecord"]) -> None:
    from rich import box  # noqa: PLC0415 (--help must not wait for it)
    from rich.table import Table  # noqa: PLC0415 (likewise)
    from rich.text import Text  # noqa: PLC0415 (likewise)

    table = Table("id", "name", "created", "may use", box=box.SIMPLE_HEAD, pad_edge=False)
    for record in records:
        made = _day(record.created) + (f"; rotated {_day(record.rotated)}" if record.rotated else "")
        # Text, because a name is no markup.
        table.add_row(record.id, Text(record.name), made, Text(_may(record)))
    _console().print(table)


def _day(unix_s: int) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(unix_s))


def _may(record: "KeyRecord") -> str:
    """Return what a key may do, in words."""
    return "give orders, nothing else" if record.admin else ", ".join(_bounds(record)) or "anything"


def _console() -> "Console":
    from rich.console import Console  # noqa: PLC0415 (--help must not wait for it)

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_COLUMNS)


def _bounds(record: "KeyRecord") -> Iterator[str]:
    """Yield what a key's record says beyond its defaults, in words."""
    if record.models is not None:
        yield f"model {' or '.join(record.models)}"
    if record.lane is not None:
        yield f"lanes from {record.lane} down"
    if record.weight != 1:
        yield f"weight {record.weight:g}"
    for value, words in (
        (record.requests_per_minute, "requests a minute"),
        (record.tokens_per_minute, "tokens a minute"),
        (record.concurrent_max, "at a time"),
        (record.context_tokens, "tokens of context"),
        (record.max_tokens, "tokens an answer"),
    ):
        if value is not None:
            yield f"{value} {words}"
    if record.key_class:
        yield f"class {record.key_class}"
    if record.private_prefixes:
        yield "beginnings of prompts of its own"
