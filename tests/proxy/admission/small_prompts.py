"""Prompts of whole blocks, as words: a letter is a block, and a name stands for all letters up to its own."""

from shared.limits import PREFIX_BLOCK_TOKENS


def names_of(word):
    """Return the names of a prompt's blocks, one for each letter."""
    return tuple(int.from_bytes(word[:end].encode()) for end in range(1, len(word) + 1))


def tokens_of(word, more=1):
    """Return the tokens of a prompt that goes on for some more behind its last block."""
    return PREFIX_BLOCK_TOKENS * len(word) + more


def prompt(word, more=1):
    """Return what a newcomer says of its prompt."""
    return {"names": names_of(word), "prompt_tokens": tokens_of(word, more)}
