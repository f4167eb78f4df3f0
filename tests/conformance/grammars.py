"""What a grammar that the worker was sent allows, as llguidance says with the served tokenizer's words."""

import llguidance

from tests.conformance.world import World


def allows(here: World, text: str, *, whole: bool = True) -> bool:
    """Whether an answer of this text, or one that begins so, is possible under the last request's grammar."""
    grammar = here.sampling.grammar
    assert grammar, "no grammar was sent"
    matcher = llguidance.LLMatcher(_words(here), grammar)
    assert not matcher.is_error(), matcher.get_error()
    ids = here.ids(text)
    if matcher.validate_tokens(ids) < len(ids):
        return False
    matcher.consume_tokens(ids)
    return matcher.is_accepting() if whole else True


def _words(here: World) -> llguidance.LLTokenizer:
    end = here.tokenizer.token_to_id("<|im_end|>")
    return llguidance.LLTokenizer(here.tokenizer.to_str(), eos_token=end)
