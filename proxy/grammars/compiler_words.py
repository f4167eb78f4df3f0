"""The compiler's complaints, put into sentences that name a schema's keyword."""

import json
import re
from collections.abc import Callable
from typing import Final

_CHARS_MAX: Final = 300
_PLACE: Final = re.compile(r"\A(?:at )?\d+\(\d+\): ")
_STAGES: Final = (
    "failed to compile JSON schema: ",
    'failed to parse "%json": ',
)
_SOURCE: Final = re.compile(r"\n +\d+ \| ")
_PATTERN_ERROR: Final = re.compile(r"regex parse error:.*?\nerror: ([^\n]+)", re.DOTALL)
_AROUND: Final = re.compile(r"lookarounds not supported yet; (\w+)")
_TOO_MUCH: Final = (
    "too large",
    "too big",
    "too complex",
    "fuel",
    "Too many items",
    "items; max is",
    "too many expressions",
    "Unable to determine",
    "can't determine if",
    "too deeply nested",
    "exceeds size limit",
    "panic",
)
_ANCHORS: Final = {"Start": "'^'", "End": "'$'", "StartLF": "'^'", "EndLF": "'$'"}

NOTHING_FITS: Final = "can't be satisfied by anything"

_SENTENCES: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]] = (
    (re.compile(r"Unimplemented keys: (\[.*\])"), lambda found: _keywords(found[1])),
    (
        re.compile(r"Unknown format: (.*)"),
        lambda found: f"has the 'format' '{found[1]}', which isn't supported",
    ),
    (
        re.compile(r"(?:Resource|Pointer|Anchor|URI|Unresolvable)\W+(?:reference\W+)?'([^']*)'"),
        lambda found: (
            f"has a '$ref' or '$schema' to '{_own(found[1])}', which isn't in it; nothing is fetched"
        ),
    ),
    (
        re.compile(r"circular references with sibling keys[^:]*: (.*)"),
        lambda found: (
            f"has a '$ref' to '{_own(found[1])}' that leads back to itself with keywords beside it, "
            "which isn't supported"
        ),
    ),
    (
        re.compile(r"oneOf constraints"),
        lambda _: "has a 'oneOf' whose options may both hold, which isn't supported; use 'anyOf'",
    ),
    (
        re.compile(r"min/maxProperties"),
        lambda _: (
            "has 'minProperties' or 'maxProperties', which are supported only where all 'properties' are "
            "'required'"
        ),
    ),
    (
        re.compile(r"patternProperty regexes (\S+) and (\S+) are not disjoint"),
        lambda found: (
            f"has the 'patternProperties' {found[1]} and {found[2]}, which may both match; that "
            "isn't supported"
        ),
    ),
    (re.compile(r"Unsatisfiable schema: ([^\n]*)"), lambda found: f"{NOTHING_FITS}: {_short(found[1])}"),
    (re.compile(r"'multipleOf' has too many"), lambda _: "has a 'multipleOf' with too many digits"),
    (
        re.compile(r"Failed to generate regex for (\w+) range"),
        lambda found: f"has a 'minimum' or 'maximum' of a type '{found[1]}' that is too large or too fine",
    ),
)


def in_words(complaint: str) -> str:
    """Return the end of a sentence that a field's name begins, for an error of the compiler's."""
    text = complaint
    while stripped := _without_stage(text):
        text = stripped
    text = _SOURCE.split(text, maxsplit=1)[0].strip()
    pattern = _PATTERN_ERROR.search(text)
    if pattern:
        return f"has a regular expression ('pattern') that isn't supported: {pattern[1]}"
    around = _AROUND.search(text)
    if around:
        sign = _ANCHORS.get(around[1], around[1])
        return f"has a regular expression ('pattern') that isn't supported: look-around ({sign})"
    for known, sentence in _SENTENCES:
        found = known.search(text)
        if found:
            return sentence(found)
    if any(words in text for words in _TOO_MUCH):
        return "is too complex to hold an answer to"
    return f"can't be used: {_short(text)}"


def _without_stage(text: str) -> str | None:
    place = _PLACE.match(text)
    if place:
        return text[place.end() :]
    return next((text.removeprefix(stage) for stage in _STAGES if text.startswith(stage)), None)


def _short(text: str) -> str:
    line = text.split("\n", maxsplit=1)[0]
    return line if len(line) <= _CHARS_MAX else line[:_CHARS_MAX] + "…"


def _own(reference: str) -> str:
    """Return a reference as the client wrote it: the compiler puts a scheme of its own before it."""
    return reference.removeprefix("json-schema:///")[:_CHARS_MAX]


def _keywords(listed: str) -> str:
    names = [f"'{name}'" for name in json.loads(listed)]
    keywords, are = ("keywords", "aren't") if len(names) > 1 else ("keyword", "isn't")
    return f"has the {keywords} {', '.join(names)}, which {are} supported"
