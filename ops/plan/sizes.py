"""Sizes as operators write them: 64GB of memory, 32k tokens; read strictly, and written back."""

import re
from typing import Final

from shared.errors import SettingsError
from shared.limits import CONTEXT_TOKENS_MAX, GIB, KIB, MIB

_MEMORY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(MB|MiB|GB|GiB|TB|TiB)")
_TOKENS: Final = re.compile(r"([0-9]+)([kKmM]?)")
_MEMORY_UNITS: Final = {"M": MIB, "G": GIB, "T": KIB * GIB}
_TOKEN_UNITS: Final = {"": 1, "k": KIB, "m": MIB}
_MEMORY_BYTES_MAX: Final = 16 * KIB * GIB
CONTEXT_TOKENS_MIN: Final = 16


def memory_bytes(text: str) -> int:
    """Read a machine's memory. GB is taken as it is sold, as GiB. SettingsError says what is wrong."""
    found = _MEMORY.fullmatch(text.strip())
    if found is None:
        raise SettingsError(f"--memory {text}: not a size like 64GB or 96GiB")
    size = int(float(found[1]) * _MEMORY_UNITS[found[2][0]])
    if not 256 * MIB <= size <= _MEMORY_BYTES_MAX:
        raise SettingsError(f"--memory {text}: not between 256MB and 16TB")
    return size


def context_tokens(text: str) -> int:
    """Read a context's length in tokens; k is 1024. SettingsError says what is wrong."""
    found = _TOKENS.fullmatch(text.strip())
    if found is None:
        raise SettingsError(f"--context {text}: not a number of tokens like 32k or 32768")
    tokens = int(found[1]) * _TOKEN_UNITS[found[2].lower()]
    if not CONTEXT_TOKENS_MIN <= tokens <= CONTEXT_TOKENS_MAX:
        raise SettingsError(
            f"--context {text}: not between {CONTEXT_TOKENS_MIN} and {CONTEXT_TOKENS_MAX} tokens"
        )
    return tokens


def in_words(nbytes: int) -> str:
    """Write bytes with three digits or so, in units of 1024."""
    if nbytes >= GIB:
        return f"{nbytes / GIB:.1f} GiB" if nbytes < 100 * GIB else f"{nbytes / GIB:,.0f} GiB"
    if nbytes >= MIB:
        return f"{nbytes / MIB:.1f} MiB" if nbytes < 100 * MIB else f"{nbytes / MIB:.0f} MiB"
    return f"{nbytes / KIB:g} KiB" if nbytes >= KIB else f"{nbytes} bytes"


def tokens_in_words(tokens: int) -> str:
    return f"{tokens // KIB}k" if tokens >= KIB and tokens % KIB == 0 else f"{tokens}"
