"""What `forebay up` says once the model is loaded: the address, a first request, how to watch a crash."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from shared.config import Settings
from shared.model_folder import ModelFolder
from shared.run_folder import RunFolder

_QUESTION = "Tell me a long story."


def base_address(settings: Settings) -> str:
    """Return where a client on this machine finds the proxy; wildcard addresses are no destination."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 (compared, not bound)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def show(console: Console, settings: Settings, folder: ModelFolder, logs: Sequence[Path]) -> None:
    """Print it: a panel on a terminal, plain lines elsewhere. Lines to copy stand outside the panel."""
    facts = {
        "address": f"{base_address(settings)}/v1",
        "status": f"{base_address(settings)}/",
        "model": folder.name,
        "logs": "\n".join(_short(log) for log in logs),
    }
    if console.is_terminal:
        console.print(_panel(facts))
    else:
        console.print("Forebay is ready")
        for name, value in facts.items():
            for line in value.splitlines():
                console.print(f"  {name:<9} {line}", markup=False, soft_wrap=True)
    console.print(_instructions(settings, folder), markup=False, soft_wrap=True, highlight=False)


def _panel(facts: dict[str, str]) -> Panel:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, value)
    return Panel(table, title="Forebay is ready", title_align="left", box=box.ROUNDED, border_style="green")


def _instructions(settings: Settings, folder: ModelFolder) -> str:
    return f"""
A first request, streamed:

{curl_line(settings, folder)}

Kill the worker under it, and watch the answer wait and go on:

{kill_line(settings)}

`forebay journal` says afterwards what it died of. Ctrl-C ends Forebay.
"""


def kill_line(settings: Settings) -> str:
    """Return what kills this Forebay's worker process and no other's: its command line names its socket."""
    run_folder = RunFolder(settings.home_folder, settings.port).path
    return f"pkill -9 -f {shlex.quote(f'worker[.]process.*{re.escape(str(run_folder))}/')}"


def curl_line(settings: Settings, folder: ModelFolder) -> str:
    """Return a request that works when it is pasted into a shell."""
    body = {
        "model": folder.name,
        "stream": True,
        "messages": [{"role": "user", "content": _QUESTION}],
    }
    # Inside '…' a shell takes everything as it is, but ' itself.
    fields = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in body.items()]
    quoted = ",\n       ".join(fields).replace("'", "'\\''")
    return (
        f"curl -N {base_address(settings)}/v1/chat/completions \\\n"
        f"  -H 'Content-Type: application/json' \\\n"
        f"  -d '{{{quoted}}}'"
    )


def _short(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
