"""Names for beginnings of prompts: a chain of digests, one for each block of 64 tokens.

A block's name follows from the one before it and from the block's own tokens, so it names everything up to
its end. The chain starts from what keys and values depend on beside the tokens: the model's weights, what
they are quantised to, an adapter, and a salt, by which callers are kept apart who must not learn from the
time an answer takes what others have asked.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence
from typing import Final

from shared.limits import PREFIX_BLOCK_TOKENS

KEY_BYTES: Final = 16
# A key as it goes over the wire, where it only has to be told apart: an integer of so many bits.
NAME_BITS: Final = 62


def root_key(fingerprint: str, kv_bits: int, *, adapter: str = "", salt: str = "") -> bytes:
    """Return the key of the empty beginning, KEY_BYTES long."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES, person=b"forebay root")
    for part in (fingerprint, str(kv_bits), adapter, salt):
        raw = part.encode()
        digest.update(len(raw).to_bytes(4, "little") + raw)
    return digest.digest()


def next_key(parent: bytes, ids: Sequence[int]) -> bytes:
    """Return the key of what ends with `ids`, token ids below 2**32, behind what `parent` names."""
    packed = array("I", ids)
    if sys.byteorder != "little":
        packed.byteswap()
    return hashlib.blake2b(packed.tobytes(), digest_size=KEY_BYTES, key=parent).digest()


def keys_of(root: bytes, ids: Sequence[int]) -> list[bytes]:
    """Return the keys of all whole blocks of `ids`, in order; what is left over at the end has none."""
    keys, parent = [], root
    for end in range(PREFIX_BLOCK_TOKENS, len(ids) + 1, PREFIX_BLOCK_TOKENS):
        parent = next_key(parent, ids[end - PREFIX_BLOCK_TOKENS : end])
        keys.append(parent)
    return keys


def name_of(key: bytes) -> int:
    """Return a key's name on the wire: who is wrong about one estimates wrongly, and computes nothing."""
    return int.from_bytes(key[:8], "little") >> (64 - NAME_BITS)
