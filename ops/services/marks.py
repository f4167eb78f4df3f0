"""The mark on each file that `forebay install` writes: it tells ours from others', and from hand-edited ones.

The mark is a comment with a digest of everything else in the file.
"""

import hashlib
import re
from typing import Final, Literal

Standing = Literal["absent", "same", "ours", "edited", "foreign"]

_WORDS: Final = "Written by `forebay install`; edit the settings and install again, not this file."
_MARK: Final = re.compile(rb"forebay-digest: ([0-9a-f]{64})")
_EMPTY: Final = b"forebay-digest: " + b"0" * 64

COMMENT: Final = f"{_WORDS} {_EMPTY.decode()}"


def sealed(text: bytes) -> bytes:
    """Return a text that has COMMENT in it once with its digest filled in."""
    assert text.count(_EMPTY) == 1, "the comment stands in a text once"
    return text.replace(_EMPTY, b"forebay-digest: " + _digest(text))


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(_MARK.sub(_EMPTY, text)).hexdigest().encode()


def is_ours(text: bytes) -> bool:
    return _MARK.search(text) is not None


def is_intact(text: bytes) -> bool:
    """Whether a text has our mark and is as it was written."""
    found = _MARK.search(text)
    return found is not None and found[1] == _digest(text)


def standing(there: bytes | None, wanted: bytes) -> Standing:
    """Say what is in the place where `wanted` is to be."""
    if there is None:
        return "absent"
    if there == wanted:
        return "same"
    if is_intact(there):
        return "ours"
    return "edited" if is_ours(there) else "foreign"
