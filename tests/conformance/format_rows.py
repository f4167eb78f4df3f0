"""Every family's way to write thoughts and calls, read through every endpoint, whole and streamed."""

import asyncio
import json

from tests.conformance.accumulating import (
    Told,
    chat_stream,
    chat_whole,
    message_stream,
    message_whole,
    response_stream,
    response_whole,
)
from tests.conformance.family_samples import CALLLESS, SAMPLES, TEXT
from tests.conformance.row import Row
from tests.conformance.samples import PARIS, THOUGHT, UTC, chat_tools, message_tools, response_tools
from tests.conformance.world import World

READ = Told(THOUGHT, TEXT, (("get_weather", json.loads(PARIS)), ("get_time", json.loads(UTC))))
THINKS = {"type": "enabled", "budget_tokens": 1024}


async def told(here: World, max_tokens: int = 2000, **fields) -> list[Told]:
    """Ask every endpoint at the same time, whole and streamed; return what each one's client holds."""
    chat = {"tools": chat_tools(), "max_tokens": max_tokens, **fields}
    message = {"tools": message_tools(), "thinking": THINKS, "max_tokens": max_tokens}
    response = {"tools": response_tools(), "max_output_tokens": max_tokens}
    answers = await asyncio.gather(
        here.chat(**chat),
        here.chat(**chat, stream=True),
        here.message(**message),
        here.message(**message, stream=True),
        here.respond(**response),
        here.respond(**response, stream=True),
    )
    readers = (chat_whole, chat_stream, message_whole, message_stream, response_whole, response_stream)
    return [read(answer) for read, answer in zip(readers, answers, strict=True)]


async def answers_are_read(here: World, family: str) -> None:
    """Check that all endpoints tell a family's sample the same, and that nothing of its marks is in that."""
    here.reads(family)
    here.say(SAMPLES.get(family) or CALLLESS[family])
    expected = {
        "think": Told(THOUGHT, TEXT, ()),
        "plain": Told("", TEXT, ()),
    }.get(family, READ)
    all_told = await told(here)
    assert {each.stripped for each in map(_hashable, all_told)} == {_hashable(expected)}
    assert len(set(map(_hashable, all_told))) == 1, "streamed and whole are the same, to the last space"


def _hashable(each: Told) -> Told:
    return Told(
        each.thought, each.text, tuple((name, json.dumps(value)) for name, value in each.calls), each.cut
    )


def _row(family: str) -> Row:
    async def check(here: World) -> None:
        await answers_are_read(here, family)

    source = f"the chat templates of the family {family}, and mlx-lm's parsers of tool calls"
    return Row(f"answers of the family {family} are read", "chat, messages, responses", source, check)


ROWS = [_row(family) for family in (*SAMPLES, *CALLLESS)]
