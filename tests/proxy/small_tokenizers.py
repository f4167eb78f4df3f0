"""Tokenizers small enough to build in a test, one of each kind that detokenising must get right."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from shared.model_folder import ModelFolder

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|end|>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level(merges: tuple[tuple[str, str], ...] = ()) -> Tokenizer:
    """A token for each byte (and merge), as GPT-2, Llama 3 and Qwen spell them, and a few special tokens."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(merge) for merge in merges)]
    tokenizer = Tokenizer(
        models.BPE(vocab={word: id_ for id_, word in enumerate(words)}, merges=list(merges))
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in SPECIALS])
    return tokenizer


def spell(raw: bytes) -> str:
    """Return the bytes in the letters that a byte-level vocabulary spells them with."""
    letters = {**{byte: chr(byte) for byte in (*range(33, 127), *range(161, 173), *range(174, 256))}}
    others = (byte for byte in range(256) if byte not in letters)
    letters |= {byte: chr(256 + place) for place, byte in enumerate(others)}
    return "".join(letters[byte] for byte in raw)


def straddling() -> Tokenizer:
    """A byte-level tokenizer whose token 82 AC E2 ends one euro sign and begins the next."""
    end, middle, start = (spell(bytes([byte])) for byte in (0xAC, 0x82, 0xE2))
    return byte_level(((middle, end), (middle + end, start)))


def byte_fallback() -> Tokenizer:
    """SentencePiece's manner: ▁ for a space, the first one dropped; <0xE2> for bytes that are no word."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefé"]
    vocabulary = {word: id_ for id_, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in SPECIALS])
    return tokenizer


def write_folder(path: Path, tokenizer: Tokenizer | None = None, **config: Any) -> ModelFolder:
    """Write a model folder without weights worth the name, and read it. `config` is tokenizer_config.json."""
    tokenizer = tokenizer or byte_level()
    path.mkdir(exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    size = max(tokenizer.get_vocab().values()) + 1
    model = {"model_type": "llama", "vocab_size": size, "max_position_embeddings": 64}
    (path / "config.json").write_text(json.dumps(model), "utf-8")
    (path / "model.safetensors").write_bytes(b"")
    return ModelFolder.read(path)
