"""Workbenches for models that keep and share beginnings of prompts, and what they are checked by."""

import functools
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from shared.clock import FalseClock
from shared.limits import GIB, PREFIX_BLOCK_TOKENS
from shared.logs import get
from shared.messages import PrefillShare, Step
from tests.worker.tiny_models import VOCABULARY, Reference, greedy_alone, save
from tests.worker.workbench import PLENTY, Workbench
from worker.engine.model import LoadedModel, load
from worker.prefix_disk.tier import DiskTier

Ids = tuple[int, ...]

# It ends turns in prompts, which is where families of checkpoints keep a state.
STOP: Final = 2
BLOCK: Final = PREFIX_BLOCK_TOKENS
# Shorter than served, so that beginnings are shared where a tiny model prefills and decodes quickly.
SHARE_TOKENS: Final = BLOCK


def ids_of(seed: int, count: int) -> Ids:
    """Return made-up text: never the token that ends a turn."""
    numbers = random.Random(seed)
    return tuple(numbers.randrange(STOP + 1, VOCABULARY) for _ in range(count))


def turn_of(seed: int, count: int) -> Ids:
    """Return made-up text of a turn, with its end."""
    return (*ids_of(seed, count - 1), STOP)


@functools.cache
def reusing(family: str, *, kv_bits: int = 0, flat: bool = False, **changes: Any) -> LoadedModel:
    """Return a tiny model that uses again what was computed, as the worker loads it, once a test run."""
    with tempfile.TemporaryDirectory() as folder:
        saved = save(Path(folder), family, flat=flat, **changes)
        return load(saved, None, lambda: None, kv_bits, share_tokens=SHARE_TOKENS)


@functools.cache
def alone(family: str, prompt: Ids, tokens: int) -> Reference:
    """Return what mlx-lm answers when it computes all of a prompt for it."""
    return greedy_alone(reusing(family).model, prompt, tokens)


class Talk(Workbench):
    """A workbench that keeps beginnings, on which prompts' turns end with STOP."""

    def __init__(self, loaded: LoadedModel, **details: Any) -> None:
        super().__init__(loaded, **{"slots": 6, "quantum_ms": 1000.0, "kept_bytes_max": PLENTY} | details)
        self.shared_bytes_max = 0

    def turn(self) -> None:
        super().turn()
        self.shared_bytes_max = max(self.shared_bytes_max, self.engine.prefixes.shared_bytes)

    def ask(self, name: str, prompt: Ids, tokens: int, **details: Any) -> None:
        self.submit(name, prompt, tokens, **{"stop_ids": (STOP,)} | details)

    def say(self, prompts: Mapping[str, Ids], tokens: int, **details: Any) -> dict[str, list[int]]:
        """Answer prompts that come at the same time; nothing of them may be held then."""
        for name, prompt in prompts.items():
            self.ask(name, prompt, tokens, **details)
        self.run()
        assert self.engine.prefixes.shared_bytes == 0
        return {name: self.answers[name] for name in prompts}

    def cached(self, name: str) -> int:
        """Return how many tokens of a sequence's newest attempt were there already; names are used once."""
        shares: list[PrefillShare] = [
            share for step in self.channel.of(Step) for share in step.prefills if share.sequence == name
        ]
        newest = max((share.attempt for share in shares), default=0)
        told = [share.cached for share in shares if share.attempt == newest]
        assert not any(told[1:]), "it is told once"
        return sum(told)


@contextmanager
def disk_tier(folder: Path, loaded: LoadedModel) -> Iterator[DiskTier]:
    """Open the disk tier of a folder for a while, as a worker does from its start to its end."""
    tier = DiskTier(
        folder,
        loaded.facts.fingerprint,
        bytes_max=GIB,
        writes_bytes_a_day=GIB,
        clock=FalseClock(),
        now=time.time,
        log=get("test"),
    )
    tier.start()
    assert tier.drain()
    try:
        yield tier
    finally:
        tier.close()
