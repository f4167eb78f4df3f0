"""What rendering a template may cost: work and sizes, counted, so that no template and no message is endless.

Lists and objects can't be changed inside the sandbox, so what one weighs stays true; shared parts count as
often as they would be written out, which is what a text made of them would cost.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import jinja2

from shared.limits import (
    TEMPLATE_CPU_S_MAX,
    TEMPLATE_DEPTH_MAX,
    TEMPLATE_INTEGER_BITS_MAX,
    TEMPLATE_VALUE_CHARS_MAX,
    TEMPLATE_WORK_MAX,
)

ValueT = TypeVar("ValueT")

# A unit of work is one step of a template, or so many characters that one step reads or writes.
_CHARS_PER_UNIT: Final = 16
_CHARS_BACK: Final = 4  # how much longer than all that came in a value may get
_UNITS_PER_CHAR: Final = 4
_UNITS_PER_PART: Final = 64
_LOOK_UNITS: Final = 4096  # between two looks at the clock

_current: ContextVar["Meter"] = ContextVar("template_meter")


class TooCostlyError(jinja2.TemplateRuntimeError):
    """The template does more than it may."""


class Meter:
    """One rendering's bounds: `given` is all that came from outside, and what may be done grows with it.

    `cpu_s` is a clock of this thread's own time, so that others' load takes nothing from it.
    """

    def __init__(self, given: Any, cpu_s: Callable[[], float] = time.thread_time) -> None:
        self._weights: dict[int, tuple[Any, int, int]] = {}
        self._parts = 0
        self._units_left: float = 0
        weight = self._measured(given)[0]
        self.chars_max: int = TEMPLATE_VALUE_CHARS_MAX + _CHARS_BACK * weight
        self._units_left = TEMPLATE_WORK_MAX + _UNITS_PER_CHAR * weight + _UNITS_PER_PART * self._parts
        self._cpu_s = cpu_s
        self._ends_s = cpu_s() + TEMPLATE_CPU_S_MAX
        self._looks_at: float = self._units_left - _LOOK_UNITS

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count what this thread renders meanwhile."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def spend(self, units: float) -> None:
        self._units_left -= units
        if self._units_left < 0:
            raise TooCostlyError("it takes too many steps")
        if self._units_left < self._looks_at:
            self._looks_at = self._units_left - _LOOK_UNITS
            if self._cpu_s() > self._ends_s:
                raise TooCostlyError(f"it takes more than {TEMPLATE_CPU_S_MAX:g} s")

    def allow(self, chars: float) -> None:
        """Spend what a value of this size costs, before it is made. TooCostlyError if it's too large."""
        if chars > self.chars_max:
            raise TooCostlyError(f"it makes a value of more than {self.chars_max} characters")
        self.spend(1 + chars / _CHARS_PER_UNIT)

    def weighed(self, value: ValueT) -> ValueT:
        """Return the value, its size paid for."""
        self.allow(self.weight(value))
        return value

    def taken(self, values: Iterable[ValueT]) -> list[ValueT]:
        """Return the values as a list, each paid for."""
        found: list[ValueT] = []
        for value in values:
            self.spend(1)
            found.append(value)
        return found

    def weight(self, value: Any) -> int:
        """Return about how many characters the value would have, written out."""
        return len(value) + 1 if type(value) is str else self._measured(value)[0]

    def _measured(self, value: Any) -> tuple[int, int]:
        """Return (weight, levels of lists and objects in it)."""
        if isinstance(value, str | range | bytes):
            return len(value) + 1, 0
        if isinstance(value, int):
            if value.bit_length() > TEMPLATE_INTEGER_BITS_MAX:
                raise TooCostlyError(f"it makes an integer of {value.bit_length()} bits")
            return 1 + value.bit_length() // 3, 0
        if not isinstance(value, list | tuple | Mapping):
            return 1, 0
        known = self._weights.get(id(value))
        if known is None:
            known = self._weights[id(value)] = (value, *self._summed(value))
        return known[1], known[2]

    def _summed(self, value: Any) -> tuple[int, int]:
        parts = (*value.keys(), *value.values()) if isinstance(value, Mapping) else value
        weight, depth = 2, 0
        for part in parts:
            part_weight, part_depth = self._measured(part)
            weight += part_weight
            depth = max(depth, part_depth)
        self._parts += len(parts)
        if depth >= TEMPLATE_DEPTH_MAX:
            raise TooCostlyError(f"it nests values more than {TEMPLATE_DEPTH_MAX} levels deep")
        return weight, depth + 1


def meter() -> Meter:
    """Return the meter of what this thread renders. LookupError if it renders nothing."""
    return _current.get()
