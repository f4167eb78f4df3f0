"""What the engine gains by beginnings that rows share, and loses by keeping those that nobody shares."""

import dataclasses
import gc
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from typing import Final

import mlx.core as mx

from ops.engine.ours import Ours, first_times
from ops.engine.side import Request
from ops.engine.stage import Stage, tokens_between
from ops.engine.subject import Subject
from ops.engine.works import GREEDY
from ops.load.progress import Progress
from ops.prefixes.plan import Arm, Measured, NotMeasured, Scale
from ops.prefixes.prompts import dice, ids, unlike_ids
from shared.config import WorkerSettings
from shared.lane_settings import INTERACTIVE
from worker import memory
from worker.engine.model import LoadedModel, warm_up

SHARED: Final = "shared"
COPIES: Final = "copies"
STORE: Final = "store"
NO_STORE: Final = "no store"

SHARE_TOKENS: Final = WorkerSettings().prefix_share_tokens
_KEPT_SHARE: Final = 0.2  # as a worker keeps them
_SETTLED_TOKENS: Final = 3  # of each row, before steps are timed
_REST_TURNS: Final = 3  # until what has ended is dropped, and kept
_WARM_STEPS: Final = 4
_WARM_WAVES: Final = 1

# What each row said, of one run of one way.
Texts = dict[str, list[int]]


class Bench:
    """One model that is warmed up, and the ways in which the engine may use it.

    All have the same weights and modules, and each learns its times. NotMeasured if the context is too short.
    """

    def __init__(
        self, subject: Subject, device: memory.DeviceReport, scale: Scale, progress: Progress
    ) -> None:
        longest = max(scale.arm_context_tokens, scale.crowd_context_tokens)
        if longest > subject.folder.context_tokens:
            raise NotMeasured(
                f"{subject.folder.name} has a context of {subject.folder.context_tokens} tokens, and this "
                f"scale needs {longest}"
            )
        self._device = device
        self._scale = scale
        self._vocabulary = subject.folder.vocabulary
        with progress.phase("warming up"):
            loaded = warm_up(subject.model, subject.folder, None, lambda: None, share_tokens=SHARE_TOKENS)
        self._times = {way: first_times(loaded) for way in (SHARED, COPIES, STORE, NO_STORE)}
        self._ways = ways(loaded)
        self.facts = loaded.facts

    def share(self, arm: Arm, way: str, number: int) -> tuple[Measured, Texts]:
        """Let rows come to one beginning that is kept, and decode on it; return also what they said.

        NotMeasured if the model's rows can't share, or if they found nothing kept.
        """
        if not self.facts.shares_from:
            raise NotMeasured(f"rows of this model don't share: {self.facts.why_not_shared}")
        scale = self._scale
        steps = scale.steps if number else _WARM_STEPS
        beginning = ids(self._vocabulary, arm.tokens, "beginning", arm, number)
        side = self._begin(way, arm.rows + 1)
        try:
            measured = _share(side, _on_one(beginning, arm, scale, self._vocabulary, number), steps)
            texts = {row: tokens[:steps] for row, tokens in side.said.items()}
        finally:
            side.close()
        own_tokens = measured.pop("tokens") - arm.rows * arm.tokens
        held_bytes = (arm.tokens + own_tokens) * self.facts.kv_bytes_per_token
        return {**measured, "of_held": measured["kv_bytes"] / held_bytes}, texts

    def crowd(self, way: str, number: int) -> Measured:
        """Let rows come that have nothing in common, wave upon wave."""
        crowd = self._scale.crowd
        waves = crowd.waves if number else _WARM_WAVES
        prompts = unlike_ids(self._vocabulary, crowd.prompt_tokens, crowd.rows * waves, "crowd", number)
        requests = [
            Request(f"row-{place}", prompt, crowd.answer_tokens, GREEDY)
            for place, prompt in enumerate(prompts)
        ]
        # Room for one wave: each gives up what the one before has left.
        wave_bytes = crowd.rows * self._scale.crowd_context_tokens * self.facts.kv_bytes_per_token
        side = self._begin(way, crowd.rows, wave_bytes)
        try:
            measured = _crowd(side, [requests[wave * crowd.rows :][: crowd.rows] for wave in range(waves)])
        finally:
            side.close()
        if way == STORE and waves > 1 and not measured["evictions"]:
            raise NotMeasured("nothing was given up: the store had room for all waves")
        return measured

    def _begin(self, way: str, slots: int, kept_bytes_max: float = math.inf) -> Ours:
        gc.collect()
        mx.clear_cache()
        return Ours(
            self._ways[way],
            self._times[way],
            self._device,
            slots=slots,
            quantum_ms=INTERACTIVE.prefill_quantum_ms,
            share_tokens=0 if way == NO_STORE else SHARE_TOKENS,
            kept_share=0.0 if way == NO_STORE else _KEPT_SHARE,
            kept_bytes_max=kept_bytes_max,
        )


def ways(loaded: LoadedModel) -> Mapping[str, LoadedModel]:
    """Return the model as it is, without shared reading, and without any use of what was computed."""
    copies = dataclasses.replace(loaded.facts, shares_from=0, why_not_shared="it is not to")
    nothing = dataclasses.replace(copies, reuse="none")
    return {
        SHARED: loaded,
        STORE: loaded,
        COPIES: dataclasses.replace(loaded, facts=copies),
        NO_STORE: dataclasses.replace(loaded, facts=nothing),
    }


def _on_one(
    beginning: tuple[int, ...], arm: Arm, scale: Scale, vocabulary: int, number: int
) -> list[Request]:
    """Return a request that leaves the beginning behind, and the rows that come to it."""
    lengths = dice("own", arm, number)
    return [
        Request(
            name=f"row-{place}" if place else "first",
            ids=beginning + ids(vocabulary, lengths.randint(scale.own.least, scale.own.most), place, number),
            tokens_max=scale.answer_most if place else _SETTLED_TOKENS,
            sampling=GREEDY,
        )
        for place in range(arm.rows + 1)
    ]


def _share(side: Ours, requests: Sequence[Request], steps: int) -> Measured:
    """Return what was measured, and `tokens`: those of all rows that came to the beginning."""
    first, *rows = requests
    names = [row.name for row in rows]
    stage = Stage(side)
    began_s = time.perf_counter()
    stage.add([first])
    stage.until([first.name], _SETTLED_TOKENS)
    first_s = stage.times[first.name][0] - began_s
    _rest(side)
    came_s = time.perf_counter()
    stage.add(rows)
    stage.until(names, 1)
    joined_s = stage.now_s - came_s
    stage.until(names, _SETTLED_TOKENS)
    since_s = stage.now_s
    stage.on(names[-1], steps)
    until_s = stage.now_s
    if min(stage.times[name][-1] for name in names) < stage.times[names[-1]][-2]:
        raise NotMeasured("a row had ended before all steps were timed")
    cached = [side.cached[name] for name in names]
    if not min(cached):
        raise NotMeasured("a row found nothing of its beginning kept: there is no room for it")
    return {
        "tokens_per_s": tokens_between(stage.times, since_s, until_s) / (until_s - since_s),
        "joined_s": joined_s,
        "first_s": first_s,
        "kv_bytes": float(side.kv_bytes),
        "cached_tokens": float(sum(cached)),
        "tokens": float(sum(len(row.ids) + len(stage.times[row.name]) for row in rows)),
    }


def _crowd(side: Ours, waves: Sequence[Sequence[Request]]) -> Measured:
    """Return tokens a second, prompts' and answers', from the first request until all is put away."""
    stage = Stage(side)
    began_s = time.perf_counter()
    for requests in waves:
        stage.add(requests)
        stage.until([request.name for request in requests], requests[0].tokens_max)
        _rest(side)
    elapsed_s = time.perf_counter() - began_s
    tokens = sum(len(request.ids) + request.tokens_max for requests in waves for request in requests)
    return {"tokens_per_s": tokens / elapsed_s, "evictions": float(side.evictions)}


def _rest(side: Ours) -> None:
    for _ in range(_REST_TURNS):
        side.turn()


def equal_share(some: Texts, others: Texts) -> float:
    """Return how many of the tokens are the same, up to the first of each row that differs."""
    pairs = [(some[row], others[row]) for row in some]
    same = sum(_common(one, other) for one, other in pairs)
    return same / max(1, sum(min(len(one), len(other)) for one, other in pairs))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    alike = (mine == theirs for mine, theirs in zip(one, other, strict=False))
    return sum(1 for _ in itertools.takewhile(bool, alike))
