"""What a client's grammar in Lark may be made of: rules, terminals and plain regular expressions."""

import re
from typing import Final

from shared.limits import LARK_CHARS_MAX, LARK_RULES_MAX, PATTERN_CHARS_MAX

# Possessive, so linear: strings, regular expressions and comments. One that never ends is the compiler's.
_QUOTED: Final = re.compile(
    r"""(?P<comment>(?://|\#)[^\n]*+)
    |"(?:[^"\\\n]|\\.)*+"
    |/(?P<pattern>(?:[^/\\\n]|\\.)++)/[a-z]*+""",
    re.VERBOSE,
)
_RULE: Final = re.compile(r":")
_DIRECTIVE: Final = re.compile(r"%(?!(?:ignore|import)\b)\s*+(\w*)")
# Joins of regular expressions are beyond any bound on memory, and so is what might be nested here; a token
# would have to be the served model's.
_REFUSED: Final = (
    (re.compile("&"), "uses '&'"),
    (re.compile(r"~(?!\s*\d)"), "uses '~' for a negation"),
    (re.compile("<"), "names a token in '<>'"),
    (re.compile("@"), "names another grammar by '@'"),
    (re.compile(r"\[\s*(?:\w+\s*=|lazy|capture)"), "gives a rule options in '[]'"),
)
# A repetition inside a repetition multiplies.
_REPEATED_MAX: Final = 1000
_REPETITION: Final = re.compile(r"[{~]\s*(\d+)\s*(?:(?:,|\.\.)\s*(\d+))?")


def lark_out_of_bounds(source: str) -> str | None:
    """Return what is wrong with a grammar, as the end of a sentence; None if it may be compiled."""
    if len(source) > LARK_CHARS_MAX:
        return f"has more than {LARK_CHARS_MAX} characters"
    patterns = (found["pattern"] or "" for found in _QUOTED.finditer(source))
    if any(len(pattern) > PATTERN_CHARS_MAX for pattern in patterns):
        return f"has a regular expression of more than {PATTERN_CHARS_MAX} characters"
    bare = _QUOTED.sub(lambda found: "" if found["comment"] else '""', source)
    if len(_RULE.findall(bare)) > LARK_RULES_MAX:
        return f"has more than {LARK_RULES_MAX} rules"
    return _unsupported(bare)


def _unsupported(bare: str) -> str | None:
    """Return what isn't supported in a grammar without its strings, regular expressions and comments."""
    directive = _DIRECTIVE.search(bare)
    if directive:
        return f"uses '%{directive[1]}', which isn't supported; '%ignore' and '%import' are"
    used = next((predicate for sign, predicate in _REFUSED if sign.search(bare)), None)
    if used is not None:
        return f"{used}, which isn't supported"
    counts = (count for found in _REPETITION.finditer(bare) for count in found.groups("0"))
    if any(len(count) > len("1000") or int(count) > _REPEATED_MAX for count in counts):
        return f"repeats something more than {_REPEATED_MAX} times"
    return None
