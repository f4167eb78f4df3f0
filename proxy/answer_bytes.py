"""How many bytes an answer takes as JSON, roughly, from what was asked: for bounds that needn't be exact."""

from typing import Final

from proxy.request import Parsed
from shared.sampling import Sampling

_EVENT_BYTES: Final = 200
_USAGE_BYTES: Final = 160
_LOGPROB_BYTES: Final = 80  # of one token's, or of one alternative to it


def entry_bytes(sampling: Sampling) -> int:
    """Return what the log probabilities of one token take; 0 if they aren't asked for."""
    return _LOGPROB_BYTES * (1 + sampling.top_logprobs)


def event_bytes(parsed: Parsed) -> int:
    """Return what one token takes in an event stream."""
    return _EVENT_BYTES + _USAGE_BYTES * parsed.continuous_usage + entry_bytes(parsed.sampling)
