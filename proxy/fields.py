"""A body's fields: which count, which change nothing, and the one sentence that refuses a wrong one.

A field is one of four kinds. *Supported* ones are the model's own. *Harmless* ones don't touch the answer's
text and are ignored. *Neutral* ones would change it, but not with the values listed for them. Any other name
is unknown. A field that would change the answer and isn't honoured is refused, never ignored.
"""

import difflib
from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from shared.errors import InvalidRequest
from shared.limits import PARAM_CHARS_MAX

FieldsT = TypeVar("FieldsT", bound="Fields")

_OURS: Final = "forebay"
_PREDICATES: Final[Mapping[str, str]] = {
    "missing": "is required",
    "string_type": "must be a string",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "literal_error": "must be {expected}",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "model_type": "must be an object",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} element(s)",
    "too_long": "must have at most {max_length} elements",
}


def problem(predicate: str, at: str = "") -> PydanticCustomError:
    """Return what a validator raises: `predicate` follows the field's name, `at` is a path inside it."""
    return PydanticCustomError(_OURS, "{predicate}", {"predicate": predicate, "at": at})


class Fields(BaseModel):
    """An object of a body. Types are strict: "5" and true are no numbers, 1.0 is no integer.

    `null` means absent for every field that isn't unknown.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    harmless: ClassVar[frozenset[str]] = frozenset()
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    names: ClassVar[frozenset[str]] = frozenset()  # of the supported ones, as clients write them

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        cls.names = frozenset(field.alias or name for name, field in cls.model_fields.items())

    @model_validator(mode="before")
    @classmethod
    def _keep_what_counts(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if cls._counts(name, value)}

    @classmethod
    def _counts(cls, name: str, value: Any) -> bool:
        if name in cls.names:
            return value is not None
        if name in cls.harmless:
            return False
        if name not in cls.neutral:
            raise problem(f"is no field known here{cls._nearest(name)}", name)
        if value is None or any(_same(value, neutral) for neutral in cls.neutral[name]):
            return False
        raise problem("isn't supported by this server; leave it out", name)

    @classmethod
    def _nearest(cls, name: str) -> str:
        """Return a hint at a typing error. Long names are not compared: the time would be the client's."""
        names = difflib.get_close_matches(name[:32], sorted(cls.names), n=1, cutoff=0.75)
        return f"; did you mean '{names[0]}'?" if names else ""


def _same(value: object, neutral: object) -> bool:
    """Tell whether two JSON values are equal; Python's False == 0 is no equality there."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def check(kind: type[FieldsT], given: Any, at: str = "") -> FieldsT:
    """Return the checked fields, or raise InvalidRequest for the first that is wrong; `at` is their place."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_input=False)[0], at) from error


def _refusal(first: ErrorDetails, place: str) -> InvalidRequest:
    context = first.get("ctx", {})
    parts = [place, *map(str, first["loc"]), str(context.get("at", ""))]
    path = ".".join(part for part in parts if part)[:PARAM_CHARS_MAX]
    if first["type"] == _OURS:
        predicate = str(context["predicate"])
    else:
        predicate = _PREDICATES.get(first["type"], "has a wrong value").format_map(context)
    end = "" if predicate.endswith("?") else "."
    return InvalidRequest(f"'{path}' {predicate}{end}", param=path)
