"""Small things that many tests of the proxy need: facts of a model, a Hello, a request that is measured."""

from proxy.admission.answer import Newcomer
from proxy.authenticate import ANONYMOUS
from proxy.fingerprint import fingerprint
from proxy.request import Cap, IdsPrompt, Measured, Parsed, Ticket
from shared.lane_settings import INTERACTIVE
from shared.messages import Hello
from shared.model_facts import ModelFacts
from shared.sampling import Sampling

FINGERPRINT = "f" * 16


def facts(**changes):
    """Return facts by which a row takes a byte for each of its tokens and one for the next.

    Of 63 tokens and more it takes up to a 32nd more: its room is rounded up.
    """
    plain = {
        "fingerprint": FINGERPRINT,
        "family": "small",
        "context_tokens": 64,
        "vocabulary": 1000,
        "weights_bytes": 0,
        "kv_bytes_per_token": 1,
        "kv_pad_tokens": 1,
        "window_tokens": 0,
        "window_bytes_per_token": 0,
        "fixed_bytes_per_row": 0,
        "batches": True,
        "why_not": "",
    }
    return ModelFacts(**{**plain, **changes})


def hello(epoch=1, slots=4, budget_bytes=1 << 20, **changes):
    return Hello(epoch, "0", facts(**changes), budget_bytes, slots, 1.0, 20.0)


def newcomer(
    name, key="", prompt_tokens=5, max_tokens=4, weight=1.0, deadline_s=30.0, fingerprint=None, names=()
):
    """Return a newcomer that asks what nobody else asks, unless it is told otherwise."""
    asks = f"what {name} asks" if fingerprint is None else fingerprint
    return Newcomer(name, key, weight, prompt_tokens, max_tokens, deadline_s, asks, names)


def ticket(
    lane=INTERACTIVE, caller=ANONYMOUS, context_tokens=1 << 20, max_tokens=None, deadline_s=None, salt=""
):
    """Return what a request may have: by default nearly everything."""
    cap = None if max_tokens is None else Cap(max_tokens, "This lane")
    context = Cap(context_tokens, "This model")
    return Ticket(caller, lane, context, cap, deadline_s or lane.deadline_s, salt)


def measured(
    prompts=((5, 6, 7),), max_tokens=4, choices=1, seed=0, names=(), ignores_eos=False, **ticket_fields
):
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
        ignores_eos=ignores_eos,
    )
    caps = (max_tokens,) * len(prompts)
    prints = tuple(fingerprint(ids, max_tokens, parsed.sampling) for ids in prompts)
    return Measured(parsed, ticket(**ticket_fields), tuple(prompts), caps, prints, tuple(names))
