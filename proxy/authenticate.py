"""Who asks: from a request's headers to the key it shows, and what that key may do."""

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from proxy.keys import KeyRecord, secret_digest, split_key
from shared.errors import InvalidKey, PermissionDenied, SettingsError

HEADER_CHARS_MAX: Final = 512
_AUTHORIZATION: Final = "Authorization"
_API_KEY: Final = "x-api-key"
_HOW: Final = "send 'Authorization: Bearer <key>' or 'x-api-key: <key>'"
_NAME_CHARS_SHOWN: Final = 100
_NO_ADMIN: Final = (
    "There is no admin key, so no orders are taken here. `forebay keys add NAME --admin` on the gateway's "
    "machine makes one, and `forebay reload` puts it in force."
)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and within which bounds; None doesn't bind. `key_id` is empty for whoever needs no key.

    `private_prefixes` says that beginnings of prompts are shared with nobody else; `key_class` is what
    metrics tell keys apart by. One that is `admin` gives orders, and makes no requests.
    """

    key_id: str
    name: str
    weight: float = 1.0
    lane: str | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_max: int | None = None
    models: tuple[str, ...] | None = None
    context_tokens: int | None = None
    max_tokens: int | None = None
    private_prefixes: bool = False
    key_class: str = ""
    admin: bool = False

    @property
    def salt(self) -> str:
        """What keeps the beginnings of this caller's prompts apart from others'; those of "" are shared."""
        return self.key_id if self.private_prefixes else ""


ANONYMOUS: Final = Caller("", "anonymous")


@dataclass(frozen=True, slots=True)
class _Known:
    caller: Caller
    salt: bytes
    digest: bytes


# Stands in where no key has the id, so that the answer takes as long. No secret is known to have its digest.
_NOBODY: Final = _Known(ANONYMOUS, secrets.token_bytes(16), secrets.token_bytes(32))


class KeyRing:
    """The keys of one reading of the key file. Without any, the gateway is open to whoever reaches it.

    Admin keys don't count there: they make no requests. `private_prefixes` is that field of every key,
    whatever its record says.
    """

    def __init__(self, records: Sequence[KeyRecord], *, private_prefixes: bool = False) -> None:
        self._known = {record.id: _known(record, private_prefixes) for record in records}
        self.is_open = not any_ordinary(records)
        self._takes_orders = any(record.admin for record in records)

    def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """Return who sends these headers, or raise InvalidKey; `headers` must ignore case, as aiohttp's do.

        Where both headers are sent both must be valid: whoever checks only one of them somewhere on the way
        would otherwise let a bad one pass. The caller is then Authorization's. PermissionDenied for an admin
        key, even where no key is needed: it belongs into no client's configuration.
        """
        callers = self._shown(headers) if self._known else []
        for caller in callers:
            if caller.admin:
                raise PermissionDenied(
                    f"The key {caller.name!r} is an admin key: it gives orders under /admin, and makes no "
                    "requests; use an ordinary key."
                )
        if not callers and not self.is_open:
            raise InvalidKey(f"No API key was sent; {_HOW}.")
        return ANONYMOUS if self.is_open else callers[0]

    def order_giver(self, headers: Mapping[str, str]) -> Caller:
        """Return whose admin key these headers show; InvalidKey or PermissionDenied if they show none.

        Only Authorization counts: a page of another origin can't send it without being allowed to, and
        nothing here allows that.
        """
        if not self._takes_orders:
            raise PermissionDenied(_NO_ADMIN)
        if (authorization := headers.get(_AUTHORIZATION)) is None:
            raise InvalidKey("Orders need an admin key; send 'Authorization: Bearer <key>'.")
        caller = self._caller(_AUTHORIZATION, _bearer(_bounded(_AUTHORIZATION, authorization)))
        if not caller.admin:
            raise PermissionDenied(
                f"The key {caller.name!r} makes requests, and gives no orders; "
                "`forebay keys add NAME --admin` makes one that does."
            )
        return caller

    def _shown(self, headers: Mapping[str, str]) -> list[Caller]:
        """Return whose keys the headers show; through an open door whatever isn't known comes in as well."""
        callers = []
        for header, read in ((_AUTHORIZATION, _bearer), (_API_KEY, str.strip)):
            if (value := headers.get(header)) is None:
                continue
            try:
                callers.append(self._caller(header, read(_bounded(header, value))))
            except InvalidKey:
                if not self.is_open:
                    raise
        return callers

    def _caller(self, header: str, text: str) -> Caller:
        """Return the key's caller. The comparison takes the same time wherever two hashes differ."""
        key_id, secret = split_key(text) or ("", "")
        known = self._known.get(key_id, _NOBODY)
        if not hmac.compare_digest(secret_digest(secret, known.salt), known.digest):
            raise InvalidKey(f"The API key in {header} is not known here.")
        return known.caller


def _known(record: KeyRecord, private_prefixes: bool) -> _Known:
    caller = Caller(
        key_id=record.id,
        name=record.name,
        weight=record.weight,
        lane=record.lane,
        requests_per_minute=record.requests_per_minute,
        tokens_per_minute=record.tokens_per_minute,
        concurrent_max=record.concurrent_max,
        models=record.models,
        context_tokens=record.context_tokens,
        max_tokens=record.max_tokens,
        private_prefixes=record.private_prefixes or private_prefixes,
        key_class=record.key_class,
        admin=record.admin,
    )
    return _Known(caller, bytes.fromhex(record.salt), bytes.fromhex(record.digest))


def _bounded(header: str, value: str) -> str:
    if len(value) > HEADER_CHARS_MAX:
        raise InvalidKey(
            f"The header {header} has {len(value)} characters; at most {HEADER_CHARS_MAX} are read."
        )
    return value


def _bearer(value: str) -> str:
    scheme, _, text = value.strip().partition(" ")
    if scheme.lower() != "bearer" or not text:
        raise InvalidKey(f"{_AUTHORIZATION} has no Bearer key; {_HOW}.")
    return text.strip()


def check_model(caller: Caller, model: str) -> None:
    """Raise PermissionDenied unless the key may use the model of this name."""
    if caller.models is not None and model not in caller.models:
        raise PermissionDenied(
            f"The key {caller.name!r} may not use the model {model[:_NAME_CHARS_SHOWN]!r}; "
            f"it may use: {', '.join(caller.models)}.",
            param="model",
        )


def any_ordinary(records: Sequence[KeyRecord]) -> bool:
    """Whether there is a key that requests are made with: then every request needs one."""
    return any(not record.admin for record in records)


def refuse_open_door(host: str, records: Sequence[KeyRecord]) -> None:
    """Raise SettingsError if others could reach the gateway at `host`, and no key is asked of them.

    Looks a name up, so it may block.
    """
    if not any_ordinary(records) and not _is_loopback(host):
        raise SettingsError(
            f"host {host!r} can be reached from other machines, and there are no API keys for requests; "
            "`forebay keys add NAME` makes one"
        )


def _is_loopback(host: str) -> bool:
    """Whether nothing but this machine can reach `host`: all of a name's addresses count."""
    if host.lower() == "localhost":
        return True
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return bool(host) and all(_is_loopback_address(str(address[0])) for *_, address in found)


def _is_loopback_address(text: str) -> bool:
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
