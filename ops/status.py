"""`forebay status`, once, and `forebay top`, every second: how the gateway is, asked over its Unix socket."""

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ops.gateway import Gateway, GatewayAbsent
from ops.picture import picture
from proxy.status.snapshot import Snapshot
from shared.config import Settings

_SPEEDS_KEPT: Final = 30


def status(settings: Settings, console: Console, *, as_json: bool) -> bool:
    """Print how the gateway is, and return whether it would serve a request now."""
    shot = _ask(Gateway(settings))
    if as_json:
        console.print(json.dumps(asdict(shot)), markup=False, soft_wrap=True)
    else:
        console.print(picture(shot), soft_wrap=not console.is_terminal)
    return shot.gateway.status == "ready"


def top(
    settings: Settings, console: Console, interval_s: float, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Draw the gateway until Ctrl-C; one that goes away is waited for. Not a terminal: once, and no more."""
    gateway = Gateway(settings)
    shot = _ask(gateway)
    if not console.is_terminal:
        console.print(picture(shot), soft_wrap=True)
        return
    speeds: deque[float] = deque([shot.speed.tokens_per_s], maxlen=_SPEEDS_KEPT)
    view = Live(picture(shot, speeds), console=console, screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), view as live:
        while True:
            sleep(interval_s)
            try:
                shot = _ask(gateway)
            except GatewayAbsent as problem:
                note = Text(f"{problem}; this was the last that it said:\n", style="red")
                live.update(Group(note, picture(shot, speeds)), refresh=True)
                continue
            speeds.append(shot.speed.tokens_per_s)
            live.update(picture(shot, speeds), refresh=True)


def _ask(gateway: Gateway) -> Snapshot:
    return gateway.ask(Snapshot, "/admin/snapshot")
