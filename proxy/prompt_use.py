"""What a request's prompts took: their tokens, and how many of them nobody had to compute anew."""

from dataclasses import dataclass

from proxy.admitted import Admitted, LiveSequence


@dataclass(frozen=True, slots=True)
class PromptUse:
    """Tokens of prompts, each prompt counted once; `cached` of them were there already."""

    tokens: int = 0
    cached: int = 0

    def __add__(self, other: "PromptUse") -> "PromptUse":
        return PromptUse(self.tokens + other.tokens, self.cached + other.cached)


def prompt_use(admitted: Admitted) -> PromptUse:
    """Return what the prompts took of which an answer was begun; `cached` is never more than `tokens`."""
    choices = admitted.measured.parsed.choices
    uses = (
        _use_of(len(ids), admitted.sequences[choices * prompt : choices * (prompt + 1)])
        for prompt, ids in enumerate(admitted.measured.prompt_ids)
    )
    return sum(uses, PromptUse())


def _use_of(tokens: int, choices: tuple[LiveSequence, ...]) -> PromptUse:
    """Return one prompt's use: what the choice that found the least lacked was computed, for all."""
    begun = [choice for choice in choices if choice.attempt]
    if not begun:
        return PromptUse()
    found = (choice.cached_tokens for choice in begun if choice.cached_tokens is not None)
    return PromptUse(tokens, min(tokens, min(found, default=0)))
