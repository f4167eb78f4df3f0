"""Print the table: a row each with its source, whether it passes, and the share of those that do."""

import argparse
import asyncio
import logging
import sys

import structlog

from tests.conformance.table import TABLE, Outcome, own_world, tried


async def outcomes(word: str) -> list[Outcome]:
    async with own_world() as here:
        rows = [row for row in TABLE if word in f"{row.endpoint} {row.name} {row.source}"]
        return [await tried(row, here) for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("word", nargs="?", default="", help="only rows that have it in name, URL or source")
    parser.add_argument("--failing", action="store_true", help="only rows that fail")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    found = asyncio.run(outcomes(asked.word))
    for each in found:
        if each.problem or not asked.failing:
            show(each)
    passed = sum(not each.problem for each in found)
    print(f"\n{passed} of {len(found)} rows pass: {passed / max(1, len(found)):.1%}")
    return int(any(bool(each.problem) != bool(each.row.known) for each in found))


def show(outcome: Outcome) -> None:
    row = outcome.row
    print(f"{'FAIL' if outcome.problem else 'ok  '}  {row.endpoint:22} {row.name}  [{row.source}]")
    if outcome.problem:
        print(f"      {row.known or outcome.problem}")


if __name__ == "__main__":
    sys.exit(main())
