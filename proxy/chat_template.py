"""Messages to one text, by the Jinja template that a model's folder carries, in a sandbox with bounds.

Templates are written against Hugging Face's renderer, so what they expect of it is here: whitespace control,
loop controls, `raise_exception`, `strftime_now`, a `tojson` that doesn't escape for HTML, and the
`{% generation %}` mark.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from proxy import template_messages
from proxy.request import ChatPrompt, Thinking
from proxy.template_messages import Messages
from proxy.template_meter import Meter, TooCostlyError
from proxy.template_sandbox import MeteredEnvironment
from shared.errors import InvalidRequest, ModelError
from shared.limits import TEMPLATE_CHARS_MAX

_REASON_CHARS_MAX: Final = 300
_CLOCK_PATTERN_CHARS_MAX: Final = 256
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
# What can be wrong with a template's text, besides what Jinja says itself: Python compiles it in the end.
_COMPILE_FAULTS: Final = (jinja2.TemplateError, MemoryError, RecursionError, SyntaxError, ValueError)
# The server's own variables: a client that sets them would say something else than its request does.
_OWN: Final = frozenset({"messages", "tools", "add_generation_prompt"})
# Names under which families have the switch for thinking, and the one for how much.
_SWITCHES: Final = ("enable_thinking", "thinking")
_EFFORT: Final = "reasoning_effort"
_EFFORTS: Final = ("minimal", "low", "medium", "high", "xhigh", "max")
_EFFORTS_UNSAID: Final = ("low", "medium", "high")
# Marks the place after which the template ends a turn. No tokenizer's word, and no text of anybody's.
_CUT: Final = "\ue0f5\uf8ce\ue5a1"


class _UnfitError(Exception):
    """These messages can't be rendered, in a sentence for the client."""


class ChatTemplate:
    """A compiled template with the model's special words (`bos_token` and so on) and a clock.

    `knows_tools`, `thinking_switch` and `efforts` are what its source has variables for.
    """

    def __init__(
        self,
        source: str,
        words: Mapping[str, str],
        now: Callable[[], datetime],
        meter: Callable[[Any], Meter] = Meter,
    ) -> None:
        if len(source) > TEMPLATE_CHARS_MAX:
            raise ModelError(f"the chat template has more than {TEMPLATE_CHARS_MAX} characters")
        environment = _environment(now)
        try:
            tree = environment.parse(source)
            efforts = {each.value for each in tree.find_all(nodes.Const) if each.value in _EFFORTS}
            names = meta.find_undeclared_variables(tree)  # it leaves the tree's constants folded
            self._template = environment.from_string(source)
        except _COMPILE_FAULTS as problem:
            raise ModelError(f"the chat template can't be compiled: {problem}") from problem
        self._words = dict(words)
        self._meter = meter
        self._switches = tuple(name for name in _SWITCHES if name in names)
        self.knows_tools = "tools" in names
        self.efforts: tuple[str, ...] = ()
        if _EFFORT in names:
            self.efforts = tuple(each for each in _EFFORTS if each in efforts)
            self.efforts = self.efforts if len(efforts) > 1 else _EFFORTS_UNSAID
        self._wants_parts = self._reads_only_parts()

    @property
    def thinking_switch(self) -> bool:
        """Whether thinking can be switched on and off."""
        return bool(self._switches)

    def render(self, prompt: ChatPrompt) -> str:
        """Return the prompt up to where the assistant begins or goes on; InvalidRequest if it's refused."""
        self._check(prompt)
        try:
            messages = template_messages.normal(prompt.messages)
            if prompt.continues:
                messages = _marked(messages)
            text = self._first_rendered(messages, self._variables(prompt))
            return _cut(text) if prompt.continues else text
        except _UnfitError as problem:
            raise InvalidRequest(str(problem), param=prompt.param) from problem

    def _check(self, prompt: ChatPrompt) -> None:
        for name in prompt.options:
            if name in _OWN or name in self._words:
                raise InvalidRequest(
                    f"'chat_template_kwargs.{name}' is set by the server itself; leave it out.",
                    param="chat_template_kwargs",
                )
        if prompt.tools and not self.knows_tools:
            raise InvalidRequest(
                "This model's chat template doesn't know tools; leave them out, or send tool_choice 'none'.",
                param="tools",
            )

    def _variables(self, prompt: ChatPrompt) -> dict[str, Any]:
        """Return what the template may ask for, besides the messages."""
        tools = [template_messages.tool(each) for each in prompt.tools] or None
        thinking = _thinking(prompt.thinking, self._switches, bool(self.efforts))
        own = {"tools": tools, "add_generation_prompt": not prompt.continues}
        return {**self._words, **thinking, **prompt.options, **own}

    def _first_rendered(self, messages: Messages, variables: dict[str, Any]) -> str:
        """Render the messages in the first of the forms that the template takes."""
        first: Exception | None = None
        # A few templates go through the tools without asking whether there are any.
        without = [{**variables, "tools": []}] if variables["tools"] is None else []
        for given, form in itertools.product([variables, *without], self._forms(messages)):
            try:
                return self._rendered(form, given)
            except TooCostlyError as problem:
                raise _unfit(problem) from problem
            except _TEMPLATE_FAULTS as problem:
                first = first or problem
        assert first is not None, "there is at least one form"
        raise _unfit(first) from first

    def _forms(self, messages: Messages) -> Iterator[Messages]:
        """Yield the messages as most templates expect them, then as some that refuse these do."""
        forms = [messages]
        if template_messages.have_calls(messages):
            forms.append(template_messages.with_arguments_as_text(messages))
        if template_messages.begin_with_system(messages):
            forms += [template_messages.with_system_in_user(form) for form in forms]
        if template_messages.have_calls(messages):
            forms += [template_messages.with_short_ids(form) for form in forms]
        yield from map(template_messages.in_parts, forms) if self._wants_parts else forms

    def _rendered(self, messages: Messages, variables: dict[str, Any]) -> str:
        given = {**variables, "messages": messages}
        meter = self._meter(given)
        pieces: list[str] = []
        chars = 0
        with meter.running():
            for piece in self._template.generate(given):
                pieces.append(piece)
                chars += len(piece)
                if chars > meter.chars_max:
                    meter.allow(chars)
        return "".join(pieces)

    def _reads_only_parts(self) -> bool:
        """Whether a text is shown only where it comes as a list of parts, as for models that see."""
        probe = template_messages.normal(({"role": "user", "content": _CUT},))
        unsaid = self._variables(ChatPrompt(()))
        return not self._shows_mark(probe, unsaid) and self._shows_mark(
            template_messages.in_parts(probe), unsaid
        )

    def _shows_mark(self, messages: Messages, variables: dict[str, Any]) -> bool:
        try:
            return _CUT in self._rendered(messages, variables)
        except _TEMPLATE_FAULTS:
            return False


def _thinking(wished: Thinking, switches: tuple[str, ...], has_efforts: bool) -> dict[str, Any]:
    """Return the variables for a wish; one that the template has no variable for is a hint, and passes."""
    variables: dict[str, Any] = {}
    if wished.enabled is not None:
        variables |= dict.fromkeys(switches, wished.enabled)
    if wished.effort is not None and has_efforts:
        variables[_EFFORT] = wished.effort
    return variables


def _marked(messages: Messages) -> Messages:
    """Put the mark behind the last message's text."""
    if not messages or messages[-1]["role"] != "assistant" or "tool_calls" in messages[-1]:
        raise _UnfitError("Only a last message of the assistant's, without tool calls, can be continued.")
    return [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + _CUT}]


def _cut(text: str) -> str:
    if text.count(_CUT) != 1:
        raise _UnfitError("This model's chat template doesn't let the last message be continued.")
    return text[: text.index(_CUT)]


def _unfit(problem: Exception) -> _UnfitError:
    reason = str(problem)[:_REASON_CHARS_MAX].rstrip(".")
    return _UnfitError(f"The model's chat template can't render these messages: {reason}.")


class _GenerationMark(Extension):
    """`{% generation %}…{% endgeneration %}` marks an assistant's words for training; nothing to us."""

    tags = {"generation"}  # noqa: RUF012 (the base class's attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: Callable[[], datetime]) -> MeteredEnvironment:
    environment = MeteredEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationMark],
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern[:_CLOCK_PATTERN_CHARS_MAX])
    return environment


def _raise_exception(message: Any) -> NoReturn:
    raise jinja2.TemplateError(str(message))
