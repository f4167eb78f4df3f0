"""Puts grouped attention in a model's place for it, without touching mlx-lm's modules.

An instance of an attention module gets a class of its own, derived from its class. Either that class has the
same functions with another `scaled_dot_product_attention` among their globals (HOOKED); or its call is made
group by group (SPLIT), which also costs a projection's launch for each group but works for whatever happens
inside; or row by row with plain numbers as offsets (BY_ROWS). Which of them a model takes is found out by
trying (worker.engine.trial), and taken back where it doesn't agree.
"""

import inspect
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Final

from mlx.nn.layers.base import Module

from worker.engine.layers import attend, split
from worker.engine.row_caches import parts_of

_ATTENTION: Final = "scaled_dot_product_attention"
# What a class of ours calls the one that it was made from.
CHANGED_FROM: Final = "changed_from"


class Way(Enum):
    """How a model's attention is done for several groups."""

    HOOKED = "attention once a group"
    SPLIT = "attention modules once a group"
    BY_ROWS = "attention modules once a row"


class Hooks:
    """The modules that were changed, and their classes before."""

    def __init__(self) -> None:
        self._before: list[tuple[Module, type]] = []

    def hook(self, modules: Iterable[Module]) -> None:
        """Let each module's functions find grouped attention where they find mlx-lm's."""
        for module in modules:
            self.change(module, _hooked_class(type(module)))

    def split(self, modules: Iterable[Module]) -> None:
        """Let each module be called group by group."""
        for module in modules:
            self.change(module, _split_class(type(module)))

    def remove(self) -> None:
        """Make all as it was."""
        while self._before:
            module, before = self._before.pop()
            module.__class__ = before

    def change(self, module: Module, new: type) -> None:
        """Let a module be of another class, which has its own in CHANGED_FROM."""
        self._before.append((module, type(module)))
        module.__class__ = new


def restore(model: Module) -> None:
    """Take back what earlier hooks changed in a model, whoever has put them there."""
    for _name, module in model.named_modules():
        while CHANGED_FROM in vars(type(module)):
            module.__class__ = getattr(type(module), CHANGED_FROM)


def hookable(model: Module) -> list[Module]:
    """Return the modules that call mlx-lm's attention by its name."""
    return [module for _name, module in model.named_modules() if _functions_to_hook(type(module))]


def _functions_to_hook(kind: type) -> dict[str, types.FunctionType]:
    """Return a class's own and inherited functions that name mlx-lm's attention, the nearest of each name."""
    found: dict[str, types.FunctionType] = {}
    for base in reversed(kind.__mro__[: kind.__mro__.index(Module)]):
        for name, member in vars(base).items():
            found.pop(name, None)
            if isinstance(member, types.FunctionType) and _names_attention(member):
                found[name] = member
    return found


def _names_attention(function: types.FunctionType) -> bool:
    return _ATTENTION in function.__code__.co_names and _ATTENTION in function.__globals__


def _hooked_class(kind: type) -> type:
    members: dict[str, Any] = {CHANGED_FROM: kind}
    for name, function in _functions_to_hook(kind).items():
        names = {**function.__globals__, _ATTENTION: attend(function.__globals__[_ATTENTION])}
        hooked = types.FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, function.__closure__
        )
        hooked.__kwdefaults__ = function.__kwdefaults__
        members[name] = hooked
    return type(f"Hooked{kind.__name__}", (kind,), members)


def _split_class(kind: type) -> type:
    call: Callable[..., Any] = kind.__call__
    names = list(inspect.signature(call).parameters)[1:]

    def split_call(self: Any, *arguments: Any, **named: Any) -> Any:
        return split(types.MethodType(call, self), names, arguments, named)

    return type(f"Split{kind.__name__}", (kind,), {CHANGED_FROM: kind, "__call__": split_call})


def callers(caches: Sequence[Any], run: Callable[[], None]) -> list[Module]:
    """Run a model on these caches; return the modules that write keys and values, in the order of layers.

    Of modules one of which is inside the other, the outer one: it works on what the inner one returns.
    """
    found: dict[int, Module] = {}
    watched = [part for cache in caches for part in parts_of(cache) if hasattr(part, "update_and_fetch")]
    for part in watched:
        part.update_and_fetch = _watching(part.update_and_fetch, found)
    try:
        run()
    finally:
        for part in watched:
            del part.update_and_fetch
    inner = {
        id(child) for module in found.values() for _n, child in module.named_modules() if child is not module
    }
    return [module for module in found.values() if id(module) not in inner]


def _watching(write: Callable[..., Any], found: dict[int, Module]) -> Callable[..., Any]:
    def watched(*arguments: Any, **named: Any) -> Any:
        frame = sys._getframe(1)  # noqa: SLF001 (the only way to learn who calls)
        while frame is not None and not isinstance(frame.f_locals.get("self"), Module):
            frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
        if frame is not None:
            module = frame.f_locals["self"]
            found.setdefault(id(module), module)
        return write(*arguments, **named)

    return watched
