"""The works over HTTP, against servers that are played: what is sent, and what is made of answers."""

import io
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from ops.load.plan import run
from ops.load.progress import Progress
from ops.prefixes.client import Chat, Said, message
from ops.prefixes.plan import SCALES, NotMeasured, Plan
from ops.prefixes.prompts import Words
from ops.prefixes.served import GATEWAY, SERVER, conversations, first_tokens
from tests.ops.played_chat import Answer, played

WORDS = Words([f"\u0120word{letter}{other}" for letter in "abcdefghijk" for other in "abcdefghijk"])
ASKED = [message("user", "hello")]


def plan(repeats: int) -> Plan:
    return Plan(None, Path(), SCALES["small"], repeats, Progress(Console(file=io.StringIO())))


def said(answer: Answer, **options) -> tuple[Said, dict]:
    async def ask(port: int) -> Said:
        async with Chat(port, "model") as chat:
            return await chat.say(ASKED, 5, **options)

    with played(lambda _body: answer) as chats:
        return run(ask(chats.port)), chats.asked[0]


def test_an_answer_has_its_text_and_what_usage_tells():
    numbers: list[int] = []
    answer, asked = said(Answer(("a", "b", ""), (100, 7, 64)), on_text=numbers.append)
    assert (answer.text, numbers, len(answer.texts_at)) == ("ab", [1, 2], 2)
    assert (answer.prompt_tokens, answer.answer_tokens, answer.cached_tokens) == (100, 7, 64)
    assert answer.first_at == answer.texts_at[0]
    assert asked["stream_options"] == {"include_usage": True}
    assert "logit_bias" not in asked


def test_tokens_that_must_not_come_are_biased_away():
    _answer, asked = said(Answer(), never=(2, 9))
    assert asked["logit_bias"] == {"2": -100, "9": -100}


def test_an_answer_that_ends_at_once_has_had_its_first_token():
    answer, _asked = said(Answer(texts=()))
    assert answer.texts_at == []
    assert answer.first_s >= 0


def test_a_refusal_and_a_broken_answer_are_said_in_words():
    with pytest.raises(NotMeasured, match="503"):
        said(Answer(status=503))
    with pytest.raises(NotMeasured, match="it broke"):
        said(Answer(error="it broke"))
    with pytest.raises(NotMeasured, match="no token"):
        _ = Said(0.0).first_s


def test_each_run_asks_its_questions_on_a_system_prompt_of_its_own_that_both_sides_get():
    with played(lambda _body: Answer()) as ours, played(lambda _body: Answer()) as theirs:
        places = {GATEWAY: (ours.port, "ours"), SERVER: (theirs.port, "theirs")}
        values = first_tokens(plan(2), WORDS, places)
    systems = [[body["messages"][0]["content"] for body in each.asked] for each in (ours, theirs)]
    assert systems[0] == systems[1]
    requests = SCALES["small"].requests
    assert sorted(Counter(systems[0]).values()) == [2, requests, requests]
    assert {len(system.split()) for system in systems[0]} == {SCALES["small"].system}
    questions = [body["messages"][1]["content"] for body in ours.asked[-requests:]]
    assert len(set(questions)) == requests
    assert {body["model"] for body in theirs.asked} == {"theirs"}
    assert {key: len(each) for key, each in values.items()} == dict.fromkeys(values, 2)
    assert values.keys() == {f"{name}.{part}_s" for name in (GATEWAY, SERVER) for part in ("cold", "warm")}


def test_cold_is_the_first_request_of_a_run_and_warm_the_middle_of_the_others(monkeypatch):
    times = iter([9.0, 1.0, 9.0, 1.0, 8.0, 3.0, 2.0, 7.0, 1.0, 4.0])  # a warm-up of two on each side first

    async def say(_chat, _messages, _max_tokens):
        return Said(0.0, first_at=next(times))

    async def connect(_chat):
        pass

    monkeypatch.setattr(Chat, "say", say)
    monkeypatch.setattr(Chat, "connect", connect)
    values = first_tokens(plan(1), WORDS, {GATEWAY: (1, "a"), SERVER: (2, "b")})
    assert {key: each[0] for key, each in values.items()} == {
        f"{GATEWAY}.cold_s": 8.0,
        f"{GATEWAY}.warm_s": 2.5,
        f"{SERVER}.cold_s": 7.0,
        f"{SERVER}.warm_s": 2.5,
    }


def test_of_a_conversation_what_is_in_no_prompt_before_nor_an_answer_is_new():
    """Prompts of 400, 500 and 620 tokens, answers of 16; the second finds all, the third only the first's."""
    tokens = iter([(400, 16, 0), (500, 16, 415), (620, 16, 400)] * 2)
    with played(lambda _body: Answer(("said",), next(tokens))) as server:
        place = (server.port, "model")
        values = conversations(plan(1), WORDS, {GATEWAY: place, SERVER: place})
    assert {key: each for key, each in values.items() if key.startswith(GATEWAY)} == {
        f"{GATEWAY}.prompt_tokens": [1520],
        f"{GATEWAY}.computed_tokens": [400 + 85 + 220],
        f"{GATEWAY}.new_tokens": [400 + 84 + 104],
        f"{GATEWAY}.later_computed_tokens": [85 + 220],
        f"{GATEWAY}.later_new_tokens": [84 + 104],
    }
    roles = [each["role"] for each in server.asked[2]["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    assert server.asked[2]["messages"][2]["content"] == "said"
    lengths = {len(body["messages"][-1]["content"].split()) for body in server.asked}
    assert all(70 <= length <= 90 for length in lengths)
    assert [body["messages"] for body in server.asked[:3]] == [body["messages"] for body in server.asked[3:]]
