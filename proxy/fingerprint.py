"""What makes two requests the same to a worker that one of them killed."""

from array import array
from hashlib import blake2b

from shared.sampling import Sampling

_BYTES = 8


def fingerprint(prompt_ids: tuple[int, ...], max_tokens: int, sampling: Sampling) -> str:
    """Return 16 hex digits: of the prompt, the answer's cap, and how it is drawn, but for seed and choice.

    A client that tries again sends the same body; where it names no seed, a new one is drawn each time.
    """
    digest = blake2b(array("I", prompt_ids).tobytes(), digest_size=_BYTES)
    drawn = (max_tokens, sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
    digest.update(repr(drawn).encode())
    return digest.hexdigest()
