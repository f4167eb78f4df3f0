"""Measure what a long body costs the proxy before it is queued: `python -m ops.parsing`."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from rich.console import Console
from rich.table import Table

from ops import demo
from ops.figures.processes import machine
from ops.load.progress import Progress
from ops.models import resolve
from ops.prefixes.prompts import Words
from proxy.dialects.table import DIALECTS
from proxy.request import ChatPrompt, Endpoint
from proxy.text_model import TextModel
from shared.config import Settings
from shared.errors import ModelError
from shared.model_folder import ModelFolder
from shared.prefix_chain import keys_of, root_key

_NOT_MEASURED: Final = 2
_MESSAGES: Final = 200  # of a conversation, in turns
_WIDTH: Final = 120

MadeT = TypeVar("MadeT")
Milliseconds = dict[str, list[float]]


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print."""
    arguments = _read(words)
    progress = Progress()
    home = Settings.load().home_folder
    try:
        folder = resolve(arguments.model, home) if arguments.model else demo.bring(home)
        text_model = TextModel.load(folder)
    except ModelError as problem:
        print(problem, file=sys.stderr)
        return _NOT_MEASURED
    talk = _talk(Words.of(folder.path), arguments.tokens)
    figures: dict[str, Any] = {"machine": machine(), "model": folder.name, "repeats": arguments.repeats}
    table = Table("endpoint", "KiB", "tokens", "JSON and fields", "template and tokenizer", "blocks' names")
    for endpoint, body in _bodies(folder, talk):
        with progress.phase(f"{endpoint}: {len(body) // 1024} KiB"):
            tokens, times = _measured(endpoint, body, text_model, arguments.repeats)
        cells = [f"{statistics.median(each):.1f} ms" for each in times.values()]
        table.add_row(endpoint, str(len(body) // 1024), str(tokens), *cells)
        figures[endpoint] = {"bytes": len(body), "tokens": tokens, "ms": times}
    screen = Console() if Console().is_terminal else Console(width=_WIDTH)
    screen.print(f"{figures['machine']}, {folder.name}, medians of {arguments.repeats}", highlight=False)
    screen.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2))
    return 0


def _read(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ops.parsing", description=__doc__)
    parser.add_argument("--model", help="a folder or a Hugging Face id; the demo model if unsaid")
    parser.add_argument("--tokens", type=int, default=100_000, help="about so many in each body")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write all measured values here")
    return parser.parse_args(words)


def _talk(words: Words, tokens: int) -> list[dict[str, str]]:
    """Return a conversation of so many tokens, about."""
    roles = ("user", "assistant")
    return [
        {"role": roles[number % 2], "content": words.text(tokens // _MESSAGES, "talk", number)}
        for number in range(_MESSAGES + 1)
    ]


def _bodies(folder: ModelFolder, talk: list[dict[str, str]]) -> Iterator[tuple[Endpoint, bytes]]:
    bodies: dict[Endpoint, dict[str, Any]] = {
        "chat": {"messages": talk},
        "responses": {"input": talk},
        "messages": {"messages": talk, "max_tokens": 100},
    }
    for endpoint, body in bodies.items():
        yield endpoint, json.dumps({"model": folder.name, **body}).encode()


def _measured(
    endpoint: Endpoint, body: bytes, text_model: TextModel, repeats: int
) -> tuple[int, Milliseconds]:
    """Return how many tokens a body has, and what each step took of it, in milliseconds a repeat."""
    times: Milliseconds = {"fields": [], "encoding": [], "names": []}
    tokens = 0
    for _ in range(repeats):
        parsed = _timed(times["fields"], partial(DIALECTS[endpoint].parse, body, lambda: 1))
        [prompt] = parsed.prompts
        assert isinstance(prompt, ChatPrompt)
        ids = _timed(times["encoding"], partial(text_model.encode_chat, prompt)).ids
        _timed(times["names"], partial(keys_of, root_key("model", 0, salt=""), ids))
        tokens = len(ids)
    return tokens, times


def _timed(times: list[float], made: Callable[[], MadeT]) -> MadeT:
    began_s = time.perf_counter()
    result = made()
    times.append(1000 * (time.perf_counter() - began_s))
    return result


if __name__ == "__main__":
    sys.exit(main())
