"""The description of the public URLs, OpenAPI 3.1, made from the classes that parse the bodies."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema

from proxy.authenticate import HEADER_CHARS_MAX
from proxy.fields import Fields
from proxy.idempotency import HEADER as IDEMPOTENCY_HEADER
from proxy.lane_choice import LANE_HEADER
from proxy.openapi_answers import ANSWERS
from proxy.openapi_table import OPERATIONS, Operation
from proxy.session import HEADER as SESSION_HEADER

_VERSION: Final = "3.1.0"
_SCHEMAS: Final = "#/components/schemas/"
_HARMLESS: Final = "Accepted and ignored: it changes no token of an answer."
_NEUTRAL: Final = "Not supported; accepted with these values, which ask for nothing."
_MEANINGS: Final[Mapping[int, str]] = {
    400: "Something in the request is wrong or can't be done; `param` names it.",
    401: "No API key, or none that is known here.",
    403: "The key may not do this.",
    404: "No such model, or no such URL.",
    408: "The body took too long to come.",
    413: "The body is too large.",
    415: "The body isn't JSON.",
    417: "The only expectation that can be met is 100-continue.",
    422: "This request ended the worker before, or its idempotency key belongs to another one.",
    429: "The key has used up its quota for now.",
    500: "The server failed; its log says why.",
    503: "Not now: Retry-After says when.",
    529: "Not now: Retry-After says when.",
}
_COME_BACK: Final = (429, 503, 529)
_WISHES: Final[Mapping[str, str]] = {
    LANE_HEADER: "The lane to be served in.",
    "x-slo-ttft-ms": "The longest wait for a start, in milliseconds.",
    SESSION_HEADER: "What requests of one conversation have in common.",
    IDEMPOTENCY_HEADER: "Requests with the same one are answered by one run.",
}
_TOLD: Final[Mapping[str, str]] = {
    "x-request-id": "The request's id: the client's own if it is short and plain.",
    "x-forebay-queue-ms": "How long the request waited.",
    "x-forebay-attempts": "How often it was interrupted and went on.",
}


class _Generator(GenerateJsonSchema):
    """As pydantic's, with what our Fields do besides: null means absent, and some names mean nothing."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        made = super().model_schema(schema)
        kind = schema["cls"]
        if not issubclass(kind, Fields):
            return made
        required = made.get("required", [])
        properties = {
            name: each if name in required else _or_null(each)
            for name, each in made.get("properties", {}).items()
        }
        properties |= {name: {"description": _HARMLESS} for name in sorted(kind.harmless - properties.keys())}
        for name in sorted(kind.neutral.keys() - properties.keys()):
            properties[name] = {"description": _NEUTRAL, "enum": [*kind.neutral[name], None]}
        return {**made, "properties": properties}

    def handle_invalid_for_json_schema(self, schema: CoreSchema, error_info: str) -> JsonSchemaValue:  # noqa: ARG002 (the base class's signature)
        """Return a schema of anything: a field whose own function checks it says no more by itself."""
        return {}

    def encode_default(self, dft: Any) -> Any:
        """Leave a default out that is no JSON."""
        return super().encode_default(dft) if isinstance(dft, str | int | float | None) else None


def _or_null(schema: JsonSchemaValue) -> JsonSchemaValue:
    if not schema or schema.get("type") == "null" or {"type": "null"} in schema.get("anyOf", []):
        return schema
    outer: JsonSchemaValue = {
        key: schema[key] for key in ("default", "title", "description") if key in schema
    }
    inner = {key: value for key, value in schema.items() if key not in outer}
    return {**outer, "anyOf": [inner, {"type": "null"}]} if inner else schema


def schemas_of(name: str, fields: type[Fields]) -> dict[str, Any]:
    """Return a class's schema under this name, and those of the classes inside it under longer ones."""
    made = fields.model_json_schema(
        ref_template=f"{_SCHEMAS}{name}.{{model}}", schema_generator=_Generator, mode="validation"
    )
    inner = made.pop("$defs", {})
    found = {name: made, **{f"{name}.{each}": schema for each, schema in inner.items()}}
    # A leading underscore is Python's affair.
    text = json.dumps(found, ensure_ascii=False).replace(f"{name}._", f"{name}.")
    return dict(json.loads(text))


def description() -> dict[str, Any]:
    """Return the whole description."""
    schemas: dict[str, Any] = dict(ANSWERS)
    paths: dict[str, dict[str, Any]] = {}
    for each in OPERATIONS:
        for name, fields in _forms(each).items():
            schemas |= schemas_of(name, fields)
        paths.setdefault(each.path, {})[each.method] = _operation(each)
    return {
        "openapi": _VERSION,
        "info": {
            "title": "Forebay",
            "version": "1",
            "description": "One model, served to a team. OpenAI's and Anthropic's clients work unchanged.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


@cache
def description_text() -> str:
    """Return the description as JSON."""
    return json.dumps(description(), ensure_ascii=False, separators=(",", ":"))


def _forms(operation: Operation) -> dict[str, type[Fields]]:
    """Return the names of what its body may be."""
    forms = {"Request": operation.fields, "ChatRequest": operation.also}
    return {f"{operation.name}{end}": fields for end, fields in forms.items() if fields is not None}


def _operation(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {operation.media: {"schema": _reference(operation.answer)}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    error = _reference(f"{operation.vendor.capitalize()}Error")
    responses = {"200": {"description": "Done.", "content": content, "headers": _headers(_TOLD)}}
    for status in sorted(operation.statuses):
        responses[str(status)] = {
            "description": _MEANINGS[status],
            "content": {"application/json": {"schema": error}},
            "headers": _headers({"Retry-After": "Seconds."} if status in _COME_BACK else {}),
        }
    if operation.path == "/health/ready":
        answer = {"application/json": {"schema": _reference(operation.answer)}}
        responses["503"] = {"description": "Not now.", "content": answer, "headers": {}}
    security: list[dict[str, list[str]]] = [] if operation.is_open else [{"bearer": []}, {"key": []}, {}]
    return {
        "operationId": operation.name,
        "summary": operation.summary,
        "security": security,
        "parameters": _parameters(operation),
        **_body(operation),
        "responses": responses,
    }


def _body(operation: Operation) -> dict[str, Any]:
    forms = [_reference(name) for name in _forms(operation)]
    if not forms:
        return {}
    schema = forms[0] if len(forms) == 1 else {"anyOf": forms}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if "{id}" in operation.path:
        found.append({"name": "id", "in": "path", "required": True, "schema": {"type": "string"}})
    if operation.generates:
        text = {"type": "string", "maxLength": HEADER_CHARS_MAX}
        found += [
            {"name": name, "in": "header", "description": meaning, "required": False, "schema": text}
            for name, meaning in _WISHES.items()
        ]
    return found


def _headers(named: Mapping[str, str]) -> dict[str, Any]:
    return {name: {"description": meaning, "schema": {"type": "string"}} for name, meaning in named.items()}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"{_SCHEMAS}{name}"}
