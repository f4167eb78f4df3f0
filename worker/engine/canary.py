"""Proof before Hello: one token, made in the very way that answers are."""

from typing import Final

from shared.messages import Submit
from shared.sampling import Sampling
from worker.engine.batch_engine import BatchEngine
from worker.plan import Chunk
from worker.sequence import Sequence

_PROMPT_TOKENS: Final = 3


def prove(engine: BatchEngine, vocabulary: int) -> None:
    """Prefill a tiny prompt, decode one token and forget it; raises what the engine raises.

    The last id is a decode step's, as that is what most tokens are made by.
    """
    ids = tuple(number % vocabulary for number in range(1, 1 + _PROMPT_TOKENS))
    greedy = Sampling(temperature=0.0)
    sequence = Sequence.of(Submit(0, "canary", 1, ids, (), 1, (), greedy, 0, 1.0), 0.0)
    sequence.prefilled = len(ids) - 1
    engine.prefill([Chunk(sequence, 0, len(ids) - 1)])
    sequence.launched = 1
    engine.launch([sequence])
    [token] = engine.read().tokens
    if not 0 <= token < vocabulary:
        raise RuntimeError(f"the canary's token {token} is outside the vocabulary of {vocabulary}")
    engine.drop([sequence])
    engine.tidy()
