"""The server that is measured: its address, its model, its key, and what else can be asked of it."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from ops.command import OrderFailed
from shared.errors import SettingsError
from shared.limits import MIB

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10)
_ANSWER_BYTES_MAX: Final = 4 * MIB
_RESIDENT: Final = "process_resident_memory_bytes"


@dataclass(frozen=True, slots=True)
class Address:
    """Where an OpenAI-compatible API is. `api` ends in /v1; `host` is all that a result says of it."""

    api: str
    host: str
    is_local: bool

    @classmethod
    def read(cls, url: str) -> "Address":
        """Take an address with or without /v1; without a scheme it is http. SettingsError if it is none."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            name, port = parts.hostname, parts.port
        except ValueError as problem:
            raise SettingsError(f"{_hidden(url)} is no address: {problem}") from problem
        if parts.scheme not in ("http", "https") or not name:
            raise SettingsError(f"{_hidden(url)} is no address like http://127.0.0.1:8000")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise SettingsError("an address with a name, a password or a query: keys go into --api-key-file")
        path = parts.path.rstrip("/")
        path = path if path.endswith("/v1") else f"{path}/v1"
        host = f"[{name}]" if ":" in name else name
        host = host if port is None else f"{host}:{port}"
        return cls(f"{parts.scheme}://{host}{path}", host, name in _LOOPBACK)

    @property
    def root(self) -> str:
        """Where a server's own pages are, beside the API."""
        return self.api.removesuffix("/v1")


def _hidden(url: str) -> str:
    """Return an address for a message: what may be a secret in it isn't shown."""
    return "a word with @ in it" if "@" in url else url[:200]


@dataclass(frozen=True, slots=True)
class Target:
    """A server and the model that is asked of it. `more` are further fields of every request's body."""

    name: str
    address: Address
    model: str
    key: str | None = field(default=None, repr=False)
    more: Mapping[str, Any] = field(default_factory=dict)

    async def peak_bytes(self, session: aiohttp.ClientSession) -> int | None:
        """Return the memory that it says it holds now; None where it says nothing of the kind."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            ready = await _text(session, f"{self.address.root}/health/ready")
            held = footprint_bytes(ready)
            if held is not None:
                return held
            return resident_bytes(await _text(session, f"{self.address.root}/metrics"))
        return None


async def _text(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url, timeout=_TIMEOUT) as response:
        return (await response.content.read(_ANSWER_BYTES_MAX)).decode("utf-8", "replace")


def footprint_bytes(ready: str) -> int | None:
    """Return the worker's footprint from what Forebay's /health/ready says."""
    try:
        held = json.loads(ready)["worker"]["footprint_bytes"]
    except (ValueError, LookupError, TypeError):
        return None
    return held if isinstance(held, int) and held > 0 else None


def resident_bytes(metrics: str) -> int | None:
    """Return the server process's resident memory from Prometheus' text format."""
    for line in metrics.splitlines():
        if line.startswith(_RESIDENT):
            with contextlib.suppress(ValueError, IndexError, OverflowError):
                return int(float(line.split()[1]))
    return None


async def first_model(address: Address, key: str | None) -> str:
    """Return the first model that the server lists. OrderFailed if nothing answers, or it lists none."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as session,
            session.get(f"{address.api}/models", headers=headers) as response,
        ):
            status, told = response.status, await response.content.read(_ANSWER_BYTES_MAX)
    except (aiohttp.ClientError, TimeoutError, OSError) as problem:
        raise OrderFailed(
            f"nothing answers at {address.host}: {problem or type(problem).__name__}"
        ) from problem
    if status in (401, 403):
        raise SettingsError(f"{address.host} wants another key ({status}): --api-key-file FILE")
    try:
        return str(json.loads(told)["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as problem:
        raise SettingsError(f"{address.host} lists no models (status {status}): --model NAME") from problem
