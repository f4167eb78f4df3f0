"""Prompts of models that can write what stands between two texts: most models for code."""

from dataclasses import dataclass
from typing import Final, Self

from tokenizers import Tokenizer

# Each family's words: before the text that comes first, before the one that comes last, before the answer.
# Only added words of the tokenizer count; those of Code Llama are ordinary ones and need spaces of their own.
_FAMILIES: Final = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder and later, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder  # noqa: RUF001 (their letters)
)


@dataclass(frozen=True, slots=True)
class FillIn:
    """The ids of one tokenizer's three words."""

    first: int
    last: int
    answer: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self | None:
        """Return a tokenizer's words, None if it has none."""
        added = {token.content: id_ for id_, token in tokenizer.get_added_tokens_decoder().items()}
        for words in _FAMILIES:
            if all(word in added for word in words):
                return cls(*(added[word] for word in words))
        return None

    def ids(self, tokenizer: Tokenizer, text: str, suffix: str) -> tuple[int, ...]:
        """Return the prompt for what stands between the two."""
        start = tokenizer.encode("", add_special_tokens=True).ids
        before, behind = (tokenizer.encode(each, add_special_tokens=False).ids for each in (text, suffix))
        return (*start, self.first, *before, self.last, *behind, self.answer)
