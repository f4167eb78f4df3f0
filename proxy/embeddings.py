"""The body of /v1/embeddings, checked: the models served here make text, and say so."""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from proxy.fields import Fields, check, problem
from proxy.json_body import read_object
from shared.errors import InvalidRequest
from shared.limits import VOCABULARY_MAX

_INPUTS_MAX: Final = 2048
_DIMENSIONS_MAX: Final = 1 << 16
_KINDS: Final = "must be a string, a list of strings, a list of token ids, or a list of such lists"


def _input(value: Any) -> Any:
    if isinstance(value, str):
        return _filled(value, "")
    if not isinstance(value, list):
        raise problem(_KINDS)
    kinds = set(map(type, _filled(value, "")))
    if kinds == {int}:
        return _ids(value, "")
    if len(value) > _INPUTS_MAX:
        raise problem(f"must have at most {_INPUTS_MAX} elements")
    if kinds not in ({str}, {list}):
        raise problem(_KINDS)
    for index, each in enumerate(value):
        _filled(each, str(index))
        if isinstance(each, list):
            _ids(each, str(index))
    return value


def _filled(value: str | list[Any], at: str) -> Any:
    if not value:
        raise problem("must not be empty", at)
    return value


def _ids(value: list[Any], at: str) -> list[Any]:
    if not all(type(each) is int and 0 <= each < VOCABULARY_MAX for each in value):
        raise problem(f"must hold token ids in [0, {VOCABULARY_MAX})", at)
    return value


class EmbeddingBody(Fields):
    """What is asked for; every field is checked."""

    harmless: ClassVar[frozenset[str]] = frozenset({"user"})

    model: str = Field(min_length=1)
    input: Annotated[
        Any,
        PlainValidator(_input),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1}]}),
    ]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, le=_DIMENSIONS_MAX)


def parse_embedding(body: bytes) -> EmbeddingBody:
    return check(EmbeddingBody, read_object(body))


def no_embeddings(model: str) -> InvalidRequest:
    return InvalidRequest(
        f"The model '{model}' makes text and no embeddings; use a server of a model that embeds.",
        param="model",
    )
