"""Shows lines as a table, and says below it how they were measured."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Final

from rich.table import Table

from ops.engine.lines import Line
from ops.engine.table import table_under
from ops.prefixes.plan import Scale


def table_of(lines: Sequence[Line], works: Sequence[str], scale: Scale, repeats: int) -> Table:
    """Return a table of the lines; its caption is about these works."""
    headings = ("work", "measured: A / B", "A", "B", "unit", "judged (range)", "aim")
    return table_under("beginnings of prompts", headings, lines, _caption(works, scale, repeats))


def _caption(works: Sequence[str], scale: Scale, repeats: int) -> str:
    """Say what each work is, and what was done to measure it."""
    parts = (_ALWAYS, *(_CAPTIONS[work] for work in works))
    return "\n".join(parts).format(
        repeats=repeats,
        mlx_lm=version("mlx-lm"),
        requests=scale.requests,
        system=scale.system,
        own=f"{scale.own.least} to {scale.own.most}",
        steps=scale.steps,
        turns=scale.turns,
        turn=f"{scale.turn.least} to {scale.turn.most}",
        answer=scale.answer,
        resumed=scale.resumed,
        killed_after=scale.killed_after,
        rows=scale.crowd.rows,
        waves=scale.crowd.waves,
        prompt=scale.crowd.prompt_tokens,
        short=scale.crowd.answer_tokens,
    )


_ALWAYS: Final = """\
Medians of {repeats} runs of each side, in turn, in alternating order; ratios are of runs side by side."""

_CAPTIONS: Final[Mapping[str, str]] = {
    "ttft": """\
ttft: {requests} short questions, one after the other, on a system prompt of {system} tokens that is new in
each run; the first is cold, the median of the others warm. mlx_lm.server is {mlx_lm}'s, as it comes.""",
    "sharing": """\
sharing: rows x tokens they begin with, and {own} of their own. A first row leaves the beginning behind;
then all come at once. Copies: the same engine, each row with what is kept copied into its own caches.
Only decode steps are timed, {steps} of them, once all rows answer. KV bytes: what rows hold at their end.""",
    "conversation": """\
conversation: {turns} turns of {turn} tokens, answers of up to {answer}. Computed: a prompt's tokens less
those that usage calls cached. New: those neither in the prompt before nor in the answer to it, by number; so
what is rendered or cut into tokens in another way this time is computed again, and isn't new.""",
    "resume": """\
resume: SIGKILL when a stream on {resumed} tokens has said {killed_after} pieces. The tail is what is behind
the last whole block of 64.""",
    "unrelated": """\
unrelated: {rows} rows of {prompt} tokens, each different from the first one on, {waves} times; answers of
{short}; timed from the first request until everything is put away.""",
}
