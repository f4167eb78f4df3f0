"""The format of a model: by its chat template and its tokenizer's added words, or by name."""

from collections.abc import Mapping
from typing import Final

from proxy.formats.families import FAMILIES, Family
from proxy.formats.format import Format
from shared.errors import ModelError

FORMAT_NAMES: Final = tuple(family.name for family in FAMILIES)


def format_of(template: str | None, words: Mapping[str, int], name: str = "") -> Format:
    """Return how a model writes. ModelError if a name is given and no format is called so.

    `template` is the source of its chat template: it shows the model's marks, since it writes earlier answers
    as the model has written them. Where there is none, the tokenizer's added `words` decide.
    """
    seen = "\n".join(words) if template is None else template
    family = _called(name) if name else _first(seen)
    return family.format(words, thinks=any(mark and mark in seen for mark in family.thought))


def _called(name: str) -> Family:
    for family in FAMILIES:
        if family.name == name:
            return family
    raise ModelError(f"answer_format: no format is called '{name}'; there are {', '.join(FORMAT_NAMES)}")


def _first(seen: str) -> Family:
    """Return the first family of which all of one of its signs are there; the last one has none."""
    for family in FAMILIES[:-1]:
        if any(all(word in seen for word in sign) for sign in family.signs):
            return family
    return FAMILIES[-1]
