"""What requests of several dialects are made of: texts in parts, tools, schemas, calls that were made before.

The types here are a body's fields: what they refuse is named by where it stands.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from proxy.fields import Fields, problem
from proxy.json_body import read_object
from proxy.request import NO_TOOLS, Shape, Tool, ToolChoice, ToolUse
from shared.errors import InvalidRequest
from shared.limits import DESCRIPTION_CHARS_MAX, SCHEMA_CHARS_MAX, TOOL_NAME_CHARS_MAX, TOOLS_MAX

# Kinds of a text's parts, and the field that has each one's text.
TEXT_PARTS: Final[Mapping[str, str]] = {"text": "text"}
# How hard a model is to think. "none" asks for no thoughts at all.
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
# How much is to be said: a hint, for models that were taught it.
Verbosity = Literal["low", "medium", "high"]

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def text_of(value: Any, kinds: Mapping[str, str] = TEXT_PARTS, harmless: frozenset[str] = frozenset()) -> str:
    """Return the text of a content: a string, or a list of parts, which are put together as they are.

    `kinds` are the types of parts that are read, each with the name of its text; `harmless` are fields of a
    part that are ignored. Raises a field's problem, with the path inside the content.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise problem("must be a string or a list of text parts that isn't empty")
    return "".join(part_text(part, str(index), kinds, harmless) for index, part in enumerate(value))


def part_text(
    part: Any, at: str, kinds: Mapping[str, str] = TEXT_PARTS, harmless: frozenset[str] = frozenset()
) -> str:
    """Return the text of one part, which stands at this path."""
    if not isinstance(part, dict):
        raise problem("must be an object", at)
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        read = " or ".join(f"'{each}'" for each in kinds)
        raise problem(f"must be {read}: this model reads text only", f"{at}.type")
    field = kinds[kind]
    if not isinstance(part.get(field), str):
        raise problem("must be a string", f"{at}.{field}")
    for name in part.keys() - harmless - {"type", field}:
        raise problem("is no field known here", f"{at}.{name}")
    return str(part[field])


def schema_text(schema: Mapping[str, Any]) -> str:
    """Return a schema as JSON, in the client's order."""
    return _encode(schema)


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise problem("must have letters of ASCII, digits, '_', '-' and '.' only")
    return name


def _checked_schema(schema: dict[str, Any]) -> dict[str, Any]:
    if len(schema_text(schema)) > SCHEMA_CHARS_MAX:
        raise problem(f"must have at most {SCHEMA_CHARS_MAX} characters as JSON")
    return schema


Name = Annotated[str, Field(min_length=1, max_length=TOOL_NAME_CHARS_MAX), AfterValidator(_checked_name)]
Description = Annotated[str, Field(max_length=DESCRIPTION_CHARS_MAX)]
Schema = Annotated[dict[str, Any], AfterValidator(_checked_schema)]


class FunctionFields(Fields):
    """A function of the client's, as OpenAI's dialects define one."""

    name: Name
    description: Description = ""
    parameters: Schema = Field({})
    strict: bool = False

    @property
    def tool(self) -> Tool:
        return Tool(self.name, self.description, self.parameters, strict=self.strict)


class JsonSchemaFields(Fields):
    """A JSON schema with a name, as OpenAI's dialects ask for an answer of such a form.

    An answer always is as the schema says, with `strict` or without.
    """

    name: Name
    description: Description = ""
    schema_: Schema = Field({}, alias="schema")
    strict: bool = False

    def shape(self, param: str) -> Shape:
        return Shape("json_schema", schema_text(self.schema_), param)


@dataclass(frozen=True, slots=True)
class Choice:
    """How tools are to be used: `name` is which where it is "named"; if given, only `allowed` ones may."""

    kind: ToolChoice = "auto"
    name: str = ""
    allowed: frozenset[str] | None = None


def tool_use(
    tools: Sequence[Tool], choice: Choice, *, parallel: bool, choice_at: str, tools_at: str = "tools"
) -> ToolUse:
    """Return how tools are used. Raises a field's problem: too many, two of one name, or a choice of none.

    `tools_at` and `choice_at` are the names of the client's fields.
    """
    _check_tools(tools, tools_at)
    known = {tool.name: tool for tool in tools}
    missing = sorted({choice.name, *(choice.allowed or ())} - known.keys() - {""})
    if missing:
        raise problem(f"names '{missing[0]}', which is none of the tools", choice_at)
    if choice.kind in ("required", "named") and not known:
        raise problem("asks for a call, and there are no tools", choice_at)
    if not known:
        return NO_TOOLS
    allowed = known.keys() if choice.allowed is None else choice.allowed
    usable = tuple(tool for tool in known.values() if tool.name in allowed)
    return ToolUse(usable, choice.kind, choice.name, parallel=parallel)


def _check_tools(tools: Sequence[Tool], at: str) -> None:
    if len(tools) > TOOLS_MAX:
        raise problem(f"must have at most {TOOLS_MAX} elements", at)
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in names:
            raise problem(f"has the name '{tool.name}', as another tool has", f"{at}.{index}")
        names.add(tool.name)


def arguments_of(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call that was made before, as the object that templates expect.

    A model may have written what is no JSON object, and the client sends it back as it was: then the text is
    the object's only value. No text at all is a call without arguments.
    """
    if not isinstance(given, str):
        return dict(given)
    if not given.strip():
        return {}
    try:
        return read_object(given.encode())
    except InvalidRequest:
        return {"arguments": given}


def shown_tools(use: ToolUse) -> tuple[Tool, ...]:
    """Return the tools that a model is told about: none where it may not call any."""
    return () if use.choice == "none" else use.tools
