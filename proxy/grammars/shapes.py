"""What an answer's text has to be, as one rule of a grammar, checked."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from llguidance import regex_to_lark

from proxy.grammars.compiler import Compiler
from proxy.grammars.compiler_words import NOTHING_FITS
from proxy.grammars.endless import is_endless
from proxy.grammars.lark_bounds import lark_out_of_bounds
from proxy.grammars.schema_bounds import OPTIONS, out_of_bounds
from proxy.request import Shape
from shared.errors import InvalidRequest
from shared.limits import PATTERN_CHARS_MAX, SCHEMA_CHARS_MAX, SHAPE_CHOICES_MAX

# Between the parts of a JSON text: as printed in lines or in one, but no model can fill an answer with it.
WHITESPACE: Final = r"\n[ \t]{0,32}| "
ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Rule:
    """The right-hand side of a rule in Lark; with `grammar`, it names that one, which stands beside it.

    With `leads` blanks may stand before it without harm.
    """

    terms: str
    grammar: str = ""
    leads: bool = False


def shape_rule(shape: Shape, compiler: Compiler) -> Rule:
    """Return the rule of a shape; InvalidRequest says what is wrong with it, and names a schema's keyword."""
    refuse(None if _is_unicode(shape.source) else "has half of a surrogate pair in it", shape.param)
    match shape.kind:
        case "json_object":
            return Rule(json_terms(ANY_OBJECT), leads=True)
        case "json_schema":
            rule = Rule(_schema_terms(shape.source, shape.param), leads=True)
        case "regex":
            rule = Rule(_regex_terms(shape.source, shape.param))
        case "lark":
            rule = Rule("@shape", _lark(shape.source, shape.param))
        case "choice":
            rule = Rule(_choice_terms(shape.source, shape.param))
    refuse(compiler.problem(rule.grammar or f"start: {rule.terms}"), shape.param)
    return rule


def refuse(predicate: str | None, param: str) -> None:
    """Raise InvalidRequest where something is wrong: the end of a sentence about the field."""
    if predicate is not None:
        raise InvalidRequest(f"'{param}' {predicate}.", param=param)


def json_terms(schema: Mapping[str, Any]) -> str:
    """Return the terms that match a JSON text by a schema. ValueError for numbers that JSON hasn't."""
    return f"%json {json.dumps(with_whitespace(schema), allow_nan=False)}"


def with_whitespace(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {OPTIONS: {"whitespace_pattern": WHITESPACE}, **schema}


def schema_problem(schema: Any) -> str | None:
    """Return what can be said against a schema without compiling it; None if nothing."""
    return out_of_bounds(schema) or (NOTHING_FITS + " that ends" if is_endless(schema) else None)


def _schema_terms(source: str, param: str) -> str:
    if len(source) > SCHEMA_CHARS_MAX:
        refuse(f"has more than {SCHEMA_CHARS_MAX} characters", param)
    schema = _read(source, param)
    refuse(schema_problem(schema), param)
    try:
        return json_terms(schema)
    except ValueError as problem:
        raise InvalidRequest(f"'{param}' has a number that JSON hasn't.", param=param) from problem


def _regex_terms(source: str, param: str) -> str:
    if not 0 < len(source) <= PATTERN_CHARS_MAX:
        refuse(f"must have 1 to {PATTERN_CHARS_MAX} characters", param)
    return f"/{regex_to_lark(source, '')}/"


def _lark(source: str, param: str) -> str:
    refuse(None if source.strip() else "must not be empty", param)
    refuse(lark_out_of_bounds(source), param)
    return source


def _choice_terms(source: str, param: str) -> str:
    texts = _read(source, param)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        refuse("must be a list of strings", param)
    if not 0 < len(texts) <= SHAPE_CHOICES_MAX:
        refuse(f"must have 1 to {SHAPE_CHOICES_MAX} strings", param)
    return "(" + " | ".join(map(json.dumps, dict.fromkeys(texts))) + ")"


def _read(source: str, param: str) -> Any:
    try:
        content = json.loads(source)
    except (ValueError, RecursionError) as problem:
        raise InvalidRequest(f"'{param}' isn't valid JSON.", param=param) from problem
    if "\\ud" in source.lower() and not _is_unicode(json.dumps(content, ensure_ascii=False)):
        refuse("has half of a surrogate pair in it", param)
    return content


def _is_unicode(text: str) -> bool:
    """Tell whether a text can be written down: half of a surrogate pair can't."""
    try:
        return bool(text.encode()) or not text
    except UnicodeEncodeError:
        return False
