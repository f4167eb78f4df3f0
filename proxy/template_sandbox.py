"""Jinja's sandbox with a meter: every step, value and call of a template is counted while it renders.

The counting stands in the code that Jinja generates: a step at the beginning of every block of statements, a
size around every value that an expression makes.
"""

from collections.abc import Callable
from types import BuiltinMethodType
from typing import Any, Final

from jinja2 import nodes, pass_environment
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from proxy.template_filters import bounded_filters, call_method, check_format, joined, percent
from proxy.template_meter import TooCostlyError, meter
from shared.limits import TEMPLATE_INTEGER_BITS_MAX

# Passed along with every call in a loop or a block, for functions that ask for the template's context.
_JINJAS_OWN: Final = frozenset({"_loop_vars", "_block_vars"})
_GLOBALS_REFUSED: Final = ("lipsum",)


class _Counting(CodeGenerator):
    """Writes the calls of a meter into a template's code."""

    def blockvisit(self, nodes: Any, frame: Frame) -> None:
        self.writeline("environment.tick()")
        super().blockvisit(nodes, frame)

    def _weighed(self, visit: Callable[..., None], *args: Any) -> None:
        self.write("environment.weighed(")
        visit(*args)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802 (Jinja's name)
        self._weighed(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802 (Jinja's name)
        self._weighed(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802 (Jinja's name)
        if node.ctx == "load":
            self._weighed(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802 (Jinja's name)
        if isinstance(node.arg, nodes.Slice):
            self._weighed(super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 (Jinja's name)
        self.write("environment.texts_joined((")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802 (Jinja's name)
        self.write("(")
        self._weighed(self.visit, node.expr, frame)
        for operand in node.ops:
            self.write(f" {operators[operand.op]} ")
            self._weighed(self.visit, operand.expr, frame)
        self.write(")")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802 (Jinja's name)
        # A loop's own filter may drop everything, and no block is ever entered.
        if node.test is not None:
            counted = nodes.Call(nodes.EnvironmentAttribute("weighed"), [node.iter], [], None, None)
            node.iter = counted.set_lineno(node.lineno).set_environment(self.environment)
        super().visit_For(node, frame)


class _Namespace(Namespace):
    """As Jinja's, but written out it doesn't show what is in it: that may change, and so its size."""

    def __repr__(self) -> str:
        return "<Namespace>"


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox that templates live in; what it renders has to run under a Meter."""

    code_generator_class = _Counting
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, **options: Any) -> None:
        super().__init__(
            finalize=_finalize,
            autoescape=False,  # the text goes to a tokenizer, not to a browser
            optimized=False,  # or constant expressions would be worked out, uncounted, at the start
            **options,
        )
        self.filters = bounded_filters()
        self.globals["namespace"] = _Namespace
        for name in _GLOBALS_REFUSED:
            del self.globals[name]

    # --- what generated code calls ------------------------------------------------------------------------

    def tick(self) -> None:
        meter().spend(1)

    def weighed(self, value: Any) -> Any:
        return meter().weighed(value)

    def texts_joined(self, values: tuple[Any, ...]) -> str:
        return joined("", values)

    # --- what the sandbox does ----------------------------------------------------------------------------

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        here = meter()
        if operator == "%" and isinstance(left, str):
            return here.weighed(percent(left, right))
        if operator == "+":
            here.allow(here.weight(left) + here.weight(right))
        elif operator == "*":
            _check_product(left, right)
        elif operator == "**":
            _check_power(left, right)
        return here.weighed(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        here = meter()
        given = {name: value for name, value in kwargs.items() if name not in _JINJAS_OWN}
        here.allow(sum(map(here.weight, (*args, *given.values()))))
        if isinstance(obj, BuiltinMethodType):
            return here.weighed(call_method(obj.__self__, obj.__name__, args, given))
        return here.weighed(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        inner = super().wrap_str_format(value)
        if inner is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            check_format(value.__self__, *args, *kwargs.values())
            return inner(*args, **kwargs)

        return bounded


@pass_environment
def _finalize(_environment: Any, value: Any) -> Any:
    """Pay for what is written out."""
    return meter().weighed(value)


def _check_product(left: Any, right: Any) -> None:
    here = meter()
    for times, value in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(value, str | list | tuple):
            here.allow(here.weight(value) * max(0, times))


def _check_power(left: Any, right: Any) -> None:
    if (
        isinstance(left, int)
        and isinstance(right, int)
        and left.bit_length() * right > TEMPLATE_INTEGER_BITS_MAX
    ):
        raise TooCostlyError("it raises a number to a power that is too high")
