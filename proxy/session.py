"""Which requests belong together, as their client says: by a header, or by OpenAI's field for it.

Among several workers such requests would go to the one that has their beginnings. There is one: the key is
checked, and its mark stands in the log. It decides nothing about an answer.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Final

from shared.errors import InvalidRequest

HEADER: Final = "x-forebay-session"
# OpenAI takes 64, others up to so many: whoever talks to one of those can talk to Forebay.
CACHE_KEY_CHARS_MAX: Final = 1024
_SESSION: Final = re.compile(r"[\x20-\x7e]{1,256}")
_MARK_BYTES: Final = 6


def session_key(values: Sequence[str]) -> str:
    """Return what a request's headers of this name say, "" without; InvalidRequest if unusable."""
    if not values:
        return ""
    if len(values) > 1:
        raise InvalidRequest(f"{HEADER} is sent more than once.", param=HEADER)
    if not _SESSION.fullmatch(values[0]):
        raise InvalidRequest(f"{HEADER} must have 1 to 256 printable ASCII characters.", param=HEADER)
    return values[0]


def mark_of(key: str) -> str:
    """Return what stands for a key in the log, "" for none.

    Equal keys have equal marks, and whose key it is, or a line break in it, gets into no log.
    """
    return hashlib.blake2b(key.encode(), digest_size=_MARK_BYTES).hexdigest() if key else ""
