"""`forebay reload`: have the running gateway read its lanes and keys again, and say what came of it."""

import http.client
import json
import socket
from pathlib import Path
from typing import Any, Final

from shared.config import Settings
from shared.errors import SettingsError
from shared.run_folder import RunFolder

_TIMEOUT_S: Final = 10.0


class _OverUnixSocket(http.client.HTTPConnection):
    """HTTP to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("forebay", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(str(self._path))


def reload(settings: Settings) -> str:
    """Return what the gateway says it goes on with. SettingsError if it refuses, or isn't there."""
    path = RunFolder(settings.home_folder, settings.port).admin_socket
    connection = _OverUnixSocket(path)
    try:
        connection.request("POST", "/admin/reload")
        response = connection.getresponse()
        told: dict[str, Any] = json.loads(response.read())
        done = response.status == http.client.OK
        words = _in_words(told) if done else f"the gateway goes on as before, because {told['problem']}"
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as problem:
        where = f"home {settings.home_folder} and port {settings.port}"
        raise SettingsError(f"no gateway of {where} answers: {problem}") from problem
    finally:
        connection.close()
    if not done:
        raise SettingsError(words)
    return words


def _in_words(told: dict[str, Any]) -> str:
    keys = "no keys" if not told["keys"] else f"{told['keys']} key{'s' if told['keys'] > 1 else ''}"
    words = f"Reloaded: lanes {', '.join(told['lanes'])}; {keys}."
    if told["needs_restart"]:
        words += f" Changed as well, and in force after a restart: {', '.join(told['needs_restart'])}."
    return words
