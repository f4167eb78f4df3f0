"""What must be true of answers, whatever broke meanwhile; pure. A problem is a sentence; none is good."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ops.chaos.said import Said

_SHOWN: Final = 5
_RETRY_S: Final = (1.0, 60.0)

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Difference:
    """Tokens that an answer should have and hasn't, and those that it has and shouldn't."""

    lost: int
    added: int


def difference(expected: Sequence[int], came: Sequence[int]) -> Difference:
    """Compare two answers: what is in both, in the same order, is neither lost nor added."""
    same = _common(expected, came)
    return Difference(len(expected) - same, len(came) - same)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the longest common subsequence, row by row of its table."""
    row = [0] * (len(other) + 1)
    for token in one:
        before, row = row, [0]
        for place, its in enumerate(other):
            row.append(before[place] + 1 if its == token else max(before[place + 1], row[place]))
    return row[-1]


def differences(said: Iterable[Said], expected: Mapping[int, str], encode: Encode) -> Difference:
    """Add up the differences of all whole answers."""
    each = [
        difference(encode(expected[one.ask.number]), encode(one.text))
        for one in said
        if one.completed and one.text != expected[one.ask.number]
    ]
    return Difference(sum(one.lost for one in each), sum(one.added for one in each))


def counted(said: Sequence[Said], apart: Difference) -> dict[str, Any]:
    """Return how many requests there were, how they ended, and what their answers differ by."""
    return {
        "requests": len(said),
        "endings": dict(Counter(" ".join(one.endings[-1:]) for one in said)),
        "refusals": dict(Counter(f"{each.status} {each.code}" for one in said for each in one.refusals)),
        "tokens_lost": apart.lost,
        "tokens_added": apart.added,
    }


def answer_problems(said: Sequence[Said], expected: Mapping[int, str]) -> list[str]:
    """Say which requests didn't end exactly once, or say something else than when nobody disturbs them."""
    problems = [f"request {one.ask.number} {problem}" for one in said for problem in _wrong(one, expected)]
    return shortened(problems)


def _wrong(one: Said, expected: Mapping[int, str]) -> list[str]:
    right = expected[one.ask.number]
    if one.left:
        return [] if right.startswith(one.text) else [f"had another beginning: {_apart(right, one.text)}"]
    if not one.completed:
        return [f"ended so: {', '.join(one.endings)}"]
    problems = []
    if len(one.reasons) != 1:
        problems.append(f"has {len(one.reasons)} finish reasons")
    if one.text != right:
        problems.append(f"has another text: {_apart(right, one.text)}")
    return problems


def _apart(right: str, text: str) -> str:
    """Return the place at which two texts part, and what each says there."""
    pairs = enumerate(zip(right, text, strict=False))
    place = next((at for at, (a, b) in pairs if a != b), min(len(right), len(text)))
    return f"at character {place}, {text[place : place + 20]!r} instead of {right[place : place + 20]!r}"


def refusal_problems(said: Iterable[Said]) -> list[str]:
    """Say which 429s and 503s didn't say when to come back, within the bounds that Forebay promises."""
    refusals = [refused for one in said for refused in one.refusals if refused.status in (429, 503)]
    return shortened(
        [
            f"a {refused.status} {refused.code} says to come back after {refused.retry_after_s} s"
            for refused in refusals
            if refused.retry_after_s is None or not _RETRY_S[0] <= refused.retry_after_s <= _RETRY_S[1]
        ]
    )


def rest_problems(ready: Mapping[str, object]) -> list[str]:
    """Say what /health/ready shows that shouldn't be there when nothing is asked any more."""
    wanted = {"live": 0, "queued": 0, "reserved_bytes": 0, "suspects": 0}
    return [
        f"{name} is {ready.get(name)} at the end"
        for name, value in wanted.items()
        if ready.get(name) != value
    ]


def shortened(problems: list[str]) -> list[str]:
    """Return the first few, and how many there are besides."""
    more = len(problems) - _SHOWN
    return problems if more <= 0 else [*problems[:_SHOWN], f"and {more} more of the kind"]
