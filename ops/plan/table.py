"""A plan for people, 80 columns wide: what the model costs, what fits, and what to set for it."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops.plan.record import Plan
from ops.plan.sizes import in_words, tokens_in_words
from shared.limits import MIB, SLOTS_MAX


def show(plan: Plan, console: Console) -> None:
    """Print a plan."""
    _head(plan, console)
    console.print(_memory(plan))
    console.print()
    console.print(_fits(plan))
    if not plan.model.batches:
        _say(console, f"One row runs at a time: {plan.model.why_not}")
    _end(plan, console)
    for note in (plan.machine.assumed, *plan.model.notes):
        if note:
            _say(console, f"Note: {note}.")


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style))


def _head(plan: Plan, console: Console) -> None:
    model, machine = plan.model, plan.machine
    rows = "rows run side by side" if model.batches else "one row at a time"
    _say(console, f"{model.name} on {machine.name}", "bold")
    _say(console, f"family {model.family}, context up to {tokens_in_words(model.context_tokens)}")
    _say(console, f"caches: {model.caches}; {rows}")
    console.print()


def _memory(plan: Plan) -> Table:
    model, machine, planned = plan.model, plan.machine, plan.planned
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    asked = f"{planned.streams} x {tokens_in_words(planned.context_tokens)}"
    bits = f"at {model.kv_bits} bits" if model.kv_bits else "not quantised"
    table.add_row("memory", in_words(machine.memory_bytes), f"working set {in_words(machine.usable_bytes)}")
    table.add_row(
        "worker may hold", in_words(machine.limit_bytes), f"memory_fraction {machine.memory_fraction:g}"
    )
    table.add_row("weights", in_words(model.weights_bytes), f"by {model.weights_from}")
    table.add_row("set aside", in_words(planned.reserve_bytes), "for forward passes (an estimate)")
    table.add_row("left for streams", in_words(planned.budget_bytes), "the KV budget")
    table.add_row("a token", in_words(model.kv_bytes_per_token), f"keys and values, {bits}")
    if model.window_tokens:
        words = f"the last {model.window_tokens} tokens, {in_words(model.window_bytes_per_token)} each"
        table.add_row("window", in_words(planned.window_bytes), words)
    if model.fixed_bytes_per_row:
        table.add_row("fixed state", in_words(model.fixed_bytes_per_row), "of a stream, of any length")
    table.add_row("a stream", in_words(planned.stream_bytes), f"of {tokens_in_words(planned.context_tokens)}")
    table.add_row(asked, in_words(planned.asked_bytes), "all of them at their longest")
    if planned.headroom_bytes >= 0:
        table.add_row(
            "headroom", in_words(planned.headroom_bytes), "for beginnings of prompts, and more rows"
        )
    return table


def _fits(plan: Plan) -> Table:
    table = Table(title="What fits, if slots and context_tokens say so", title_justify="left")
    for name in ("context", "streams", "a stream", "all of them", "set aside"):
        table.add_column(name, justify="right", no_wrap=True)
    for fit in plan.table:
        streams = f"{fit.streams}" if fit.streams < SLOTS_MAX else f"{fit.streams} (most)"
        table.add_row(
            tokens_in_words(fit.context_tokens),
            streams if fit.streams else "none",
            in_words(fit.stream_bytes),
            in_words(fit.streams * fit.stream_bytes) if fit.streams else "",
            in_words(fit.reserve_bytes) if fit.streams else "",
        )
    return table


def _end(plan: Plan, console: Console) -> None:
    if plan.verdict == "fits":
        needed_mb = -(-plan.planned.asked_bytes // MIB)
        _say(console, "It fits. In forebay.toml:", "bold green")
        _say(console, "\n[worker]")
        for name in ("slots", "context_tokens", "kv_bits"):
            _say(console, f"{name} = {plan.settings[name]}")
        _say(
            console,
            f"# kv_budget_mb = {plan.settings['kv_budget_mb']}   # so by itself; {needed_mb} at least\n",
        )
        if plan.planned.warning:
            _say(console, f"Tight: {plan.planned.warning}.", "yellow")
        return
    _say(console, f"It doesn't fit: {too_large(plan)}.", "bold red")
    if plan.ways_out:
        _say(console, "It would with any one of these:")
    for way in plan.ways_out:
        _say(console, f"  * {way.change}")
    if not plan.ways_out:
        _say(console, "No single change makes it fit: a smaller model, or a more quantised one, would.")


def too_large(plan: Plan) -> str:
    """Say in words what doesn't fit."""
    if plan.model.weights_bytes >= plan.machine.limit_bytes:
        return (
            f"its weights alone take {in_words(plan.model.weights_bytes)}, and the worker may hold"
            f" {in_words(plan.machine.limit_bytes)}"
        )
    if not plan.model.batches and plan.planned.streams > 1:
        return f"one row runs at a time: {plan.model.why_not}"
    if plan.planned.fits:
        return f"the model's context ends at {plan.model.context_tokens} tokens"
    return (
        f"{plan.planned.streams} streams of {tokens_in_words(plan.planned.context_tokens)} take"
        f" {in_words(plan.planned.asked_bytes)}, and {in_words(plan.planned.budget_bytes)} are left for them"
    )
