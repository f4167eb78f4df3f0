"""The form that an answer is to have, in the ways that OpenAI's clients and vLLM's ask for it."""

import json
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from proxy.dialects.parts import JsonSchemaFields, schema_text
from proxy.fields import Fields, problem
from proxy.json_body import read_object
from proxy.request import Shape
from shared.errors import InvalidRequest
from shared.limits import CHOICE_CHARS_MAX, SCHEMA_CHARS_MAX, SHAPE_CHOICES_MAX

_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _schema_source(value: Any) -> str:
    """Return the JSON of a schema that comes as an object or as its JSON."""
    if isinstance(value, str):
        try:
            value = read_object(value.encode())
        except InvalidRequest as refusal:
            raise problem("must be a JSON schema, as an object or as its JSON") from refusal
    if not isinstance(value, dict):
        raise problem("must be a JSON schema, as an object or as its JSON")
    source = schema_text(value)
    if len(source) > SCHEMA_CHARS_MAX:
        raise problem(f"must have at most {SCHEMA_CHARS_MAX} characters as JSON")
    return source


def _choice_source(value: Any) -> str:
    """Return the allowed texts as a JSON list."""
    if not isinstance(value, list) or not 1 <= len(value) <= SHAPE_CHOICES_MAX:
        raise problem(f"must be a list of 1 to {SHAPE_CHOICES_MAX} strings")
    if not all(isinstance(text, str) and 1 <= len(text) <= CHOICE_CHARS_MAX for text in value):
        raise problem(f"must hold strings of 1 to {CHOICE_CHARS_MAX} characters")
    return _encode(list(dict.fromkeys(value)))


_SCHEMA: Final = {"anyOf": [{"type": "object"}, {"type": "string"}]}
_TEXTS: Final = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": CHOICE_CHARS_MAX},
    "minItems": 1,
    "maxItems": SHAPE_CHOICES_MAX,
}
SchemaSource = Annotated[str, PlainValidator(_schema_source), WithJsonSchema(_SCHEMA)]
ChoiceSource = Annotated[str, PlainValidator(_choice_source), WithJsonSchema(_TEXTS)]
GrammarSource = Annotated[str, Field(min_length=1, max_length=SCHEMA_CHARS_MAX)]


class ResponseFormat(Fields):
    """OpenAI's own way. Any JSON object may be asked for without the word JSON in the messages."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFields | None = None

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise problem("is required", "json_schema")
        if self.type != "json_schema" and self.json_schema is not None:
            raise problem(f"is not allowed with the type '{self.type}'", "json_schema")
        return self

    @property
    def shape(self) -> Shape | None:
        if self.json_schema is not None:
            return self.json_schema.shape("response_format.json_schema.schema")
        return Shape("json_object", "", "response_format") if self.type == "json_object" else None


class StructuredOutputs(Fields):
    """vLLM's newer way: an object with one of these."""

    # Named otherwise here: `json` is pydantic's own.
    json_: SchemaSource | None = Field(None, alias="json")
    json_object: bool = False
    regex: GrammarSource | None = None
    choice: ChoiceSource | None = None
    grammar: GrammarSource | None = None

    @property
    def shapes(self) -> list[Shape]:
        at = "structured_outputs"
        found = [
            Shape("json_schema", self.json_, f"{at}.json") if self.json_ is not None else None,
            Shape("json_object", "", f"{at}.json_object") if self.json_object else None,
            Shape("regex", self.regex, f"{at}.regex") if self.regex is not None else None,
            Shape("choice", self.choice, f"{at}.choice") if self.choice is not None else None,
            Shape("lark", self.grammar, f"{at}.grammar") if self.grammar is not None else None,
        ]
        return [shape for shape in found if shape is not None]


class ShapeFields(Fields):
    """All fields that say an answer's form; one of them may."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaSource | None = None
    guided_regex: GrammarSource | None = None
    guided_choice: ChoiceSource | None = None
    guided_grammar: GrammarSource | None = Field(None, description="in Lark's language")

    @property
    def shape(self) -> Shape | None:
        return next(iter(self._shapes), None)

    @property
    def _shapes(self) -> list[Shape]:
        format_ = self.response_format
        found = [
            format_.shape if format_ is not None else None,
            *(self.structured_outputs.shapes if self.structured_outputs is not None else ()),
            Shape("json_schema", self.guided_json, "guided_json") if self.guided_json is not None else None,
            Shape("regex", self.guided_regex, "guided_regex") if self.guided_regex is not None else None,
            Shape("choice", self.guided_choice, "guided_choice") if self.guided_choice is not None else None,
            Shape("lark", self.guided_grammar, "guided_grammar") if self.guided_grammar is not None else None,
        ]
        return [shape for shape in found if shape is not None]

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        shapes = self._shapes
        if len(shapes) > 1:
            raise problem(f"can't be had together with '{shapes[0].param}'", shapes[1].param)
        return self
