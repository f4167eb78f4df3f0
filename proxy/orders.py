"""An operator's orders as they come in: small JSON bodies, checked field by field."""

from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

_TIMEOUT_S: Final = 600.0
_TIMEOUT_S_MAX: Final = 86_400.0
_FINGERPRINTS_MAX: Final = 1000

Fingerprint = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class BadOrder(Exception):
    """A body that is no such order; the message names the field."""


class _Order(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class RestartOrder(_Order):
    """Replace the worker; with `drain` only once nothing runs. `timeout_s` bounds the whole of it."""

    drain: bool = False
    timeout_s: float = Field(_TIMEOUT_S, gt=0, le=_TIMEOUT_S_MAX)


class DrainOrder(_Order):
    """Take nothing new, or open again."""

    on: bool


class StopOrder(_Order):
    """End; at once, or after what runs."""

    at_once: bool = False


class ClearOrder(_Order):
    """Forget these quarantined requests; None means all of them."""

    fingerprints: tuple[Fingerprint, ...] | None = Field(max_length=_FINGERPRINTS_MAX)


_Kind = TypeVar("_Kind", bound=_Order)


def read_order(kind: type[_Kind], body: bytes) -> _Kind:
    """Return the order in a body; none at all stands for an empty one. Raises BadOrder."""
    try:
        return kind.model_validate_json(body or b"{}")
    except ValidationError as problem:
        words = (f"{_place(error['loc'])}{error['msg']}" for error in problem.errors())
        raise BadOrder("; ".join(words)) from problem


def _place(parts: tuple[int | str, ...]) -> str:
    return f"{'.'.join(str(part) for part in parts)}: " if parts else ""
