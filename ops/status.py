"""`forebay status`, once, and `forebay top`, every second: how the gateway is, asked over its Unix socket."""

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ops.gateway import Gateway, GatewayAbsent, GatewayDiffers
from ops.glyphs import Legible
from ops.picture import picture
from proxy.status.snapshot import Snapshot
from shared.config import Settings

_SPEEDS_KEPT: Final = 30


def status(settings: Settings, console: Console, *, as_json: bool) -> bool:
    """Print how the gateway is, and return whether it would serve a request now."""
    shot = _ask(Gateway(settings))
    if as_json:
        # Not as text with :names: that stand for little pictures.
        console.out(json.dumps(asdict(shot)), highlight=False)
    else:
        console.print(_drawn(shot, console), soft_wrap=not console.is_terminal)
    return shot.gateway.status == "ready"


def top(
    settings: Settings, console: Console, interval_s: float, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Draw the gateway until Ctrl-C; one that goes away is waited for. Not a terminal: once, and no more."""
    gateway = Gateway(settings)
    shot = _ask(gateway)
    if not console.is_terminal:
        console.print(_drawn(shot, console), soft_wrap=True)
        return
    speeds: deque[float] = deque([shot.speed.tokens_per_s], maxlen=_SPEEDS_KEPT)
    view = Live(_drawn(shot, console, speeds), console=console, screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), view as live:
        while True:
            sleep(interval_s)
            try:
                shot = _ask(gateway)
            except GatewayDiffers:
                raise  # Whoever watches it from now on has to be of its version.
            except GatewayAbsent as problem:
                note = Text(f"{problem}; this was the last that it said:\n", style="red")
                live.update(Legible(Group(note, _drawn(shot, console, speeds))), refresh=True)
                continue
            speeds.append(shot.speed.tokens_per_s)
            live.update(_drawn(shot, console, speeds), refresh=True)


def _drawn(shot: Snapshot, console: Console, speeds: Sequence[float] = ()) -> Legible:
    """Return the picture for this console as it is now: its window may have been made smaller."""
    height = console.height if console.is_terminal else None
    return Legible(picture(shot, speeds, console.width, height))


def _ask(gateway: Gateway) -> Snapshot:
    return gateway.ask(Snapshot, "/admin/snapshot")
