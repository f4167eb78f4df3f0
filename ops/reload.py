"""`forebay reload`: have the running gateway read its lanes and keys again, and say what came of it."""

from dataclasses import dataclass

from ops.gateway import Gateway, OrderRefused
from shared.config import Settings


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What the gateway goes on with; `needs_restart` names settings that changed and wait for one."""

    lanes: tuple[str, ...]
    keys: int
    needs_restart: tuple[str, ...]


def reload(settings: Settings) -> str:
    """Return what the gateway says it goes on with. SettingsError if it refuses, or isn't there."""
    try:
        return _in_words(Gateway(settings).ask(Reloaded, "/admin/reload", {}))
    except OrderRefused as problem:
        raise OrderRefused(f"the gateway goes on as before, because {problem}") from problem


def _in_words(told: Reloaded) -> str:
    keys = "no keys" if not told.keys else f"{told.keys} key{'s' if told.keys > 1 else ''}"
    words = f"Reloaded: lanes {', '.join(told.lanes)}; {keys}."
    if told.needs_restart:
        words += f" Changed as well, and in force after a restart: {', '.join(told.needs_restart)}."
    return words
