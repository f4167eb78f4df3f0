"""What comes in where no key is asked for: not what a web page sends behind its reader's back.

A gateway without keys is open to whoever reaches it, and only its own machine does. But a browser there runs
other people's pages. Two ways lead from such a page to the gateway, and both are closed:

* a page may send a request to another origin, though it can't read the answer. Browsers say whose page it was
  in Origin.
* a page's own host name may be made to mean 127.0.0.1 (DNS rebinding); then the gateway is the page's own
  origin, and it reads everything. Browsers send that name in Host.

With keys neither helps a page, which has none.
"""

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from shared.errors import PermissionDenied

# Nobody on the internet can have these: they are reserved for this machine, and for containers' view of it.
_RESERVED: Final = (".localhost", ".internal")
_NAME_CHARS_SHOWN: Final = 100
_HOW: Final = (
    "An open gateway takes requests by an address, by localhost, and by the names in proxy.host_names; "
    "with API keys (`forebay keys add NAME`) it takes any."
)


class OpenDoor:
    """Looks at requests while `is_open`. `names` are further ones that may stand in Host and Origin."""

    def __init__(self, names: Sequence[str], is_open: Callable[[], bool]) -> None:
        self._names = frozenset(name.lower() for name in names)
        self._is_open = is_open

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise PermissionDenied for what may come from a web page that isn't the gateway's own."""
        if not self._is_open():
            return
        host = headers.get("Host", "")
        if not self._may_be_host(host_name(host)):
            raise PermissionDenied(f"The host {host[:_NAME_CHARS_SHOWN]!r} isn't known here. {_HOW}")
        origin = headers.get("Origin")
        if origin is not None and not self._may_be_origin(origin, host):
            raise PermissionDenied(
                f"Pages of {origin[:_NAME_CHARS_SHOWN]!r} may not ask this gateway. {_HOW}", param="Origin"
            )

    def _may_be_host(self, name: str) -> bool:
        """Whether no page from elsewhere can have this name. One without a dot is of this network."""
        return (
            "." not in name or name in self._names or name.endswith(_RESERVED) or _address(name) is not None
        )

    def _may_be_origin(self, origin: str, host: str) -> bool:
        """Whether a page is the gateway's own or this machine's, or belongs to an application."""
        if origin == "null":
            return False
        scheme, _, place = origin.partition("://")
        if scheme not in {"http", "https"} or place == host:
            return True
        name = host_name(place)
        address = _address(name)
        is_loopback = address.is_loopback if address is not None else False
        return is_loopback or name in self._names or name == "localhost" or name.endswith(_RESERVED[0])


def host_name(host: str) -> str:
    """Return the name or address in a Host header, without its port; "" if it has none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
