"""From events to text in turns: a backlog is taken a part at a time, in order, and others run in between."""

import asyncio
import json
from dataclasses import replace
from itertools import chain, pairwise

import pytest

from proxy.admitted import Admitted, AnswerEnded, TokenCame
from proxy.dialects.dialect import Head
from proxy.live_answers import sequences_of
from proxy.stream import EVENTS_PER_TURN_MAX, EventStream, Reply, WholeBody
from proxy.text_model import TextModel
from tests.proxy.small_tokenizers import CHATML, byte_level, write_folder
from tests.proxy.small_worlds import measured

TOKENIZER = byte_level()
TEXT = "".join(f"{number}," for number in range(300))[:1000]
TOKENS = TOKENIZER.encode(TEXT).ids
assert len(TOKENS) == 1000, "a token is a character here"
HEAD = Head("cmpl-1", 0, "m", "f", "default")


def text_of(part):
    return "".join(piece.text for piece in part.pieces)


class Passes:
    """Counts how often the loop comes round while somebody else is at work."""

    def __init__(self):
        self.count = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self):
        while True:
            self.count += 1
            await asyncio.sleep(0)

    def end(self):
        self._task.cancel()


@pytest.fixture
async def passes():
    passes = Passes()
    yield passes
    passes.end()


class Written:
    """Takes what a recording would, and says how many passes there had been."""

    def __init__(self, passes):
        self.parts = []
        self.at = []
        self.spoiled = False
        self._passes = passes

    def write(self, blocks):
        self.parts.append(blocks)
        self.at.append(self._passes.count)


@pytest.fixture
def admitted():
    """A request whose 1,000 tokens and end came while nobody took any."""
    asked = measured(max_tokens=len(TOKENS))
    events = asyncio.Queue()
    for token in TOKENS:
        events.put_nowait(TokenCame(0, token))
    events.put_nowait(AnswerEnded(0, "length"))
    sequences = tuple(sequences_of(asked, "r", events))
    return Admitted(asked, sequences, events, 0.0, 0.0, lambda _sequence, *, complete: None, "lane")


@pytest.fixture
def reply(admitted, tmp_path):
    return Reply(admitted, TextModel.load(write_folder(tmp_path, TOKENIZER, chat_template=CHATML)))


async def test_a_turn_takes_so_many_events_and_the_next_one_goes_on_with_the_rest(admitted, reply, passes):
    turns, at, left = [], [], admitted.events.qsize()
    while not reply.complete:
        turns.append(await reply.parts())
        at.append(passes.count)
        taken, left = left - admitted.events.qsize(), admitted.events.qsize()
        assert 1 <= taken <= EVENTS_PER_TURN_MAX
        assert taken == EVENTS_PER_TURN_MAX or reply.complete
    assert "".join(map(text_of, chain.from_iterable(turns))) == TEXT
    assert turns[-1][-1].reason == "length"
    assert all(earlier < later for earlier, later in pairwise(at))


async def test_news_of_an_empty_queue_is_waited_for(admitted, reply):
    while not admitted.events.empty():
        admitted.events.get_nowait()
    waiting = asyncio.create_task(reply.parts())
    await asyncio.sleep(0)
    assert not waiting.done()
    admitted.events.put_nowait(TokenCame(0, TOKENS[0]))
    admitted.events.put_nowait(TokenCame(0, TOKENS[1]))
    assert "".join(map(text_of, await waiting)) == TEXT[:2]


async def test_a_stream_writes_a_backlog_in_parts_with_others_turns_in_between(admitted, reply, passes):
    written = Written(passes)
    await EventStream(reply, HEAD, admitted, float).record(written)
    parts = [part.count(b'"text":"') for part in written.parts[:-1]]
    assert max(parts) <= EVENTS_PER_TURN_MAX
    assert len(parts) >= len(TOKENS) / EVENTS_PER_TURN_MAX
    assert b"".join(written.parts).endswith(b"data: [DONE]\n\n")
    assert all(earlier < later for earlier, later in pairwise(written.at[:-1]))


async def test_a_whole_body_is_gathered_in_turns_and_counts_until_it_is_made(admitted, reply, passes):
    whole = WholeBody(reply, HEAD, admitted)
    task = asyncio.create_task(whole.gather())
    held = []
    while not task.done():
        held.append(whole.held_bytes)
        await asyncio.sleep(0)
    assert f'"text":"{TEXT}"'.encode() in task.result()
    assert max(held) > len(TEXT) / 2
    assert held[:2] != held[-2:]
    assert whole.held_bytes == 0
    assert passes.count >= len(TOKENS) / EVENTS_PER_TURN_MAX


async def test_each_chunk_of_a_backlog_says_the_tokens_up_to_its_own(admitted, tmp_path, passes):
    asked = replace(admitted.measured.parsed, stream=True, include_usage=True, continuous_usage=True)
    admitted.measured = replace(admitted.measured, parsed=asked)
    reply = Reply(admitted, TextModel.load(write_folder(tmp_path, TOKENIZER, chat_template=CHATML)))
    written = Written(passes)
    await EventStream(reply, HEAD, admitted, float).record(written)
    *events, done, rest = b"".join(written.parts).split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    counts = [json.loads(event.removeprefix(b"data: "))["usage"]["completion_tokens"] for event in events]
    assert counts == [*range(1, len(TOKENS) + 1), len(TOKENS), len(TOKENS)]
