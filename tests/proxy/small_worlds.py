"""Small things that many tests of the proxy need: facts of a model, a Hello, a request that is measured."""

from proxy.admission.queue import Waiting
from proxy.request import IdsPrompt, Measured, Parsed
from shared.messages import Hello, ModelFacts
from shared.sampling import Sampling

FINGERPRINT = "f" * 16


def facts(**changes):
    """Return facts by which `rows` rows of `longest` tokens take (rows + 1) * (longest + 1) bytes."""
    plain = {
        "fingerprint": FINGERPRINT,
        "family": "small",
        "context_tokens": 64,
        "vocabulary": 1000,
        "weights_bytes": 0,
        "kv_bytes_per_token": 1,
        "kv_pad_tokens": 1,
        "kv_pad_rows": 1,
        "fixed_bytes_per_row": 0,
        "batches": True,
        "why_not": "",
    }
    return ModelFacts(**{**plain, **changes})


def hello(epoch=1, slots=4, budget_bytes=1 << 20, **changes):
    return Hello(epoch, "0", facts(**changes), budget_bytes, slots)


def waiting(name, tokens=9):
    return Waiting(name, tokens)


def measured(prompts=((5, 6, 7),), max_tokens=4, choices=1, seed=0):
    """Return a measured request of token ids; `max_tokens` is each answer's cap."""
    parsed = Parsed(
        endpoint="completions",
        model="m",
        prompts=tuple(IdsPrompt(ids) for ids in prompts),
        choices=choices,
        max_tokens=max_tokens,
        sampling=Sampling(seed=seed),
        stops=(),
        stream=False,
        include_usage=False,
    )
    return Measured(parsed, tuple(prompts), (max_tokens,) * len(prompts))
