"""A model that is there at once: random weights and a letter a token, for tests of all that is not its words.

Its answers may end by chance: ask with ignore_eos for one that mustn't.
"""

import json
from pathlib import Path
from typing import Final

from shared.model_folder import ModelFolder
from tests.proxy.small_tokenizers import CHATML, byte_level
from tests.worker.tiny_models import save

NAME: Final = "small"
CONTEXT_TOKENS: Final = 40_000


def write(folder: Path) -> ModelFolder:
    """Write a folder of that name into another one."""
    tokenizer = byte_level()
    path = folder / NAME
    words = max(tokenizer.get_vocab().values()) + 1
    save(path, "llama", vocab_size=words, max_position_embeddings=CONTEXT_TOKENS)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}), "utf-8")
    return ModelFolder.read(path)
