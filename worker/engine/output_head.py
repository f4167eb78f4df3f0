"""A model's output layer, run on one token of each row: prefill brings the answer's next token with it.

mlx-lm's models make logits of every token they are given. Of a prompt only the last one's are wanted, and a
decode step for these alone reads all weights once more. So the layer that makes them, an instance like any
other, gets a class that picks each row's last token out of what it is given, while it is told to. Whether a
model's logits are then the same is found out by trying.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedEmbedding, QuantizedLinear

from worker.engine.hooks import CHANGED_FROM, Hooks
from worker.engine.trial import REFUSALS, Together, Trial, prefill_together, refused

_LINEAR: Final = (Linear, QuantizedLinear)
_EMBEDDING: Final = (Embedding, QuantizedEmbedding)
_PROMPTS: Final = ((3, 4, 5, 6, 7, 8, 9), (11, 12, 13))


class OutputHead:
    """Picks while `last` runs; at any other time the model is as it was."""

    def __init__(self) -> None:
        self._places: mx.array | None = None

    def last(self, run: Callable[[], mx.array], lengths: Sequence[int]) -> mx.array:
        """Return logits, (rows, vocabulary), of each row's last token in a pass of rows of these lengths.

        `run` makes the pass, (rows, tokens, vocabulary). What else it does is left to be evaluated.
        ValueError if the layer that makes its logits isn't among those that were changed.
        """
        self._places = mx.array(list(lengths), dtype=mx.int32)[:, None, None] - 1
        try:
            logits = run()
        finally:
            self._places = None
        if logits.shape[:2] != (len(lengths), 1):
            raise ValueError(f"logits {logits.shape}: the layer that makes them is another one")
        return logits[:, -1]

    def put_in_place(self, model: Module, vocabulary: int) -> Hooks:
        """Let every layer that could make logits of so many tokens ask this; return how to take it back."""
        hooks = Hooks()
        for _name, module in model.named_modules():
            if isinstance(module, _LINEAR + _EMBEDDING) and module.weight.shape[0] == vocabulary:
                hooks.change(module, self._narrow(type(module)))
        return hooks

    def _narrow(self, kind: type) -> type:
        name = "as_linear" if issubclass(kind, _EMBEDDING) else "__call__"
        whole: Callable[..., mx.array] = getattr(kind, name)

        def narrow(module: Any, hidden: mx.array) -> mx.array:
            return whole(module, self._picked(hidden))

        return type(f"Narrow{kind.__name__}", (kind,), {CHANGED_FROM: kind, name: narrow})

    def _picked(self, hidden: mx.array) -> mx.array:
        return hidden if self._places is None else mx.take_along_axis(hidden, self._places, axis=1)


def output_head(trial: Trial, together: Together) -> OutputHead | None:
    """Return a model's head that gives the same logits as a decode step does; None if it has none."""
    head = OutputHead()
    hooks = head.put_in_place(trial.model, trial.vocabulary)
    trial.on_progress()
    try:
        if _agrees(head, trial, together):
            return head
    except REFUSALS as problem:
        refused(problem)  # what a family can't do is what is to be found out here
    hooks.remove()
    return None


def put_back(model: Module, vocabulary: int) -> OutputHead:
    """Return a head that has agreed before, in place."""
    head = OutputHead()
    head.put_in_place(model, vocabulary)
    return head


def _agrees(head: OutputHead, trial: Trial, together: Together) -> bool:
    prompts = [trial.ids_of(ids) for ids in (_PROMPTS if together is Together.PADDED else _PROMPTS[:1])]
    lengths = [len(ids) for ids in prompts]
    caches = trial.new_caches(max(lengths))
    padded = [ids + ids[-1:] * (max(lengths) - len(ids)) for ids in prompts]
    logits = head.last(lambda: prefill_together(trial.model, caches, padded, lengths), lengths)
    return trial.agree(logits, mx.stack([trial.alone(ids) for ids in prompts]))
