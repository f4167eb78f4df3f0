"""Messages of a chat's body, and the same in the form that templates expect."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, PlainValidator, ValidationInfo, WithJsonSchema, model_validator

from proxy.dialects.parts import arguments_of, text_of
from proxy.fields import Fields, problem
from shared.limits import (
    CALLS_PER_MESSAGE_MAX,
    ITEM_ID_CHARS_MAX,
    REASONING_DETAILS_MAX,
    TOOL_NAME_CHARS_MAX,
)

_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
_OF_AN_ANSWER: Final[Mapping[str, str]] = {"text": "text", "refusal": "refusal"}
_OF_OTHERS: Final[Mapping[str, str]] = {"text": "text"}
_OF_ASSISTANTS: Final = (
    "tool_calls",
    "function_call",
    "refusal",
    "reasoning_content",
    "reasoning",
    "reasoning_details",
)
_HARMLESS_IN_PARTS: Final = frozenset({"cache_control", "prompt_cache_breakpoint"})
# Kinds of a thought's details, and the field that has each one's text. Nobody here reads what is encrypted.
_DETAILS: Final[Mapping[str, str]] = {
    "reasoning.text": "text",
    "reasoning.summary": "summary",
    "reasoning.encrypted": "data",
}
_HARMLESS_IN_DETAILS: Final = frozenset({"type", "id", "format", "index", "signature"})


def _role(value: Any) -> str:
    if not isinstance(value, str) or value not in _ROLES:
        raise problem(f"must be one of {', '.join(_ROLES)}")
    return value


def _content(value: Any, info: ValidationInfo) -> str:
    kinds = _OF_AN_ANSWER if info.data.get("role") == "assistant" else _OF_OTHERS
    return text_of(value, kinds, _HARMLESS_IN_PARTS)


def _details(value: Any) -> str:
    """Return the thought of an answer that has it in details, bit by bit: those of one index are one text."""
    if not isinstance(value, list):
        raise problem("must be a list")
    if len(value) > REASONING_DETAILS_MAX:
        raise problem(f"must have at most {REASONING_DETAILS_MAX} elements")
    texts: list[str] = []
    last: Any = None
    for place, detail in enumerate(value):
        text = _detail(detail, str(place))
        if not text:
            continue
        if texts and detail.get("index") != last:
            texts.append("\n")
        texts.append(text)
        last = detail.get("index")
    return "".join(texts)


def _detail(detail: Any, at: str) -> str:
    if not isinstance(detail, dict):
        raise problem("must be an object", at)
    kind = detail.get("type")
    if not isinstance(kind, str) or kind not in _DETAILS:
        raise problem(f"must be one of {', '.join(_DETAILS)}", f"{at}.type")
    field = _DETAILS[kind]
    text = detail.get(field)
    if not isinstance(text, str | None):
        raise problem("must be a string", f"{at}.{field}")
    if not isinstance(detail.get("index"), int | None):
        raise problem("must be an integer", f"{at}.index")
    for name in detail.keys() - _HARMLESS_IN_DETAILS - {field}:
        if detail[name] is not None:
            raise problem("is no field known here", f"{at}.{name}")
    return "" if text is None or kind == "reasoning.encrypted" else text


def _arguments(value: Any) -> dict[str, Any]:
    if not isinstance(value, str | dict):
        raise problem("must be a string")
    return arguments_of(value)


_PARTS: Final = {"type": "array", "items": {"type": "object", "required": ["type"]}, "minItems": 1}
Role = Annotated[str, PlainValidator(_role), WithJsonSchema({"type": "string", "enum": list(_ROLES)})]
Content = Annotated[str, PlainValidator(_content), WithJsonSchema({"anyOf": [{"type": "string"}, _PARTS]})]
Arguments = Annotated[dict[str, Any], PlainValidator(_arguments), WithJsonSchema({"type": "string"})]
Details = Annotated[
    str,
    PlainValidator(_details),
    WithJsonSchema(
        {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type"],
                "properties": {"type": {"type": "string", "enum": list(_DETAILS)}},
            },
            "maxItems": REASONING_DETAILS_MAX,
        }
    ),
]
CallId = Annotated[str, Field(min_length=1, max_length=ITEM_ID_CHARS_MAX)]


class CalledFunction(Fields):
    """A function that was called; the arguments are JSON, as the model wrote it."""

    name: str = Field(min_length=1, max_length=TOOL_NAME_CHARS_MAX)
    arguments: Arguments = Field({})


class ToolCall(Fields):
    """A call of an answer that was given before; clients that gathered it from a stream keep its `index`."""

    harmless: ClassVar[frozenset[str]] = frozenset({"index"})

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Fields):
    """One message; a person's `name` is accepted and ignored, since chat templates have no place for it.

    An answer may be sent back with all that it had.
    """

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {"annotations": ([],), "audio": ()}

    role: Role
    content: Content | None = None
    name: str = Field("", max_length=TOOL_NAME_CHARS_MAX)
    refusal: str = ""
    reasoning_content: str = ""
    reasoning: str = ""
    reasoning_details: Details = ""
    tool_calls: Annotated[list[ToolCall], Field(max_length=CALLS_PER_MESSAGE_MAX)] = Field([])
    tool_call_id: CallId | None = None
    function_call: CalledFunction | None = None

    @property
    def says_all(self) -> bool:
        """Whether it has what a message needs to mean something."""
        calls = bool(self.tool_calls) or self.function_call is not None
        return self.content is not None or (self.role == "assistant" and (calls or bool(self.refusal)))

    @model_validator(mode="after")
    def _what_its_role_has(self) -> Self:
        if not self.says_all:
            raise problem("is required", "content")
        if self.role == "tool" and self.tool_call_id is None:
            raise problem("is required", "tool_call_id")
        if self.role == "function" and not self.name:
            raise problem("is required", "name")
        if self.role != "tool" and self.tool_call_id is not None:
            raise problem("belongs to messages of the role 'tool'", "tool_call_id")
        for field in _OF_ASSISTANTS:
            if getattr(self, field) and self.role != "assistant":
                raise problem("belongs to messages of the role 'assistant'", field)
        if self.tool_calls and self.function_call is not None:
            raise problem("can't be given together with 'tool_calls'", "function_call")
        return self


class TemplateMessages:
    """Turns a conversation's messages into a template's, one after the other.

    It keeps the functions of the calls seen so far: a call's result is told which function it is of.
    """

    def __init__(self) -> None:
        self._functions: dict[str, str] = {}
        self._older_id = ""  # of the last call in the older way, which has none

    def of(self, messages: Sequence[Message]) -> tuple[dict[str, Any], ...]:
        return tuple(self._one(message, index) for index, message in enumerate(messages))

    def _one(self, message: Message, index: int) -> dict[str, Any]:
        match message.role:
            case "assistant":
                return self._answer(message, index)
            case "tool":
                return self._result(message, message.tool_call_id or "")
            case "function":
                return self._result(message, self._older_id)
            case "developer":
                return {"role": "system", "content": message.content or ""}
        return {"role": message.role, "content": message.content or ""}

    def _answer(self, message: Message, index: int) -> dict[str, Any]:
        """Return an answer given before. Templates add texts to its content, so that is never none."""
        calls = [(call.id, call.function) for call in message.tool_calls]
        if message.function_call is not None:
            self._older_id = f"call_{index}"
            calls = [(self._older_id, message.function_call)]
        self._functions |= {id_: function.name for id_, function in calls}
        answer: dict[str, Any] = {"role": "assistant", "content": message.content or message.refusal}
        thought = message.reasoning_content or message.reasoning or message.reasoning_details
        if thought:
            answer["reasoning_content"] = thought
        if calls:
            answer["tool_calls"] = [_template_call(id_, function) for id_, function in calls]
        return answer

    def _result(self, message: Message, call_id: str) -> dict[str, Any]:
        name = message.name or self._functions.get(call_id, "")
        return {"role": "tool", "content": message.content or "", "tool_call_id": call_id, "name": name}


def _template_call(id_: str, function: CalledFunction) -> dict[str, Any]:
    return {
        "id": id_,
        "type": "function",
        "function": {"name": function.name, "arguments": function.arguments},
    }
