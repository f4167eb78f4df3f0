"""Tools of /v1/responses: which of a client's a model here can call, and what their calls are called there.

A model calls functions. Functions in namespaces get longer names; a custom tool, which takes free text, is a
function with that text for its only argument, and the grammar of such a text is shown to the model in words.
The local shell is a function that the client runs a command for.
Tools that OpenAI's servers run don't exist here. Two that models may do without, and that agents always offer
beside their own, are left out where others stand beside them; any other tool is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import FailFast, Field, PlainValidator, WithJsonSchema

from proxy.dialects.parts import Choice, Description, FunctionFields, Name, tool_use
from proxy.dialects.responses_items import function_name
from proxy.dialects.responses_shell import LOCAL_SHELL, SHELL_DESCRIPTION, SHELL_SCHEMA
from proxy.fields import Fields, problem
from proxy.grammars.shapes import schema_problem
from proxy.request import Tool, ToolChoice, ToolUse
from shared.limits import SCHEMA_CHARS_MAX, TOOL_NAME_CHARS_MAX, TOOLS_MAX

_EXTRAS: Final = frozenset({"type", "defer_loading", "allowed_callers", "output_schema"})
# By how their types begin: they come with dates and versions behind.
_LEFT_OUT: Final = ("web_search", "image_generation", "tool_search")
_OPTIONS: Final[Mapping[str, ToolChoice]] = {"none": "none", "auto": "auto", "required": "required"}
_CHOICES: Final = ("function", "custom", LOCAL_SHELL, "allowed_tools")
_TEXT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Called:
    """What a client calls one of its tools, and of which kind it is: "custom" ones take text."""

    name: str
    namespace: str = ""
    kind: Literal["function", "custom", "local_shell"] = "function"


@dataclass(frozen=True, slots=True)
class Offered:
    """The tools in force: `names` by what the model calls them; `shown` and `choice` as the body has them.

    Those in `unsaid` are strict because nothing was said of it, so they needn't be.
    """

    use: ToolUse
    names: Mapping[str, Called]
    unsaid: frozenset[str]
    shown: tuple[dict[str, Any], ...]
    choice: Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One of the client's tools: what the model may call for it, and how it is shown again."""

    functions: tuple[tuple[Tool, Called], ...]
    shown: dict[str, Any]
    unsaid: frozenset[str] = frozenset()


class _Function(FunctionFields):
    """A function. Unlike in chat, its arguments are as its schema says unless the client wants otherwise.

    Where the client says nothing, a schema that arguments can't be held to is one that they needn't be.
    """

    harmless: ClassVar[frozenset[str]] = _EXTRAS

    strict: bool = True

    def entry(self, namespace: str = "") -> Entry:
        called = Called(self.name, namespace)
        name = function_name(namespace, self.name)
        said = "strict" in self.model_fields_set
        strict = self.strict and (said or schema_problem(self.parameters) is None)
        tool = Tool(name, self.description, self.parameters, strict=strict, wished=not said)
        shown = {
            "type": "function",
            "name": self.name,
            "description": self.description or None,
            "parameters": self.parameters,
            "strict": strict,
        }
        return Entry(((tool, called),), shown, frozenset() if said else frozenset({name}))


class _Format(Fields):
    type: Literal["text", "grammar"] = "text"
    syntax: Literal["lark", "regex"] = "lark"
    definition: str = ""

    @property
    def shown(self) -> dict[str, str]:
        return self.model_dump() if self.type == "grammar" else {"type": "text"}

    @property
    def words(self) -> str:
        if self.type == "text":
            return ""
        if len(self.definition) > SCHEMA_CHARS_MAX:
            raise problem(f"must have at most {SCHEMA_CHARS_MAX} characters", "format.definition")
        kind = "Lark grammar" if self.syntax == "lark" else "regular expression"
        return f"\n\n`input` must match this {kind}:\n{self.definition}"


class _Custom(Fields):
    harmless: ClassVar[frozenset[str]] = _EXTRAS

    name: Name
    description: Description = ""
    format: _Format = _Format()

    def entry(self, namespace: str = "") -> Entry:
        called = Called(self.name, namespace, "custom")
        words = self.description + self.format.words
        tool = Tool(function_name(namespace, self.name), words, _TEXT_SCHEMA, strict=True)
        shown = {
            "type": "custom",
            "name": self.name,
            "description": self.description or None,
            "format": self.format.shown,
        }
        return Entry(((tool, called),), shown, frozenset({tool.name}))


class _LocalShell(Fields):
    """It says nothing about itself: what the model is told of it is ours."""

    harmless: ClassVar[frozenset[str]] = _EXTRAS

    def entry(self) -> Entry:
        tool = Tool(LOCAL_SHELL, SHELL_DESCRIPTION, SHELL_SCHEMA, strict=True, wished=True)
        called = Called(LOCAL_SHELL, kind="local_shell")
        return Entry(((tool, called),), {"type": LOCAL_SHELL}, frozenset({LOCAL_SHELL}))


def _callable(value: Any) -> _Function | _Custom:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "function":
        return _Function.model_validate(value)
    if kind == "custom":
        return _Custom.model_validate(value)
    raise problem("must be 'function' or 'custom'", "type")


_Callable = Annotated[
    _Function | _Custom, PlainValidator(_callable, json_schema_input_type=_Function | _Custom)
]


class _Namespace(Fields):
    harmless: ClassVar[frozenset[str]] = frozenset({"type"})

    name: Name
    description: Description = ""
    tools: Annotated[list[_Callable], Field(max_length=TOOLS_MAX), FailFast()]

    def entry(self) -> Entry:
        entries = [tool.entry(self.name) for tool in self.tools]
        functions = tuple(function for entry in entries for function in entry.functions)
        shown = {
            "type": "namespace",
            "name": self.name,
            "description": self.description,
            "tools": [entry.shown for entry in entries],
        }
        return Entry(functions, shown, frozenset().union(*(entry.unsaid for entry in entries)))


def checked_tool(value: Any) -> Entry | None:
    """Return one element of `tools`, None if it is left out. Raises a field's problem."""
    if not isinstance(value, dict):
        raise problem("must be an object")
    kind = value.get("type")
    if not isinstance(kind, str):
        raise problem("must be a string", "type")
    if kind.startswith(_LEFT_OUT):
        return None
    if kind == "namespace":
        return _Namespace.model_validate(value).entry()
    if kind in ("function", "custom"):
        return _callable(value).entry()
    if kind == LOCAL_SHELL:
        return _LocalShell.model_validate(value).entry()
    raise problem(
        f"is '{kind[:TOOL_NAME_CHARS_MAX]}': this server runs no tools; offer it as a function", "type"
    )


AnyTool = Annotated[
    Any,
    PlainValidator(checked_tool),
    WithJsonSchema({"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}}),
]
CHOICE_SCHEMA: Final = {
    "anyOf": [
        {"type": "string", "enum": list(_OPTIONS)},
        {"type": "object", "required": ["type"], "properties": {"type": {"enum": list(_CHOICES)}}},
    ]
}


def offered(entries: list[Entry | None], choice: Any, *, parallel: bool) -> Offered:
    """Return the tools in force. Raises a field's problem: see `tool_use`, or if nothing is left of them."""
    kept = [entry for entry in entries if entry is not None]
    if entries and not kept:
        raise problem("has no tool that this server can offer: it runs none itself", "tools")
    functions = [function for entry in kept for function in entry.functions]
    names = {tool.name: called for tool, called in functions}
    use = tool_use(
        [tool for tool, _ in functions], _choice(choice, names), parallel=parallel, choice_at="tool_choice"
    )
    unsaid: frozenset[str] = frozenset().union(*(entry.unsaid for entry in kept))
    shown = tuple(entry.shown for entry in kept)
    return Offered(use, names, unsaid, shown, _shown_choice(choice))


def loosened(shown: Mapping[str, Any], unsaid: frozenset[str], namespace: str = "") -> dict[str, Any]:
    """Return a tool as it is shown, not strict any more where nothing was said of it."""
    if shown["type"] == "namespace":
        return {**shown, "tools": [loosened(tool, unsaid, shown["name"]) for tool in shown["tools"]]}
    loose = shown["type"] == "function" and function_name(namespace, shown["name"]) in unsaid
    return {**shown, "strict": False} if loose else {**shown}


def _shown_choice(choice: Any) -> Any:
    """Return a choice as a Response repeats it, which has no form for the local shell but a function's."""
    if choice == {"type": LOCAL_SHELL}:
        return {"type": "function", "name": LOCAL_SHELL}
    return "auto" if choice is None else choice


def _choice(value: Any, names: Mapping[str, Called]) -> Choice:
    if value is None:
        return Choice()
    if isinstance(value, str) and value in _OPTIONS:
        return Choice(_OPTIONS[value])
    if isinstance(value, dict):
        kind = value.get("type")
        if kind in ("function", "custom") and value.keys() <= {"type", "name", "namespace"}:
            return Choice("named", _chosen(value, names, ""))
        if value == {"type": LOCAL_SHELL}:
            return Choice("named", _chosen(value, names, ""))
        if kind == "allowed_tools" and value.keys() <= {"type", "mode", "tools"}:
            return _allowed(value, names)
    raise problem(f"must be none, auto, required, or an object of type {', '.join(_CHOICES)}", "tool_choice")


def _allowed(value: Mapping[str, Any], names: Mapping[str, Called]) -> Choice:
    mode, tools = value.get("mode", "auto"), value.get("tools")
    if mode not in ("auto", "required"):
        raise problem("must be auto or required", "tool_choice.mode")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise problem("must be a list of objects", "tool_choice.tools")
    allowed = frozenset(
        _chosen(tool, names, f".tools.{index}")
        for index, tool in enumerate(tools)
        if not str(tool.get("type")).startswith(_LEFT_OUT)
    )
    return Choice(_OPTIONS[mode], allowed=allowed)


def _chosen(value: Mapping[str, Any], names: Mapping[str, Called], at: str) -> str:
    """Return what the model calls the tool that a choice names."""
    if value == {"type": LOCAL_SHELL}:
        return _chosen({"name": LOCAL_SHELL}, names, at)
    name, namespace = value.get("name"), value.get("namespace")
    if not isinstance(name, str):
        raise problem("must be a string", f"tool_choice{at}.name")
    for function, called in names.items():
        if called.name == name and namespace in (None, called.namespace):
            return function
    raise problem(
        f"names '{name[:TOOL_NAME_CHARS_MAX]}', which is none of the tools", f"tool_choice{at}.name"
    )
