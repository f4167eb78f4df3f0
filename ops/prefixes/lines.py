"""What is made of measured values: lines of two numbers, their ratio, and an aim. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ops.engine.lines import Aim, Line, Spread, Unit
from ops.load.statistics import median
from ops.prefixes.in_process import COPIES, NO_STORE, SHARED, STORE
from ops.prefixes.plan import Arm, Values
from ops.prefixes.resume import DISK, NO_DISK
from ops.prefixes.served import GATEWAY, SERVER


class _Lines:
    """Makes the lines of one work, under the name that it shall have in the table."""

    def __init__(self, work: str, values: Mapping[str, Sequence[float]]) -> None:
        self._work = work
        self._values = values

    def over(self, measured: str, unit: Unit, above: str, below: str, aim: Aim | None = None) -> Line:
        """Judge above / below, repeat by repeat: each pair ran one after the other."""
        return self._line(measured, unit, (self._values[above], self._values[below]), aim)

    def ratios(
        self, measured: str, above: tuple[str, str], below: tuple[str, str], aim: Aim | None = None
    ) -> Line:
        """Judge one ratio over another one."""
        return self._line(measured, "x", (self._ratio(*above), self._ratio(*below)), aim)

    def each(self, measured: str, unit: Unit, one: str, other: str, aim: Aim | None = None) -> Line:
        """Judge the one alone, if there is an aim; the other stands beside it."""
        ones = self._values[one]
        spread = Spread.of(ones) if aim else None
        return Line(self._work, measured, unit, median(ones), median(self._values[other]), spread, aim)

    def _ratio(self, above: str, below: str) -> list[float]:
        return [one / other for one, other in zip(self._values[above], self._values[below], strict=True)]

    def _line(
        self, measured: str, unit: Unit, pair: tuple[Sequence[float], Sequence[float]], aim: Aim | None
    ) -> Line:
        ones, others = pair
        # Of none of the others there is no multiple.
        ratios = [one / other for one, other in zip(ones, others, strict=True) if other]
        spread = Spread.of(ratios) if ratios else None
        return Line(self._work, measured, unit, median(ones), median(others), spread, aim)


def _ttft(lines: _Lines) -> list[Line]:
    ours, theirs = (f"{GATEWAY}.warm_s", f"{GATEWAY}.cold_s"), (f"{SERVER}.warm_s", f"{SERVER}.cold_s")
    return [
        lines.over("gateway's TTFT: warm / cold", "s", *ours, Aim("at most", 0.15)),
        lines.over("mlx_lm.server's TTFT: warm / cold", "s", *theirs),
        lines.ratios("those ratios: gateway's / server's", ours, theirs, Aim("at most", 1.0)),
        lines.over("warm TTFT: gateway / server", "s", ours[0], theirs[0]),
        lines.over("cold TTFT: gateway / server", "s", ours[1], theirs[1]),
    ]


def _sharing(lines: _Lines) -> list[Line]:
    def pair(key: str) -> tuple[str, str]:
        return f"{SHARED}.{key}", f"{COPIES}.{key}"

    return [
        lines.over(
            "decode steps: shared / copies", "tokens/s", *pair("tokens_per_s"), aim=Aim("at least", 1.3)
        ),
        lines.over("KV bytes: shared / copies", "MB", *pair("kv_bytes"), aim=Aim("at most", 0.2)),
        lines.each(
            "KV bytes / one beginning and all else: shared, copies",
            "x",
            *pair("of_held"),
            aim=Aim("at most", 1.1),
        ),
        lines.over("until all suffixes answer: shared / copies", "s", *pair("joined_s")),
        lines.over(
            "that of shared / the first row's cold TTFT", "s", f"{SHARED}.joined_s", f"{SHARED}.first_s"
        ),
    ]


def _equal(lines: _Lines) -> list[Line]:
    return [lines.each("greedy tokens that are the same: share", "x", "equal_share", "equal_share")]


def _conversation(lines: _Lines) -> list[Line]:
    aim = Aim("at most", 1.1)
    ours, theirs = f"{GATEWAY}.", f"{SERVER}."
    return [
        lines.over(
            "prompt tokens computed / new ones, all turns",
            "tokens",
            f"{ours}computed_tokens",
            f"{ours}new_tokens",
            aim,
        ),
        lines.over(
            "the same but for the first turn",
            "tokens",
            f"{ours}later_computed_tokens",
            f"{ours}later_new_tokens",
            aim,
        ),
        lines.over(
            "prompt tokens computed / all", "tokens", f"{ours}computed_tokens", f"{ours}prompt_tokens"
        ),
        lines.over(
            "mlx_lm.server's computed / new ones, all turns",
            "tokens",
            f"{theirs}computed_tokens",
            f"{theirs}new_tokens",
        ),
    ]


def _resume(lines: _Lines) -> list[Line]:
    def pair(key: str) -> tuple[str, str]:
        return f"{DISK}.{key}", f"{NO_DISK}.{key}"

    return [
        lines.over(
            "prefilled again: disk / 64 and the tail",
            "tokens",
            f"{DISK}.computed_tokens",
            f"{DISK}.allowed_tokens",
            Aim("at most", 1.0),
        ),
        lines.over("prefilled again: disk / no disk", "tokens", *pair("computed_tokens")),
        lines.over("SIGKILL to next token: disk / no disk", "s", *pair("next_token_s")),
        lines.over("of that, from its begin: disk / no disk", "s", *pair("from_begin_s")),
    ]


def _unrelated(lines: _Lines) -> list[Line]:
    pair = f"{STORE}.tokens_per_s", f"{NO_STORE}.tokens_per_s"
    return [lines.over("prefill and decode: store on / off", "tokens/s", *pair, aim=Aim("at least", 0.98))]


_LINES: Final[Mapping[str, Callable[[_Lines], list[Line]]]] = {
    "ttft": _ttft,
    "sharing": _sharing,
    "equal": _equal,
    "conversation": _conversation,
    "resume": _resume,
    "unrelated": _unrelated,
}


def lines_of(work: str, values: Values, arm: Arm | None = None) -> list[Line]:
    """Return the lines that a work's values make. "equal" is what a check of sharing makes."""
    shown = "sharing" if work == "equal" else work
    return _LINES[work](_Lines(f"{shown} {arm}" if arm else shown, values))
