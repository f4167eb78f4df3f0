"""A model of single bytes with a format's words: what a grammar lets it write, and walks through one."""

import random
from dataclasses import replace

from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken

from proxy.formats.table import format_of
from proxy.grammars.composer import Composer
from proxy.request import ChatPrompt, Parsed, Shape
from proxy.text_model import TextModel
from shared.grammar_limits import parser_limits
from shared.sampling import Sampling
from tests.proxy.small_tokenizers import byte_level

# What a chat template has in it that shows a format, and the words that its tokenizers have added.
_TEMPLATES = {
    "plain": "",
    "think": "<think></think>",
    "hermes": "<think></think><tool_call>",
    "llama": '<|start_header_id|> "parameters"',
    "mistral": "[TOOL_CALLS][ARGS]",
    "qwen-xml": "<think></think><tool_call><function=",
    "gpt-oss": "<|channel|><|message|>",
    "function-gemma": "<start_function_call>",
}
_WORDS = {
    "think": ("<think>", "</think>"),
    "hermes": ("<think>", "</think>", "<tool_call>", "</tool_call>"),
    "mistral": ("[TOOL_CALLS]", "[ARGS]"),
    "qwen-xml": ("<think>", "</think>", "<tool_call>", "</tool_call>"),
    "gpt-oss": ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"),
    "function-gemma": ("<start_function_call>", "<end_function_call>", "<escape>"),
}


class Writer:
    """A model of a format, `added` saying whether the format's words are tokens of their own."""

    def __init__(self, name="plain", *, added=True, special=False):
        tokenizer = byte_level()
        words = [AddedToken(word, special=special) for word in _WORDS.get(name, ()) if added]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(words)
        ids = {token.content: id_ for id_, token in tokenizer.get_added_tokens_decoder().items()}
        self.tokenizer = tokenizer
        self.stop = tokenizer.token_to_id("<|im_end|>")
        self.model = TextModel(tokenizer, None, (self.stop,))
        self.model.format = format_of(_TEMPLATES[name], ids)
        assert self.model.format.name == name
        self._masking = LLTokenizer(tokenizer.to_str(), eos_token=self.stop)
        self._composer = Composer(self.model, tokenizer.get_vocab_size())

    def grammar(self, *, thinks=False, **asked):
        return self._composer.grammar(request(**asked), thinks=thinks)

    def matcher(self, grammar):
        matcher = LLMatcher(self._masking, grammar, log_level=0, limits=parser_limits())
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def accepted(self, grammar, text):
        """Return how much of a text may be written, and whether it may end there."""
        matcher = self.matcher(grammar)
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        count = matcher.try_consume_tokens(ids)
        return self.tokenizer.decode(ids[:count], skip_special_tokens=False), matcher.is_accepting()

    def accepts(self, grammar, text):
        return self.accepted(grammar, text) == (text, True)

    def allowed(self, matcher):
        bits = f"{int.from_bytes(matcher.compute_bitmask(), 'little'):b}"
        return [id_ for id_, bit in enumerate(reversed(bits)) if bit == "1"]

    def walk(self, grammar, seed, most=400):
        """Return a text written by drawing tokens, ends and closing signs first; None if it grew too long."""
        matcher, draws, ids = self.matcher(grammar), random.Random(seed), []
        closing = {self.stop, *(self.tokenizer.token_to_id(sign) for sign in '"]}')}
        while len(ids) < most:
            allowed = self.allowed(matcher)
            assert allowed, matcher.get_error()
            ends = [id_ for id_ in allowed if id_ in closing]
            drawn = draws.choice(ends if ends and draws.random() < 0.4 else allowed)
            if drawn == self.stop:
                return self.tokenizer.decode(ids)
            assert matcher.consume_token(drawn), matcher.get_error()
            ids.append(drawn)
            if matcher.is_stopped():
                return self.tokenizer.decode(ids)
        return None


CHAT = (ChatPrompt(()),)


def request(*, endpoint="chat", prompts=CHAT, **asked):
    plain = Parsed(endpoint, "m", prompts, 1, None, Sampling(), (), stream=False, include_usage=False)
    return replace(plain, **asked)


def shape(kind, source="", param="response_format"):
    return Shape(kind, source, param)
