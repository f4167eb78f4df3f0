"""The filters and methods that templates may use, each with the size of what it makes known before.

Jinja's own are taken where what they make is no larger than what they get. A few that chat templates have no
use for, and whose time can't be bounded, are refused when they are met.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, Final, NoReturn

from jinja2 import Environment, filters, pass_environment
from jinja2.exceptions import SecurityError

from proxy.template_meter import meter

Filter = Callable[..., Any]
Check = Callable[..., None]

_REFUSED: Final = frozenset(
    {"pprint", "random", "slice", "striptags", "urlize", "wordwrap", "xmlattr"},
)
_INDENT_MAX: Final = 64
_BATCH_MAX: Final = 100_000
_PRECISION_MAX: Final = 100
_JSON_GROWTH_MAX: Final = 8  # characters of JSON for one, where all are escaped
_FIELD_CHARS_MAX: Final = 1000  # of one number in a format, by its width
# A width of four digits, or one taken from an argument.
_WIDE_PRINTF: Final = re.compile(r"\d{4}|\*")
_WIDE_FORMAT: Final = re.compile(r"\d{4}|\{[^{}]*\{")

STR_METHODS: Final = frozenset(
    {
        "capitalize",
        "casefold",
        "count",
        "endswith",
        "find",
        "index",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
        "isdigit",
        "islower",
        "isnumeric",
        "isspace",
        "istitle",
        "isupper",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "rfind",
        "rindex",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "upper",
    }
)
_WIDTHS: Final = frozenset({"center", "ljust", "rjust", "zfill"})
METHODS: Final[Mapping[type, frozenset[str]]] = {
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
    int: frozenset({"bit_length"}),
    float: frozenset({"is_integer"}),
}


def bounded_filters() -> dict[str, Filter]:
    """Return every filter by its name."""
    table = {name: _refused(name) if name in _REFUSED else each for name, each in filters.FILTERS.items()}
    table |= {"format": printf, "join": _join, "replace": replaced, "tojson": tojson}
    checks: dict[str, Check] = {
        "batch": _check_batch,
        "center": _check_center,
        "indent": _check_indent,
        "round": _check_round,
        "sum": _check_sum,
    }
    return {name: _bounded(each, checks.get(name)) for name, each in table.items()}


def _bounded(filter_: Filter, check: Check | None) -> Filter:
    @wraps(filter_)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        here = meter()
        for each in (*args, *kwargs.values()):
            here.weighed(each)
        if check is not None:
            check(*args, **kwargs)
        made = filter_(*args, **kwargs)
        if isinstance(made, Iterator):
            return iter(here.weighed(here.taken(made)))
        return here.weighed(made)

    return bounded


def _refused(name: str) -> Filter:
    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise SecurityError(f"the filter {name!r} isn't available to chat templates here")

    return refuse


# --- checks: they have the filters' own arguments -----------------------------------------------------------


def _check_batch(_value: Any, linecount: Any, *_rest: Any, **_named: Any) -> None:
    _check_number("batch", linecount, _BATCH_MAX)


def _check_center(_value: Any, width: Any = 80) -> None:
    meter().allow(int(width))


def _check_indent(value: Any, width: Any = 4, *_rest: Any, **_named: Any) -> None:
    if isinstance(width, str):
        meter().allow(len(width) * (1 + str(value).count("\n")))
    else:
        _check_number("indent", width, _INDENT_MAX)


def _check_round(_value: Any, precision: Any = 0, *_rest: Any, **_named: Any) -> None:
    _check_number("round", precision, _PRECISION_MAX)


def _check_sum(_environment: Any, _value: Any, attribute: Any = None, start: Any = 0) -> None:  # noqa: ARG001 (the filter's signature)
    if not isinstance(start, int | float):
        raise SecurityError("the filter 'sum' adds numbers only")


def _check_number(name: str, value: Any, most: int) -> None:
    if not isinstance(value, int) or abs(value) > most:
        raise SecurityError(f"{name!r} takes an integer of at most {most}")


# --- what grows ---------------------------------------------------------------------------------------------


@pass_environment
def _join(environment: Environment, value: Any, d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = map(filters.make_attrgetter(environment, attribute), value)
    return joined(str(d), value)


def joined(separator: str, values: Any) -> str:
    """Return the values' texts with the separator between them."""
    values = list(values)
    here = meter()
    here.allow(sum(map(here.weight, values)) + len(separator) * len(values))
    return separator.join(map(str, values))


def replaced(s: Any, old: Any, new: Any, count: Any = None) -> str:
    s, old, new = str(s), str(old), str(new)
    times = s.count(old)
    meter().allow(len(s) + times * max(0, len(new) - len(old)))
    return str(s.replace(old, new, -1 if count is None else count))


def printf(value: Any, *args: Any, **kwargs: Any) -> str:
    """Return what Python's `%` makes of a text."""
    if args and kwargs:
        raise TypeError("can't handle positional and keyword arguments at the same time")
    return percent(str(value), kwargs or args)


def percent(text: str, given: Any) -> str:
    """Return `text % given`; widths have three digits at most."""
    if _WIDE_PRINTF.search(text):
        raise SecurityError("a format's width has at most three digits")
    _allow_fields(text, "%", given)
    made: str = text % given
    return made


def check_format(text: str, *given: Any) -> None:
    """Raise unless `str.format` makes a text of bounded size of these arguments."""
    if _WIDE_FORMAT.search(text.replace("{{", "")):
        raise SecurityError("a format's width has at most three digits")
    _allow_fields(text, "{", given)


def _allow_fields(text: str, mark: str, given: Any) -> None:
    here = meter()
    here.allow(len(text) + text.count(mark) * (_FIELD_CHARS_MAX if given else 0))
    here.allow(len(text) + text.count(mark) * here.weight(given))


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as Hugging Face's renderer writes it, which escapes nothing for HTML."""
    if indent is not None:
        _check_number("indent", indent, _INDENT_MAX)
    here = meter()
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None and separators is None:
        return encoder.encode(value)
    pieces: list[str] = []
    written = 0
    for piece in encoder.iterencode(value):
        written += len(piece)
        if written > _JSON_GROWTH_MAX * here.chars_max:
            here.allow(written)
        pieces.append(piece)
    return "".join(pieces)


# --- methods ------------------------------------------------------------------------------------------------


def call_method(owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a method of a plain value's makes. SecurityError for one that isn't let through."""
    if isinstance(owner, str):
        return _call_str(owner, name, args, kwargs)
    allowed = next((names for kind, names in METHODS.items() if isinstance(owner, kind)), frozenset())
    if name not in allowed:
        raise SecurityError(f"{type(owner).__name__}.{name} isn't available to chat templates here")
    made = getattr(owner, name)(*args, **kwargs)
    return list(made) if isinstance(owner, dict) and name in ("items", "keys", "values") else made


def _call_str(owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if name in STR_METHODS:
        return getattr(owner, name)(*args, **kwargs)
    if name == "join":
        return joined(owner, *args)
    if name == "replace":
        return replaced(owner, *args, **kwargs)
    if name in _WIDTHS:
        meter().allow(len(owner) + int(args[0]) if args else 0)
        return getattr(owner, name)(*args, **kwargs)
    raise SecurityError(f"str.{name} isn't available to chat templates here")
