"""The families that heavy tests try by default; `--all-families` tries every one."""

from typing import Final

# One of each kind, that is of each way in which caches are kept, joined and begun from; and gpt_oss for its
# sinks. With others the engine does nothing else; test_families_loaded.py holds this list to that.
SHORT_ROUND: Final = (
    *(
        "llama",
        "gemma2",
        "gemma3_text",
        "gpt_oss",
        "llama4",
        "deepseek_v3",
        "deepseek_v32",
        "mamba",
        "mamba2",
    ),
    *("nemotron_h", "qwen3_5", "falcon_h1", "kimi_linear", "baichuan_m1", "recurrent_gemma"),
)
