"""Penalties, logit biases and log probabilities, asked for by OpenAI's own client of a real gateway."""

import math

import openai
import pytest

from tests.served.client import MODEL

pytestmark = [pytest.mark.served, pytest.mark.timeout(180)]

HELLO = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
LOOP = "la la la la la la la la"


@pytest.fixture(scope="module")
def client(gateway):
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def completed(client, prompt=LOOP, **fields):
    """Return the only choice of a greedy completion."""
    fields = {"temperature": 0, "max_tokens": 8, **fields}
    return client.completions.create(model=MODEL, prompt=prompt, **fields).choices[0]


@pytest.fixture(scope="module")
def plain(client):
    """What the model goes on with by itself: the loop."""
    return completed(client, max_tokens=14, logprobs=0)


def spelt(content):
    """Return the bytes of a chat's entries, put together; special tokens have none."""
    return b"".join(bytes(each.bytes or ()) for each in content)


# --- penalties ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "penalty",
    [
        {"frequency_penalty": 2},
        {"presence_penalty": 2, "frequency_penalty": 2},
        {"extra_body": {"repetition_penalty": 2}},
    ],
    ids=["frequency", "both", "repetition"],
)
def test_a_penalty_keeps_a_loop_from_going_on(client, plain, penalty):
    other = completed(client, max_tokens=14, logprobs=0, **penalty)
    assert len(set(other.logprobs.tokens)) > len(set(plain.logprobs.tokens))


def test_penalties_that_are_neutral_change_nothing(client, plain):
    neutral = {"presence_penalty": 0, "frequency_penalty": 0, "extra_body": {"repetition_penalty": 1}}
    assert completed(client, max_tokens=14, **neutral).text == plain.text


# --- biases -------------------------------------------------------------------------------------------------

WORD = 504  # " The"
OTHER = 3575  # " capital"


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_bias_of_a_hundred_forces_a_token_and_one_of_minus_a_hundred_bans_it(client, temperature):
    forced = completed(client, max_tokens=5, temperature=temperature, logit_bias={str(WORD): 100}, logprobs=0)
    (word,) = set(forced.logprobs.tokens)
    assert forced.text == word * 5
    both = {str(WORD): -100, str(OTHER): 100}
    banned = completed(client, max_tokens=5, temperature=temperature, logit_bias=both, logprobs=0)
    assert word not in banned.logprobs.tokens
    assert len(set(banned.logprobs.tokens)) == 1


# --- log probabilities --------------------------------------------------------------------------------------


def test_a_greedy_token_is_its_own_likeliest_alternative(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, temperature=0, max_tokens=12, logprobs=True, top_logprobs=5
    )
    content = answer.choices[0].logprobs.content
    assert spelt(content).decode() == answer.choices[0].message.content
    for each in content:
        assert len(each.top_logprobs) == 5
        assert (each.top_logprobs[0].token, each.top_logprobs[0].logprob) == (each.token, each.logprob)
        numbers = [top.logprob for top in each.top_logprobs]
        assert numbers == sorted(numbers, reverse=True)
        assert sum(map(math.exp, numbers)) <= 1.001


def test_they_are_the_models_own_whatever_the_bias_and_the_temperature(client):
    plain = completed(client, logprobs=3, max_tokens=1).logprobs
    bent = completed(client, logprobs=3, max_tokens=1, temperature=2, logit_bias={str(WORD): 100}).logprobs
    best = max(plain.top_logprobs[0], key=plain.top_logprobs[0].get)
    assert bent.top_logprobs[0][best] == pytest.approx(plain.top_logprobs[0][best], abs=1e-3)
    assert bent.token_logprobs[0] < plain.token_logprobs[0]


@pytest.mark.parametrize("stop", [None, " is"])
def test_streamed_and_whole_say_the_same(client, stop):
    fields = {"model": MODEL, "messages": HELLO, "temperature": 0, "max_tokens": 12, "stop": stop}
    whole = client.chat.completions.create(**fields, logprobs=True, top_logprobs=2)
    chunks = client.chat.completions.create(**fields, logprobs=True, top_logprobs=2, stream=True)
    streamed = [
        each
        for chunk in chunks
        if chunk.choices[0].logprobs is not None
        for each in chunk.choices[0].logprobs.content
    ]
    content = whole.choices[0].logprobs.content
    assert spelt(content).decode() == whole.choices[0].message.content
    assert [(each.token, each.bytes) for each in streamed] == [(each.token, each.bytes) for each in content]
    for mine, other in zip(streamed, content, strict=True):
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert [top.token for top in mine.top_logprobs] == [top.token for top in other.top_logprobs]


def test_a_completions_offsets_point_at_its_tokens(client):
    choice = completed(client, prompt="Once upon a time", logprobs=1)
    places = zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True)
    assert all(choice.text[offset:].startswith(token) for token, offset in places if "\\x" not in token)


def test_two_choices_have_log_probabilities_of_their_own(client):
    answer = client.completions.create(
        model=MODEL, prompt=["The sun", "The sea"], n=2, seed=7, temperature=1.2, max_tokens=8, logprobs=1
    )
    assert len(answer.choices) == 4
    for choice in answer.choices:
        assert "".join(choice.logprobs.tokens) == choice.text or "\\x" in "".join(choice.logprobs.tokens)
        assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.top_logprobs)
    assert len({tuple(choice.logprobs.token_logprobs) for choice in answer.choices}) == 4
    assert answer.usage.completion_tokens == sum(len(choice.logprobs.tokens) for choice in answer.choices)
