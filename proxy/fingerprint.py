"""What makes two requests the same to a worker that one of them killed."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from shared.sampling import Sampling

_BYTES: Final = 8
_NOTHING_ADDED: Final = (1.0, 0.0, 0.0, (), -1)


def fingerprints(
    prompts: Sequence[tuple[int, ...]],
    caps: Sequence[int],
    sampling: Sampling,
    *,
    ignores_eos: bool = False,
) -> tuple[str, ...]:
    """Return the fingerprint of each prompt, with its answer's cap."""
    added = _added(sampling, ignores_eos=ignores_eos)
    return tuple(_digest(ids, cap, sampling, added) for ids, cap in zip(prompts, caps, strict=True))


def fingerprint(
    prompt_ids: tuple[int, ...], max_tokens: int, sampling: Sampling, *, ignores_eos: bool = False
) -> str:
    """Return 16 hex digits: of the prompt, the answer's cap, and how it is drawn, but for seed and choice.

    And of whether it ends where the model says so: one that goes on is another run.

    A client that tries again sends the same body; where it names no seed, a new one is drawn each time. What
    was added to the ways of drawing counts only where it does something: fingerprints are kept in a file.
    """
    return _digest(prompt_ids, max_tokens, sampling, _added(sampling, ignores_eos=ignores_eos))


def _digest(prompt_ids: tuple[int, ...], max_tokens: int, sampling: Sampling, added: bytes) -> str:
    digest = blake2b(array("I", prompt_ids).tobytes(), digest_size=_BYTES)
    drawn = (max_tokens, sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
    digest.update(repr(drawn).encode())
    digest.update(added)
    return digest.hexdigest()


def _added(sampling: Sampling, *, ignores_eos: bool) -> bytes:
    """Return what says the newer ways of drawing; it may be long, and is the same for all prompts."""
    added = (
        *(sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty),
        *(tuple((each.token, each.bias) for each in sampling.logit_bias), sampling.top_logprobs),
    )
    said = b"" if added == _NOTHING_ADDED else repr(added).encode()
    if ignores_eos:
        said += b"ignore_eos "
    return said + b"grammar " + sampling.grammar.encode() if sampling.grammar else said
