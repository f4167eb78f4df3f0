"""What a JSON schema may be made of, before the compiler sees it: bounds that the compiler hasn't itself.

The compiler recurses along references, and intersects patterns without a bound on memory. A client's schema
that it can't survive is refused here.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final
from urllib.parse import unquote

from shared.limits import (
    BODY_DEPTH_MAX,
    PATTERN_CHARS_MAX,
    PATTERN_PROPERTIES_MAX,
    PATTERNS_MEETING_MAX,
    SCHEMA_DIVISOR_MAX,
    SCHEMA_LEVELS_MAX,
    SCHEMA_PARTS_MAX,
    SCHEMA_PROPERTIES_MAX,
)

# The compiler's own way to be told options; "lenient" is one of them.
OPTIONS: Final = "x-guidance"
_ANNOTATIONS: Final = frozenset(
    {"title", "description", "default", "examples", "$comment", "$defs", "definitions"}
)
_JOINS: Final = ("$ref", "anyOf", "oneOf")
_TEXTS: Final = ("pattern", "format")


def out_of_bounds(schema: Any) -> str | None:
    """Return what is wrong with a schema, as the end of a sentence that its field's name begins; or None."""
    if not isinstance(schema, Mapping):
        return "must be a JSON object"
    if OPTIONS in schema:
        return f"has the keyword '{OPTIONS}', which isn't supported"
    too_large = _too_large(schema)
    if too_large:
        return too_large
    nodes = [node for node in _parts(schema) if isinstance(node, dict)]
    checks = (
        _many_properties(nodes),
        _long_pattern(nodes),
        _many_patterns(nodes),
        _large_divisor(nodes),
        _long_way(schema, nodes),
    )
    return next(filter(None, checks), None)


def target(schema: Mapping[str, Any], reference: str) -> Any:
    """Return what a reference into the schema itself leads to; None if it isn't one, or leads nowhere."""
    if not reference.startswith("#"):
        return None
    place: Any = schema
    for step in unquote(reference[1:]).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, list) and key.isascii() and key.isdigit() and len(key) < len("100000"):
            place = place[int(key)] if int(key) < len(place) else None
        else:
            place = place.get(key) if isinstance(place, dict) else None
    return place


def references(nodes: list[dict[str, Any]]) -> set[str]:
    return {node["$ref"] for node in nodes if isinstance(node.get("$ref"), str)}


def _parts(schema: Any) -> Iterator[Any]:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()


def _too_large(schema: Any) -> str | None:
    level, parts = [schema], 0
    for _ in range(BODY_DEPTH_MAX):
        parts += len(level)
        if parts > SCHEMA_PARTS_MAX:
            return f"has more than {SCHEMA_PARTS_MAX} parts"
        level = [
            each
            for part in level
            for each in (part.values() if isinstance(part, dict) else part if isinstance(part, list) else ())
        ]
    return f"is nested more than {BODY_DEPTH_MAX} levels deep" if level else None


def _many_properties(nodes: list[dict[str, Any]]) -> str | None:
    """Bound what may come next in an object: any of its properties that aren't required."""
    properties = (node.get("properties") for node in nodes)
    most = max((len(each) for each in properties if isinstance(each, dict)), default=0)
    if most <= SCHEMA_PROPERTIES_MAX:
        return None
    return f"has {most} 'properties' in one object; {SCHEMA_PROPERTIES_MAX} are supported"


def _long_pattern(nodes: list[dict[str, Any]]) -> str | None:
    for node in nodes:
        keyed = node.get("patternProperties")
        patterns = [node.get("pattern"), *(keyed if isinstance(keyed, dict) else ())]
        if any(isinstance(pattern, str) and len(pattern) > PATTERN_CHARS_MAX for pattern in patterns):
            return f"has a 'pattern' of more than {PATTERN_CHARS_MAX} characters"
        if len(patterns) > PATTERN_PROPERTIES_MAX:
            return f"has more than {PATTERN_PROPERTIES_MAX} 'patternProperties' in one object"
    return None


def _many_patterns(nodes: list[dict[str, Any]]) -> str | None:
    """Bound how many patterns one string may have to match: where schemas are joined, all that there are."""
    if not any("allOf" in node or _joined(node) for node in nodes):
        return None
    texts = {(key, node[key]) for node in nodes for key in _TEXTS if isinstance(node.get(key), str)}
    if len(texts) <= PATTERNS_MEETING_MAX:
        return None
    return (
        f"has more than {PATTERNS_MEETING_MAX} different 'pattern' and 'format' in it; that many are only "
        "supported without 'allOf', and where '$ref', 'anyOf' and 'oneOf' stand alone"
    )


def _joined(node: dict[str, Any]) -> bool:
    """Tell whether another schema is joined with what stands beside it, or with yet another."""
    joins = sum(key in node for key in _JOINS)
    beside = node.keys() - _ANNOTATIONS - {*_JOINS}
    return joins > 1 or (joins == 1 and any(key in beside for key in (*_TEXTS, "properties", "items")))


def _large_divisor(nodes: list[dict[str, Any]]) -> str | None:
    for node in nodes:
        divisor = node.get("multipleOf")
        if isinstance(divisor, int | float) and _digits(divisor) > SCHEMA_DIVISOR_MAX:
            return f"has a 'multipleOf' whose digits are more than {SCHEMA_DIVISOR_MAX}"
    return None


def _digits(number: float) -> int:
    """Return a number's digits without point and outer zeros, as a number: a compiled divisor's states."""
    shown = repr(number) if isinstance(number, float) else str(number)[: len(str(SCHEMA_DIVISOR_MAX)) * 4]
    return int("".join(map(str, Decimal(shown).as_tuple().digits)).strip("0") or "0")


def _long_way(schema: Mapping[str, Any], nodes: list[dict[str, Any]]) -> str | None:
    """Bound how deep the compiler recurses: into each reference's target once, whatever way it comes."""
    depths: dict[int, int] = {}
    whole = _depth({**schema}, depths)
    ends = (target(schema, reference) for reference in references(nodes))
    levels = whole + sum(whole if end is None else _depth(end, depths) for end in ends)
    if levels <= SCHEMA_LEVELS_MAX:
        return None
    return f"has '$ref's that lead {levels} levels deep; {SCHEMA_LEVELS_MAX} are supported"


def _depth(part: Any, depths: dict[int, int]) -> int:
    """Return how many levels a part has. Each is measured once; the whole is known not to be deep."""
    if not isinstance(part, dict | list):
        return 1
    if id(part) not in depths:
        inner = part.values() if isinstance(part, dict) else part
        depths[id(part)] = 1 + max((_depth(each, depths) for each in inner), default=0)
    return depths[id(part)]
