"""`forebay restart worker`: have the gateway replace its worker, and watch until the new one is ready."""

import time
from typing import Final

from ops.command import OrderFailed
from ops.gateway import Gateway, GatewayStatus, OrderRefused, RestartStatus, answers
from ops.screen import Screen, Step
from shared.config import Settings

_POLL_S: Final = 0.1


def restart_worker(
    settings: Settings, *, drain: bool, timeout_s: float, screen: Screen, poll_s: float = _POLL_S
) -> str:
    """Return what became of it, in a line. SettingsError if it can't begin if it doesn't end well.

    The gateway carries it out by itself: whoever leaves only stops watching.
    """
    gateway = Gateway(settings)
    begun = _begin(gateway, drain=drain, timeout_s=timeout_s)
    try:
        with screen.step("Replacing the worker") as step:
            return _in_words(_watched(gateway, begun, step, poll_s))
    except KeyboardInterrupt:
        screen.say("The gateway goes on with it; only the watching ends.")
        raise


def _begin(gateway: Gateway, *, drain: bool, timeout_s: float) -> RestartStatus:
    try:
        told = gateway.order("/admin/restart", {"drain": drain, "timeout_s": timeout_s})
    except OrderRefused as problem:
        raise OrderRefused(f"the worker isn't replaced: {problem}") from problem
    return _same(told, None)


def _watched(gateway: Gateway, restart: RestartStatus, step: Step, poll_s: float) -> RestartStatus:
    while restart.phase not in {"done", "failed"}:
        time.sleep(poll_s)
        told = gateway.status()
        restart = _same(told, restart)
        step.tick(note=_how_far(restart, told))
    if restart.phase == "failed":
        raise OrderFailed(f"the worker was not replaced: {restart.problem}")
    return restart


def _same(told: GatewayStatus, before: RestartStatus | None) -> RestartStatus:
    """Return the restart that is told of, if it is still the one from before."""
    if told.restart is None or (before is not None and told.restart.number != before.number):
        raise OrderFailed(
            "the gateway itself was restarted meanwhile; `forebay journal` shows its worker's lives"
        )
    return told.restart


def _how_far(restart: RestartStatus, told: GatewayStatus) -> str:
    if restart.phase == "draining":
        return f"nothing new starts, {answers(told.running)} still run{'s' if told.running == 1 else ''}"
    return f"the worker is {told.worker.status}, {answers(told.live)} wait{'s' if told.live == 1 else ''}"


def _in_words(restart: RestartStatus) -> str:
    took = "" if restart.took_s is None else f" in {restart.took_s:.1f} s"
    were = "was" if restart.live == 1 else "were"
    return (
        f"The worker of epoch {restart.old_epoch} was replaced by that of epoch {restart.new_epoch}{took};"
        f" {answers(restart.live)} {were} live."
    )
