"""`forebay drain`: have the gateway take nothing new, wait until nothing is live, and open it again."""

import time
from typing import Final

from ops.command import OrderFailed
from ops.gateway import Gateway, answers
from ops.screen import Screen
from shared.clock import Clock
from shared.config import Settings

_POLL_S: Final = 0.1
_OPENS = "`forebay drain --off` opens it again"


def drain(settings: Settings, timeout_s: float | None, screen: Screen, clock: Clock) -> str:
    """Return once nothing is live; OrderFailed says what else ended the wait. The gateway stays closed."""
    gateway = Gateway(settings)
    began_s = clock.now()
    told = gateway.order("/admin/drain", {"on": True})
    try:
        with screen.step("Draining; new requests get 503") as step:
            while told.live > 0:
                if timeout_s is not None and clock.now() - began_s > timeout_s:
                    still = f"{answers(told.live)} still live after {timeout_s:g} s"
                    raise OrderFailed(f"{still}; the gateway takes nothing new, {_OPENS}")
                time.sleep(_POLL_S)
                told = gateway.status()
                if not told.draining:
                    raise OrderFailed("somebody opened the gateway again")
                step.tick(note=f"{answers(told.live)} live")
    except KeyboardInterrupt:
        screen.say(f"The gateway goes on draining; {_OPENS}.")
        raise
    return f"Nothing is live, and the gateway takes nothing new; {_OPENS}."


def open_again(settings: Settings) -> str:
    Gateway(settings).order("/admin/drain", {"on": False})
    return "The gateway takes requests again."
