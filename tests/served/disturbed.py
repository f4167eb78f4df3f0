"""Streams of the small model for tests that disturb them: so long that what disturbs them comes in time."""

import functools
from collections.abc import Callable

from tests.served import client, small_model

chat = functools.partial(client.chat, model=small_model.NAME, ignore_eos=True)
# A command must have come before they end, and this model says a thousand a second.
TOKENS = 500
_GREEDY = {"temperature": 0.0}
_SEEDED = {"temperature": 0.8, "seed": 11}
# Greedy, seeded and constrained answers. No more than there are rows: what waits for one may have waited too
# long by the time a new worker is there.
BODIES = [
    chat(f"Tell me a long story about {subject}.", max_tokens=TOKENS, **sampling)
    for sampling in (_GREEDY, _SEEDED)
    for subject in ("the sea", "a mountain")
] + [
    chat(
        "Write about bread.",
        max_tokens=TOKENS,
        ignore_eos=False,
        guided_regex="([a-z]{2,9} ){170}",
        **_SEEDED,
    )
]


def once_under_way(disturb: Callable[[], object]) -> Callable[[int], None]:
    """Return what is to be called with each chunk of all streams: it calls `disturb` when some have come."""
    chunks = 0

    def count(_number: int) -> None:
        nonlocal chunks
        chunks += 1
        if chunks == 8 * len(BODIES):
            disturb()

    return count
