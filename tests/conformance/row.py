"""A row of the table: one behaviour, whose word it is, and a check that a gateway has it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tests.conformance.world import World

Check = Callable[[World], Awaitable[None]]
# Where behaviours are written down.
CHAT: Final = "OpenAI, API reference, chat completions: "
COMPLETIONS: Final = "OpenAI, API reference, completions: "
RESPONSES: Final = "OpenAI, API reference, responses: "
OPENAI: Final = "OpenAI, API reference: "
MESSAGES: Final = "Anthropic, API reference, messages: "
ANTHROPIC: Final = "Anthropic, API reference: "
VLLM: Final = "vLLM, OpenAI-compatible server: "
REPORTED: Final = "a fault that servers of this kind had: "
OURS: Final = "Forebay: "


@dataclass(frozen=True, slots=True)
class Row:
    """`known` says why a check fails, if it is known to: then it has to fail."""

    name: str
    endpoint: str
    source: str
    check: Check
    known: str = ""


class Section:
    """The rows of one endpoint, in the order in which they are written down."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.rows: list[Row] = []

    def row(self, source: str, known: str = "") -> Callable[[Check], Check]:
        """Make a function a row: its name, read as a sentence, is the row's."""

        def add(check: Check) -> Check:
            name = check.__name__.strip("_").replace("_", " ")
            self.rows.append(Row(name, self._endpoint, source, check, known))
            return check

        return add
