"""`forebay bench`: measure a server, or set two results beside each other."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from ops.command import Config, OrderFailed, Port, load, plain_errors

_WIDTH: Final = 80  # of tables in a file or a pipe
_RUN: Final = "run"


class _RunsByDefault(TyperGroup):
    """`forebay bench URL` is `forebay bench run URL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = [_RUN, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="bench",
    cls=_RunsByDefault,
    help="Measure any OpenAI-compatible server, and compare two results.",
)

Url = Annotated[str, typer.Argument(help="An OpenAI-compatible server; the local gateway if unsaid.")]
Model = Annotated[
    str | None, typer.Option("--model", help="Its name there, or a folder; the server's first if unsaid.")
]
Scenarios = Annotated[
    list[str] | None,
    typer.Option(
        "--scenario",
        metavar="NAME",
        help="sweep, lanes, mixed, overload, death; again for more. Unsaid: the first three.",
    ),
]
Concurrency = Annotated[
    str, typer.Option("--concurrency", metavar="N,N", help="Streams at a time, each after the one before.")
]
Rate = Annotated[
    str,
    typer.Option(
        "--rate", metavar="R,R", help="Instead: requests a second, at random, whatever became of others."
    ),
]
Prompt = Annotated[str, typer.Option("--prompt-tokens", metavar="N,N", help="Lengths of prompts.")]
Output = Annotated[str, typer.Option("--output-tokens", metavar="N,N", help="The most tokens of an answer.")]
Requests = Annotated[
    int | None,
    typer.Option("--requests", metavar="N", help="Of each repetition; unsaid: two a stream, at least 8."),
]
WarmUp = Annotated[int, typer.Option("--warm-up", metavar="N", help="Requests before each that don't count.")]
Repetitions = Annotated[int, typer.Option("--repetitions", metavar="N", help="Of everything, interleaved.")]
SharedPrefix = Annotated[
    int,
    typer.Option("--shared-prefix", metavar="N", help="Tokens that all prompts begin with; usually none."),
]
Seed = Annotated[
    int, typer.Option("--seed", help="Of lengths and arrivals. Prompts are new in every run, for caches.")
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Send ignore_eos (Forebay, vLLM): answers of full length.")
]
MaxSeconds = Annotated[
    float, typer.Option("--max-seconds", metavar="S", help="Stop then, and show what was measured.")
]
Timeout = Annotated[float, typer.Option("--timeout", metavar="S", help="The longest wait for an answer.")]
Key = Annotated[
    str | None,
    typer.Option("--api-key", help="Anybody here can read a command line: --api-key-file is better."),
]
KeyFile = Annotated[
    Path | None,
    typer.Option("--api-key-file", metavar="FILE", help="A file with the key. Or FOREBAY_BENCH__API_KEY."),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the result as JSON.")]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a page with charts, for any browser.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and no table.")]
Peer = Annotated[
    bool, typer.Option("--peer", help="Run mlx_lm.server on the same --model, in turn, and print ratios.")
]
KillPid = Annotated[
    int | None,
    typer.Option(
        "--kill-worker-pid",
        metavar="PID",
        min=2,
        help="For the death scenario: SIGKILL this. Unsaid: the gateway replaces its worker.",
    ),
]


@app.command(_RUN, epilog="`forebay bench compare A.json B.json` sets two results beside each other.")
def run(
    url: Url = "",
    *,
    model: Model = None,
    scenario: Scenarios = None,
    concurrency: Concurrency = "1,4,16",
    rate: Rate = "",
    prompt_tokens: Prompt = "64,256,1024",
    output_tokens: Output = "16,64,256",
    requests: Requests = None,
    warm_up: WarmUp = 2,
    repetitions: Repetitions = 3,
    shared_prefix: SharedPrefix = 0,
    seed: Seed = 1,
    ignore_eos: IgnoreEos = False,
    max_seconds: MaxSeconds = 900.0,
    timeout: Timeout = 300.0,
    api_key: Key = None,
    api_key_file: KeyFile = None,
    out: Out = None,
    html: Html = None,
    as_json: AsJson = False,
    peer: Peer = False,
    kill_worker_pid: KillPid = None,
    config: Config = None,
    port: Port = None,
) -> None:
    """Measure an OpenAI-compatible server: load, lengths of prompts and answers, one axis at a time.

    The other axes stay at their middle. Ctrl-C shows and writes what was measured so far.
    """
    with plain_errors():
        from ops.bench import plan as plans  # noqa: PLC0415 (--help must not wait for it)
        from ops.bench.ordering import Typed, order  # noqa: PLC0415 (likewise)
        from ops.bench.session import bench  # noqa: PLC0415 (likewise)
        from ops.screen import Screen  # noqa: PLC0415 (likewise)

        axes = plans.Axes(
            plans.numbers("concurrency", concurrency, int),
            plans.numbers("prompt-tokens", prompt_tokens, int),
            plans.numbers("output-tokens", output_tokens, int),
            plans.numbers("rate", rate, float) if rate else (),
        )
        bounds = (requests, warm_up, repetitions, shared_prefix, seed, max_seconds, timeout)
        plan = plans.Plan(plans.works(scenario or ()), axes, *bounds)
        typed = Typed(url, model, api_key, api_key_file, ignore_eos, peer, kill_worker_pid)
        ordered = order(plan, typed, load(config, {"port": port}))
        raise typer.Exit(bench(replace(ordered, out=out, html=html, as_json=as_json), Screen()))


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="What was before.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="What is set beside it.")],
    *,
    fail_if_slower: Annotated[
        str | None,
        typer.Option(
            "--fail-if-slower",
            metavar="5%",
            help="Exit 1 if some metric of B is worse by more, the whole interval of it.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set two results beside each other: each metric as B/A, with the interval that noise allows."""
    with plain_errors():
        from rich.console import Console  # noqa: PLC0415 (--help must not wait for it)

        from ops.bench import compare as comparing  # noqa: PLC0415 (likewise)
        from ops.bench import result, table  # noqa: PLC0415 (likewise)

        share = None if fail_if_slower is None else comparing.share(fail_if_slower)
        sides = result.read(a), result.read(b)
        found = comparing.compare(*sides)
        slower = [] if share is None else found.slower(share)
        if as_json:
            typer.echo(result.as_json(comparing.as_json(found, slower)), nl=False)
        else:
            console = Console(highlight=False)
            console = console if console.is_terminal else Console(highlight=False, width=_WIDTH)
            table.show_comparison(found, comparing.differing(*sides), console)
        if slower:
            names = ", ".join(f"{each.metric} p{each.percent} at {each.point.name}" for each in slower)
            raise OrderFailed(f"slower by more than {fail_if_slower}: {names}")
