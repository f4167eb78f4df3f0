"""Whether a JSON schema asks for a value without an end, which no answer could finish."""

from collections.abc import Mapping
from typing import Any, Final

from proxy.grammars.schema_bounds import target

# More rounds than a sane schema needs: one for each reference on the longest way that must be gone.
_ROUNDS_MAX: Final = 32


def is_endless(schema: Mapping[str, Any]) -> bool:
    """Tell whether every value would have to hold another one of its kind.

    A reference is taken for endless until its target is known to end; that is repeated until nothing new is
    known. What can't be told is taken to end.
    """
    ending: set[str] = set()
    for _ in range(_ROUNDS_MAX):
        search = _Round(schema, frozenset(ending))
        if search.ends(schema):
            return False
        fresh = {reference for reference in search.met if search.ends(target(schema, reference))} - ending
        if not fresh:
            return True
        ending |= fresh
    return False


class _Round:
    """One look at all parts, with what is known so far. A part is looked at once."""

    def __init__(self, schema: Mapping[str, Any], ending: frozenset[str]) -> None:
        self._schema = schema
        self._ending = ending
        self._known: dict[int, bool] = {}
        self.met: list[str] = []

    def ends(self, part: Any) -> bool:
        if not isinstance(part, dict):
            return True
        if id(part) not in self._known:
            self._known[id(part)] = self._look(part)
        return self._known[id(part)]

    def _look(self, part: dict[str, Any]) -> bool:
        if "enum" in part or "const" in part:
            return True
        options = [part[key] for key in ("anyOf", "oneOf") if isinstance(part.get(key), list) and part[key]]
        joined = part.get("allOf")
        return (
            self._reference_ends(part.get("$ref"))
            and all(any(self.ends(each) for each in some) for some in options)
            and all(self.ends(each) for each in (joined if isinstance(joined, list) else ()))
            and self._needs_end(part)
        )

    def _reference_ends(self, reference: Any) -> bool:
        if not isinstance(reference, str) or target(self._schema, reference) is None:
            return True
        if reference not in self._ending and reference not in self.met:
            self.met.append(reference)
        return reference in self._ending

    def _needs_end(self, part: dict[str, Any]) -> bool:
        """Tell whether what an object or a list must have ends; any other value does."""
        if part.get("type") == "object":
            properties, required = part.get("properties"), part.get("required")
            known = properties if isinstance(properties, dict) else {}
            names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
            return all(self.ends(known.get(name)) for name in names)
        least = part.get("minItems")
        if part.get("type") == "array" and type(least) is int and least > 0:
            listed = part.get("prefixItems")
            first = listed if isinstance(listed, list) else []
            rest = [part.get("items")] if least > len(first) else []
            return all(self.ends(each) for each in (*first[:least], *rest))
        return True
