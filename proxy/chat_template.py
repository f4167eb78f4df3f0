"""Messages to one text, by the Jinja template that a model's folder carries, in a sandbox.

Templates are written against Hugging Face's renderer, so what they expect of it is here: whitespace control,
loop controls, `raise_exception`, `strftime_now`, a `tojson` that doesn't escape for HTML, and the
`{% generation %}` mark.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import InvalidRequest, ModelError

_REASON_CHARS_MAX: Final = 300
# What Python raises when a template does to a message what its content doesn't allow.
_TEMPLATE_FAULTS: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """A compiled template with the model's special words (`bos_token` and so on) and a clock."""

    def __init__(self, source: str, words: Mapping[str, str], now: Callable[[], datetime]) -> None:
        environment = _environment(now)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as problem:
            raise ModelError(f"the chat template can't be compiled: {problem}") from problem
        self._words = dict(words)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the prompt up to where the assistant begins. InvalidRequest if the template refuses."""
        try:
            return self._template.render(
                **self._words,
                messages=[dict(message) for message in messages],
                tools=None,
                add_generation_prompt=True,
            )
        except _TEMPLATE_FAULTS as problem:
            reason = str(problem)[:_REASON_CHARS_MAX].rstrip(".")
            message = f"The model's chat template can't render these messages: {reason}."
            raise InvalidRequest(message, param="messages") from problem


class _GenerationMark(Extension):
    """`{% generation %}…{% endgeneration %}` marks an assistant's words for training; nothing to us."""

    tags = {"generation"}  # noqa: RUF012 (the base class's attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationMark],
        autoescape=False,  # the text goes to a tokenizer, not to a browser
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
