"""The operator's line to a running gateway: orders over its Unix socket, and its answers read and checked."""

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from ops.wording import printable
from shared.config import Settings
from shared.errors import SettingsError
from shared.run_folder import RunFolder

_TIMEOUT_S: Final = 10.0
_VERSION_CHARS: Final = 32
_DONE: Final = (http.client.OK, http.client.ACCEPTED)

_Answer = TypeVar("_Answer")


class GatewayAbsent(SettingsError):
    """No gateway of this home and port answers."""


class GatewayDiffers(GatewayAbsent):
    """One is there, but it speaks otherwise: its version is another than this command's."""


class OrderRefused(SettingsError):
    """The gateway doesn't do what it was told; the message is its reason."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What the gateway knows of its worker; without a ready one there is no epoch."""

    status: str
    epoch: int | None
    breaker: str


@dataclass(frozen=True, slots=True)
class RestartStatus:
    """How the last planned restart goes, or went. `live` counts the answers that were queued or ran then."""

    number: int
    phase: Literal["draining", "restarting", "done", "failed"]
    old_epoch: int | None
    new_epoch: int | None
    live: int
    took_s: float | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """What the gateway says of itself."""

    going_down: bool
    draining: bool
    live: int
    running: int
    worker: WorkerStatus
    restart: RestartStatus | None


class _OverUnixSocket(http.client.HTTPConnection):
    """HTTP to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("forebay", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(str(self._path))


class Gateway:
    """The gateway of one home and port. Every call raises GatewayAbsent or OrderRefused, with words."""

    def __init__(self, settings: Settings) -> None:
        self.where = f"home {settings.home_folder} and port {settings.port}"
        self._socket = RunFolder(settings.home_folder, settings.port).admin_socket

    def status(self) -> GatewayStatus:
        return self._ask(GatewayStatus, "GET", "/admin/status")

    def order(self, path: str, body: Mapping[str, Any]) -> GatewayStatus:
        """Give an order that is answered with the gateway's status."""
        return self._ask(GatewayStatus, "POST", path, body)

    def ask(self, kind: type[_Answer], path: str, body: Mapping[str, Any] | None = None) -> _Answer:
        """Give an order with an answer of its own; without a body it is a question."""
        return self._ask(kind, "GET" if body is None else "POST", path, body)

    def _ask(
        self, kind: type[_Answer], method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> _Answer:
        connection = _OverUnixSocket(self._socket)
        try:
            connection.request(method, path, json.dumps(body) if body else None)
            response = connection.getresponse()
            told = response.read()
            body = json.loads(told)
            if response.status in _DONE:
                answer: _Answer = TypeAdapter(kind).validate_json(told)
                return answer
            problem = str(body["problem"])
        except ValidationError as trouble:
            raise GatewayDiffers(self._differs(body, _lack(trouble))) from trouble
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as trouble:
            raise GatewayAbsent(f"no gateway of {self.where} answers: {_in_short(trouble)}") from trouble
        finally:
            connection.close()
        if response.status == http.client.NOT_FOUND:
            raise GatewayDiffers(self._differs(body, f"it doesn't know {method} {path}"))
        raise OrderRefused(problem)

    def _differs(self, body: Any, how: str) -> str:
        """Say that a gateway is of another version, and of which if it tells."""
        theirs = body.get("gateway") if isinstance(body, dict) else None
        told = theirs.get("version") if isinstance(theirs, dict) else None
        other = printable(told)[:_VERSION_CHARS] if isinstance(told, str) else "another"
        return (
            f"no gateway of {self.where} and of this version ({version('forebay')}) answers, but one of"
            f" {other}: {how}. Start it anew, or use the `forebay` that it was started with"
        )


def answers(count: int) -> str:
    """Return a count of answers in words."""
    return f"{count} answer{'' if count == 1 else 's'}"


def _lack(trouble: ValidationError) -> str:
    """Return what an answer lacks, or has otherwise, in a few words."""
    first, *others = (".".join(map(str, each["loc"])) or "all of it" for each in trouble.errors())
    return f"what it says of {first} can't be read" + (f", nor {len(others)} more" if others else "")


def _in_short(trouble: Exception) -> str:
    if isinstance(trouble, FileNotFoundError):
        return "there is no socket of one"
    return next(iter(str(trouble).splitlines()), type(trouble).__name__)
