"""A request that kills the worker, sent again and again by a client that retries: the `poison` scenario."""

import asyncio
import contextlib
import sys
from dataclasses import dataclass
from typing import Any, Final

from rich.table import Table
from tokenizers import Tokenizer

from ops.chaos import checks, timeline, watch
from ops.chaos.client import Client
from ops.chaos.house import House
from ops.chaos.said import Ask, Refused, mixed_asks
from ops.chaos.traffic import again_and_again, kept_up, undisturbed
from ops.load.arrivals import dice, prompt
from ops.load.plan import Figures, Plan, Scenario, rows_table, run, shown_ms
from ops.load.statistics import summary
from worker.journal import Life

# Nothing that an answer or another prompt would say.
_POISON: Final = " zugzwang zugzwang quixotic zugzwang"
_SENDINGS: Final = 10
_SENDINGS_S_MAX: Final = 120.0
_ATTEMPTS_MAX: Final = 3  # what OpenAI's clients do: two retries
_LATENCIES: Final = 200
_BETWEEN_S: Final = 0.02
_BETWEEN_SENDINGS_S: Final = 1.0
_STREAMS: Final = 4
_ASKS: Final = 8
_TOKENS: Final = (12, 32)
_DEATHS_MAX: Final = 2
_REFUSAL: Final = (422, "request_quarantined")


def measure(plan: Plan) -> Figures:
    tokenizer = Tokenizer.from_file(str(plan.folder.path / "tokenizer.json"))
    ids = ",".join(map(str, tokenizer.encode(_POISON, add_special_tokens=False).ids))
    worker = (sys.executable, "-P", "-m", "ops.chaos.poisoned_worker", ids)
    with House(plan.folder.path, plan.scratch / "poison", worker) as house:
        with plan.progress.phase("poison: the gateway starts"):
            house.open()
        figures = run(_measure(plan, house))
    with plan.progress.phase("poison: all of it ends"):
        figures["problems"] += [f"left behind: {line}" for line in house.left_behind()]
    return figures


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of one sending of the poisoned request, and of its retries."""

    endings: tuple[str, ...]
    refusals: tuple[Refused, ...]
    deaths_before: int


async def _measure(plan: Plan, house: House) -> Figures:
    asks = mixed_asks(plan.seed, _ASKS, _TOKENS)
    words = prompt(30, dice(plan.seed, "poison"))
    poison = Ask(-1, f"{words}{_POISON}. {words}", 16)
    async with (
        Client(house.port, plan.folder.name, label="innocent") as innocents,
        Client(house.port, plan.folder.name, label="poison", attempts_max=_ATTEMPTS_MAX) as client,
    ):
        with plan.progress.phase("poison: the innocent answers, undisturbed", told=innocents.told):
            expected = await undisturbed(innocents, asks)
        draw = again_and_again(asks, dice(plan.seed, "innocents"))

        def told() -> str:
            return f"{client.told()}; innocents: {innocents.told()}"

        async with watch.liveness(innocents) as statuses:
            with plan.progress.phase(f"poison: sent {_SENDINGS} times among innocents", told=told):
                async with kept_up(innocents, draw, _STREAMS):
                    sent = await _send_again_and_again(house, client, poison)
            with plan.progress.phase("poison: how fast a 422 is, with nothing beside it"):
                problems = await watch.end_problems(innocents)
                refusals = await _refusals(house, client, poison)
    lives = house.lives()
    problems += [*watch.live_problems(statuses), *checks.answer_problems(innocents.said, expected)]
    # The first sendings wait for the two deaths; how fast a no is shows after that.
    later = [each for one in sent if one.deaths_before >= _deaths(lives) for each in one.refusals]
    beside = [each for each in later if (each.status, each.code) == _REFUSAL]
    return {
        "problems": [*problems, *poison_problems(sent, refusals, lives)],
        "deaths": _deaths(lives),
        "causes": [life.cause for life in lives if life.ended_at is not None],
        "lives": timeline.told(lives),
        "innocents": len(innocents.said),
        "endings": [list(one.endings) for one in sent],
        "refusal_s": {
            "under load": summary([each.took_s for each in beside]),
            "alone": summary([each.took_s for each in refusals]),
        },
    }


async def _send_again_and_again(house: House, client: Client, poison: Ask) -> list[Sent]:
    """Send it, until it is plain that it isn't stopped."""
    sent: list[Sent] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SENDINGS_S_MAX):
            while len(sent) < _SENDINGS and _deaths(house.lives()) <= _DEATHS_MAX:
                sent.append(await _send(house, client, poison))
    return sent


async def _send(house: House, client: Client, poison: Ask) -> Sent:
    await asyncio.sleep(_BETWEEN_SENDINGS_S)
    deaths = _deaths(house.lives())
    said = await client.ask(poison)
    return Sent(said.endings, said.refusals, deaths)


async def _refusals(house: House, client: Client, poison: Ask) -> list[Refused]:
    refusals: list[Refused] = []
    for _ in range(_LATENCIES if _deaths(house.lives()) <= _DEATHS_MAX else 0):
        refusals += (await client.ask(poison)).refusals
        await asyncio.sleep(_BETWEEN_S)
    return refusals


def _deaths(lives: list[Life]) -> int:
    return sum(life.ended_at is not None for life in lives)


def poison_problems(sent: list[Sent], refusals: list[Refused], lives: list[Life]) -> list[str]:
    """Say what is wrong: too many deaths, or another answer than the 422 that is due after the second."""
    problems = [] if refusals else ["it was never refused for good"]
    deaths = _deaths(lives)
    if not 1 <= deaths <= _DEATHS_MAX:
        problems.append(f"the worker died {deaths} times, of one poisoned request")
    others = [life for life in lives if life.cause not in (None, "memory", "planned")]
    problems += [f"epoch {life.epoch} ended by {life.cause}: {life.detail}" for life in others]
    late = [one for one in sent if one.deaths_before >= deaths and one.endings != (_words(),)]
    problems += [f"after the last death it got {', '.join(one.endings)}" for one in late]
    wrong = {f"{each.status} {each.code}" for each in refusals if (each.status, each.code) != _REFUSAL}
    problems += [f"once quarantined it got {each}" for each in sorted(wrong)]
    retried = [one for one in sent if len(one.refusals) > 1 and one.deaths_before >= deaths]
    problems += [f"a 422 was tried again {len(one.refusals) - 1} times" for one in retried]
    return checks.shortened(problems)


def _words() -> str:
    return f"refused {_REFUSAL[0]} {_REFUSAL[1]}"


def table(figures: Figures) -> Table:
    rows = [_row(arm, times) for arm, times in figures["refusal_s"].items()]
    headings = ("422s", "count", "p50", "p99", "max")
    result = rows_table(f"poison: sent {_SENDINGS} times by a client that retries", headings, rows)
    endings = "; ".join(dict.fromkeys(", ".join(each) for each in figures["endings"]))
    result.caption = (
        f"{figures['deaths']} deaths ({', '.join(map(str, figures['causes']))}); it got: {endings}; "
        f"{figures['innocents']} innocent requests meanwhile"
    )
    return result


def _row(arm: str, times: dict[str, Any]) -> tuple[str, ...]:
    return (arm, str(times["count"]), *(shown_ms(times.get(part), 1) for part in ("p50", "p99", "max")))


SCENARIO: Final = Scenario("poison", measure, table)
