"""Shows what the doctor found: grouped lines, or JSON. Words say a verdict; colour only repeats it."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ops.doctor.checks import Looked
from ops.doctor.finding import Finding, Verdict

_VERDICT_CHARS: Final = 4  # all groups have their words in one line
_STYLES: Final[dict[Verdict, str]] = {"good": "green", "warn": "yellow", "bad": "bold red"}


def counts(looked: Sequence[Looked]) -> dict[Verdict, int]:
    """Count the verdicts, the worst first."""
    counted = Counter(finding.verdict for each in looked for finding in each.findings)
    return {verdict: counted[verdict] for verdict in ("bad", "warn", "good")}


def show(looked: Sequence[Looked], console: Console) -> None:
    for group, members in groupby(looked, key=lambda each: each.group):
        findings = [finding for each in members for finding in each.findings]
        if findings:
            console.print(Text(group, style="bold"))
            console.print(Padding(_table(findings), (0, 0, 1, 2)))
    console.print(_summary(counts(looked)))


def _table(findings: Sequence[Finding]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=_VERDICT_CHARS)
    # Long paths are broken, never cut.
    table.add_column(overflow="fold")
    for finding in findings:
        # Text, because what was read is no markup.
        table.add_row(Text(finding.verdict, style=_STYLES[finding.verdict]), Text(finding.says))
        if finding.do:
            table.add_row("", Text(f"-> {finding.do}", style="italic"))
    return table


def _summary(counted: dict[Verdict, int]) -> Text:
    words = ", ".join(f"{count} {verdict}" for verdict, count in counted.items())
    if counted["bad"]:
        return Text(f"{words}. What is bad has to be mended.", style=_STYLES["bad"])
    if counted["warn"]:
        return Text(f"{words}. It should run; look at what is warned of.", style=_STYLES["warn"])
    return Text(f"{words}. All is well.", style=_STYLES["good"])


def as_json(looked: Sequence[Looked]) -> str:
    """Return {"ok", "counts", "findings": [{"group", "check", "verdict", "says", "do"}]}."""
    counted = counts(looked)
    findings = [{"group": each.group, **asdict(finding)} for each in looked for finding in each.findings]
    whole = {"ok": not counted["bad"], "counts": counted, "findings": findings}
    return json.dumps(whole, indent=2, ensure_ascii=False)
