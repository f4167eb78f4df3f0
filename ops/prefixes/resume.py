"""A worker is killed under a long stream: what its next one computes again, with a disk and without."""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ops.chaos.house import House
from ops.load.plan import run
from ops.prefixes.client import Chat, Said, message
from ops.prefixes.plan import Measured, NotMeasured, Plan, Values, in_turn
from ops.prefixes.prompts import Words
from ops.prefixes.telling_worker import Told, read_told
from shared.limits import PREFIX_BLOCK_TOKENS

DISK: Final = "disk"
NO_DISK: Final = "no disk"

_DISK_GB: Final[dict[str, str]] = {DISK: "2", NO_DISK: "0"}
# The breaker isn't the subject here: deaths are forgotten as soon as they happen.
_SETTINGS: Final = {"FOREBAY_WORKER__RESTARTS_MAX": "100", "FOREBAY_WORKER__RESTARTS_WINDOW_S": "1"}


def resume(plan: Plan) -> Values:
    """Kill the worker in mid-stream, in turn with and without a disk; each time with another prompt."""
    words = Words.of(plan.served.path)
    with contextlib.ExitStack() as stack:
        homes = {name: stack.enter_context(_home(plan, name)) for name in (DISK, NO_DISK)}

        def measure(name: str, number: int) -> Measured:
            prompt = words.text(plan.scale.resumed, "resume", number)
            return run(_killed(homes[name], plan, prompt))

        return in_turn("resume", (DISK, NO_DISK), measure, plan, warms_up=False)


@dataclass(frozen=True, slots=True)
class _Home:
    """A gateway, and the file that its workers tell."""

    house: House
    told: Path


@contextlib.contextmanager
def _home(plan: Plan, name: str) -> Iterator[_Home]:
    told = plan.scratch / f"told-{name.replace(' ', '-')}.jsonl"
    worker = (sys.executable, "-P", "-m", "ops.prefixes.telling_worker", str(told))
    settings = {**_SETTINGS, "FOREBAY_WORKER__PREFIX_DISK_GB": _DISK_GB[name]}
    with House(plan.served.path, plan.scratch / f"home-{_DISK_GB[name]}", worker, **settings) as house:
        with plan.progress.phase(f"a gateway with {name} starts"):
            house.open()
        yield _Home(house, told)
        with plan.progress.phase(f"a gateway with {name} ends"):
            house.end("proxy")


async def _killed(home: _Home, plan: Plan, prompt: str) -> Measured:
    killed_at = 0.0

    def kill(number: int) -> None:
        nonlocal killed_at
        if number == plan.scale.killed_after and (worker := home.house.worker()) is not None:
            worker.kill()
            killed_at = time.time()

    async with Chat(home.house.port, plan.served.name) as chat:
        # No end of its own: it has to live until the worker is killed, and some time after that.
        never = plan.served.stop_ids
        said = await chat.say(
            [message("user", prompt)], 2 * plan.scale.killed_after, never=never, on_text=kill
        )
    if not killed_at:
        raise NotMeasured(f"the answer ended after {len(said.texts_at)} texts, before the worker was killed")
    return resumed(said, killed_at, read_told(home.told))


def resumed(said: Said, killed_at: float, told: Sequence[Told]) -> Measured:
    """Return what the attempt after a kill found and computed. NotMeasured if there was none.

    The tail is what is behind the last whole block of all that was prefilled, so it can be nowhere else.
    """
    after = [each for each in told if each.at > killed_at]
    if not after:
        raise NotMeasured("the answer had ended by the time its worker was killed")
    attempt = max(each.attempt for each in after)
    again = [each for each in after if each.attempt == attempt]
    begun = again[0]
    nexts = [moment for moment in said.texts_at if moment > begun.at]
    if not nexts:
        raise NotMeasured("no text came after the worker's death")
    to_have = begun.length - 1
    return {
        "length_tokens": float(to_have),
        "cached_tokens": float(begun.cached),
        "computed_tokens": float(sum(each.tokens for each in again)),
        "tail_tokens": float(to_have % PREFIX_BLOCK_TOKENS),
        "allowed_tokens": float(PREFIX_BLOCK_TOKENS + to_have % PREFIX_BLOCK_TOKENS),
        "began_s": begun.at - killed_at,
        "next_token_s": nexts[0] - killed_at,
        "from_begin_s": nexts[0] - begun.at,
    }
