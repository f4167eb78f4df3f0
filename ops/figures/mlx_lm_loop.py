"""mlx-lm's in-process loops, timed on request: the measure that the gateway is held against.

Questions come as JSON lines: {"prompts": [text], "max_tokens": n} runs batch_generate on all of them;
{"first": text} runs stream_generate up to its first token.
"""

import json
import sys
import time
from typing import Any

from mlx_lm import batch_generate, load, stream_generate


def main() -> None:
    model, tokenizer = load(sys.argv[1])[:2]
    for line in sys.stdin:
        question = json.loads(line)
        answer = (
            _first(model, tokenizer, question) if "first" in question else _batch(model, tokenizer, question)
        )
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _ids(tokenizer: Any, prompt: str) -> list[int]:
    messages = [{"role": "user", "content": prompt}]
    ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return ids


def _batch(model: Any, tokenizer: Any, question: dict[str, Any]) -> dict[str, float]:
    prompts = [_ids(tokenizer, prompt) for prompt in question["prompts"]]
    started = time.perf_counter()
    result = batch_generate(model, tokenizer, prompts, max_tokens=question["max_tokens"])
    return {"seconds": time.perf_counter() - started, "tokens": result.stats.generation_tokens}


def _first(model: Any, tokenizer: Any, question: dict[str, Any]) -> dict[str, float]:
    prompt = _ids(tokenizer, question["first"])
    started = time.perf_counter()
    next(iter(stream_generate(model, tokenizer, prompt, max_tokens=2)))
    return {"seconds": time.perf_counter() - started}


if __name__ == "__main__":
    main()
