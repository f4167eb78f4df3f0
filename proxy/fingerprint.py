"""What makes two requests the same to a worker that one of them killed."""

from array import array
from hashlib import blake2b
from typing import Final

from shared.sampling import Sampling

_BYTES: Final = 8
_NOTHING_ADDED: Final = (1.0, 0.0, 0.0, (), -1)


def fingerprint(prompt_ids: tuple[int, ...], max_tokens: int, sampling: Sampling) -> str:
    """Return 16 hex digits: of the prompt, the answer's cap, and how it is drawn, but for seed and choice.

    A client that tries again sends the same body; where it names no seed, a new one is drawn each time. What
    was added to the ways of drawing counts only where it does something: fingerprints are kept in a file.
    """
    digest = blake2b(array("I", prompt_ids).tobytes(), digest_size=_BYTES)
    drawn = (max_tokens, sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
    digest.update(repr(drawn).encode())
    added = (
        *(sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty),
        *(tuple((each.token, each.bias) for each in sampling.logit_bias), sampling.top_logprobs),
    )
    if added != _NOTHING_ADDED:
        digest.update(repr(added).encode())
    return digest.hexdigest()
