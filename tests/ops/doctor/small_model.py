"""A model's folder of a few hundred bytes, whole as far as its files go."""

import json
from pathlib import Path
from typing import Any


def small_model(folder: Path, **config: Any) -> Path:
    """Make a folder that ModelFolder reads, with one file of weights of 4 bytes."""
    folder.mkdir(parents=True)
    content = {"model_type": "llama", "vocab_size": 8, "max_position_embeddings": 64, **config}
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "tokenizer.json").write_text("{}")
    rest = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(rest).to_bytes(8, "little") + rest + b"\0" * 4)
    return folder
