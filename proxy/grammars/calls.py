"""Calls of tools as terms of a grammar, in the words of the model's format."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from proxy.formats.format import Format
from proxy.grammars.compiler import Compiler
from proxy.grammars.shapes import ANY_OBJECT, json_terms, refuse, schema_problem, with_whitespace
from proxy.request import Endpoint, Tool, ToolUse
from shared.limits import CALLS_MAX

# Where a tool has its schema, and whether it is strict, in each dialect.
_FIELDS: Final[Mapping[Endpoint, str]] = {
    "chat": "function.parameters",
    "completions": "function.parameters",
    "responses": "parameters",
    "messages": "input_schema",
}


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that an answer may, or must, make."""

    format: Format
    use: ToolUse
    endpoint: Endpoint
    compiler: Compiler

    @property
    def are_asked(self) -> bool:
        return bool(self.use.tools) and self.use.choice in ("required", "named")

    @property
    def are_held(self) -> bool:
        """Whether calls that may be made, or not, have arguments that are promised to be as a schema says."""
        return self.use.choice == "auto" and any(tool.strict for tool in self.use.tools)

    @property
    def are_possible(self) -> bool:
        return bool(self.use.tools) and self.use.choice != "none" and self.format.call_rule is not None

    def terms(self) -> str:
        """Return the terms of all calls of an answer: at least one.

        InvalidRequest if arguments can't be held to a strict tool's schema. Those of any other tool are a
        JSON object; where calls must be made they are by its schema as well, if that is possible: the model
        is then not free to leave it.
        """
        if self.format.call_rule is None:
            return ""
        one = " | ".join(f"({self._call(index, tool)})" for index, tool in self._tools())
        before, after = map(self.format.lark, self.format.calls_around)
        more = ""
        if self.use.parallel and self.format.call_between is not None:
            more = f"({self.format.lark(self.format.call_between)} ({one})){{0,{CALLS_MAX - 1}}}"
        return f"{before} ({one}) {more} {after}"

    def begun(self) -> str:
        """Return the terms of a call that is only known to begin: the format's arguments follow no schema."""
        strict = next((index for index, tool in self._tools() if tool.strict), None)
        if strict is not None:
            refuse(_unheld(self.format), self._param(strict))
        if not self.format.calls_tools or (self.use.choice == "named" and len(self.use.tools) > 1):
            refuse(
                f"can't be '{self.use.choice}' with this model's format, '{self.format.name}'", "tool_choice"
            )
        return self.format.lark(self.format.call_begins)

    def _tools(self) -> list[tuple[int, Tool]]:
        """Return the tools that may be called, with their places in the request."""
        numbered = list(enumerate(self.use.tools))
        if self.use.choice != "named":
            return numbered
        named = [(index, tool) for index, tool in numbered if tool.name == self.use.name]
        if not named:
            refuse(f"names the tool '{self.use.name}', which isn't among 'tools'", "tool_choice")
        return named

    def _call(self, index: int, tool: Tool) -> str:
        if not tool.strict and not self.are_asked:
            return self._rule(tool, ANY_OBJECT)
        problem = _no_object(tool) or schema_problem(tool.parameters) or self._compiled(tool)
        if problem is None:
            return self._rule(tool, tool.parameters)
        if tool.strict and not tool.wished:
            refuse(problem, self._param(index))
        return self._rule(tool, ANY_OBJECT)

    def _compiled(self, tool: Tool) -> str | None:
        """Return what is wrong with a tool's schema, or with a call of it; a format has bounds of its own."""
        try:
            schema = json_terms({**ANY_OBJECT, **tool.parameters})
        except ValueError:
            return "has a number that JSON hasn't"
        problem = self.compiler.problem(f"start: {schema}")
        if problem is not None:
            return problem
        try:
            return self.compiler.problem(f"start: {self._rule(tool, tool.parameters)}")
        except ValueError as unheld:
            return str(unheld)

    def _rule(self, tool: Tool, schema: Mapping[str, Any]) -> str:
        assert self.format.call_rule is not None
        return self.format.call_rule(replace(tool, parameters=with_whitespace(schema)))

    def _param(self, index: int) -> str:
        return f"tools.{index}.{_FIELDS[self.endpoint]}"


def _no_object(tool: Tool) -> str | None:
    return (
        None
        if tool.parameters.get("type", "object") == "object"
        else "must be a schema with the 'type' 'object'"
    )


def _unheld(format_: Format) -> str:
    return (
        f"can't be held to: this model's format, '{format_.name}', has no JSON in its calls; "
        "leave out 'strict'"
    )
