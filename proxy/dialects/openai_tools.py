"""Tools in a chat's body: which there are and how they are to be used, in OpenAI's newer and older words."""

from typing import Annotated, Any, ClassVar, Final, Literal, Self, cast

from pydantic import FailFast, Field, PlainValidator, WithJsonSchema, model_validator

from proxy.dialects.parts import Choice, FunctionFields, tool_use
from proxy.fields import Fields, problem
from proxy.request import ToolChoice, ToolUse
from shared.limits import TOOLS_MAX

_MODES: Final = ("none", "auto", "required")
_AUTO: Final = Choice()


class ToolFields(Fields):
    """One tool. Other types have other fields, so the type is what is refused of them.

    OpenAI's `custom` tools, with any text for arguments, are none that open models know.
    """

    harmless: ClassVar[frozenset[str]] = frozenset({"cache_control"})

    type: Literal["function"]
    function: FunctionFields

    @model_validator(mode="before")
    @classmethod
    def _known_type(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("type") not in ("function", None):
            raise problem("must be 'function', the only kind of tool here", "type")
        return given


def _choice(value: Any) -> Choice:
    if isinstance(value, str):
        if value not in _MODES:
            raise problem("must be 'none', 'auto', 'required' or an object that names a function")
        return Choice(cast("ToolChoice", value))
    if not isinstance(value, dict):
        raise problem("must be a string or an object")
    match value.get("type"):
        case "function":
            _check_keys(value, "", "type", "function")
            return Choice("named", _name_in(value.get("function"), "function"))
        case "allowed_tools":
            _check_keys(value, "", "type", "allowed_tools")
            return _allowed(value.get("allowed_tools"))
    raise problem("must be 'function' or 'allowed_tools'", "type")


def _allowed(value: Any) -> Choice:
    at = "allowed_tools"
    if not isinstance(value, dict):
        raise problem("must be an object", at)
    _check_keys(value, at, "mode", "tools")
    mode, tools = value.get("mode"), value.get("tools")
    if mode not in ("auto", "required"):
        raise problem("must be 'auto' or 'required'", f"{at}.mode")
    if not isinstance(tools, list) or not 1 <= len(tools) <= TOOLS_MAX:
        raise problem(f"must be a list of 1 to {TOOLS_MAX} tools", f"{at}.tools")
    names = [_allowed_name(tool, f"{at}.tools.{index}") for index, tool in enumerate(tools)]
    return Choice(mode, allowed=frozenset(names))


def _allowed_name(tool: Any, at: str) -> str:
    if not isinstance(tool, dict):
        raise problem("must be an object", at)
    _check_keys(tool, at, "type", "function")
    if tool.get("type") != "function":
        raise problem("must be 'function'", f"{at}.type")
    return _name_in(tool.get("function"), f"{at}.function")


def _name_in(function: Any, at: str) -> str:
    if not isinstance(function, dict):
        raise problem("must be an object", at)
    _check_keys(function, at, "name")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise problem("must be a string that isn't empty", _inside(at, "name"))
    return name


def _check_keys(value: dict[str, Any], at: str, *known: str) -> None:
    for name in value.keys() - set(known):
        raise problem("is no field known here", _inside(at, name))


def _inside(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _older_choice(value: Any) -> Choice:
    """Read `function_call`, which came before `tool_choice`."""
    if value in ("none", "auto"):
        return Choice(value)
    if not isinstance(value, dict):
        raise problem("must be 'none', 'auto' or an object that names a function")
    return Choice("named", _name_in(value, ""))


_NAMED: Final = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
_OBJECT: Final = {"type": "object", "required": ["type"]}
ChoiceField = Annotated[
    Choice,
    PlainValidator(_choice),
    WithJsonSchema({"anyOf": [{"type": "string", "enum": list(_MODES)}, _OBJECT]}),
]
OlderChoiceField = Annotated[
    Choice,
    PlainValidator(_older_choice),
    WithJsonSchema({"anyOf": [{"type": "string", "enum": ["none", "auto"]}, _NAMED]}),
]


class ToolsFields(Fields):
    """Both ways to give tools; `functions` are answered by a `function_call`, and one only."""

    tools: Annotated[list[ToolFields], Field(max_length=TOOLS_MAX), FailFast()] = Field([])
    tool_choice: ChoiceField = _AUTO
    parallel_tool_calls: bool = True
    functions: Annotated[list[FunctionFields], Field(max_length=TOOLS_MAX), FailFast()] = Field([])
    function_call: OlderChoiceField = _AUTO

    @property
    def asks_older_way(self) -> bool:
        return bool(self.functions)

    @property
    def tool_use(self) -> ToolUse:
        if self.functions or self.function_call != _AUTO:
            tools = [function.tool for function in self.functions]
            return tool_use(
                tools, self.function_call, parallel=False, tools_at="functions", choice_at="function_call"
            )
        tools = [tool.function.tool for tool in self.tools]
        return tool_use(tools, self.tool_choice, parallel=self.parallel_tool_calls, choice_at="tool_choice")

    @model_validator(mode="after")
    def _tools_that_can_be_used(self) -> Self:
        if self.functions and self.tools:
            raise problem("can't be given together with 'tools'", "functions")
        if self.function_call != _AUTO and not self.functions and self.tools:
            raise problem("belongs to 'functions'; send 'tool_choice' with 'tools'", "function_call")
        _ = self.tool_use  # raises what is wrong with it
        return self
