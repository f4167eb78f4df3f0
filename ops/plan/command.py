"""`forebay plan`: does a model fit this machine, or one that is thought of, and with which settings."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ops.command import Config, load, plain_errors
from shared.errors import SettingsError
from shared.limits import SLOTS_MAX

if TYPE_CHECKING:
    from ops.plan.record import Plan
    from shared.config import Settings

_KV_BITS = (0, 4, 8)

Model = Annotated[
    str | None,
    typer.Argument(help="A folder, a config.json, a Hugging Face id, or demo. Default: the configured one."),
]
Memory = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="Of a Mac, like 64GB. Default: this machine.")
]
Context = Annotated[
    str | None, typer.Option("--context", metavar="TOKENS", help="Like 32k or 32768. Default: what fits.")
]
Streams = Annotated[int | None, typer.Option("--streams", help="At a time. Default: what fits, up to 16.")]
KvBits = Annotated[int | None, typer.Option("--kv-bits", help="0, 4 or 8. Default: the configured one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the plan as JSON, sizes in bytes.")]


def plan(
    model: Model = None,
    *,
    memory: Memory = None,
    context: Context = None,
    streams: Streams = None,
    kv_bits: KvBits = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Say what fits: from config.json alone, without the weights.

    Exit status 0 if what is asked fits, 1 if it doesn't, 2 if it can't be planned.
    """
    with plain_errors():
        settings = load(config, {"model": model})
        made = _made(settings, memory, context, streams, kv_bits)
    if as_json:
        import json  # noqa: PLC0415 (--help must not wait for it)

        typer.echo(json.dumps(asdict(made), indent=2))
    else:
        from rich.console import Console  # noqa: PLC0415 (likewise)

        from ops.plan.table import show  # noqa: PLC0415 (likewise)

        show(made, Console(highlight=False))
    raise typer.Exit(0 if made.verdict == "fits" else 1)


def _made(
    settings: "Settings", memory: str | None, context: str | None, streams: int | None, kv_bits: int | None
) -> "Plan":
    from ops.plan import sizes  # noqa: PLC0415 (--help must not wait for it)
    from ops.plan.child import ask  # noqa: PLC0415 (likewise)
    from ops.plan.record import Asked, Order  # noqa: PLC0415 (likewise)
    from ops.plan.source import find  # noqa: PLC0415 (likewise)
    from ops.screen import Screen  # noqa: PLC0415 (likewise)

    if streams is not None and not 1 <= streams <= SLOTS_MAX:
        raise SettingsError(f"--streams {streams}: not between 1 and {SLOTS_MAX}")
    if kv_bits not in (None, *_KV_BITS):
        raise SettingsError(f"--kv-bits {kv_bits}: 0, 4 or 8")
    worker = settings.worker
    asked = Asked(
        memory_bytes=None if memory is None else sizes.memory_bytes(memory),
        context_tokens=None if context is None else sizes.context_tokens(context),
        streams=streams,
        kv_bits=worker.kv_bits if kv_bits is None else kv_bits,
        memory_fraction=worker.memory_fraction,
        share_tokens=0 if worker.cache_memory_mb == 0 else worker.prefix_share_tokens,
    )
    return ask(Order(asked, find(settings.model, settings.home_folder)), Screen())
