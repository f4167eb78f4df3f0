"""OpenAI's own client, unchanged, against a real gateway."""

import openai
import pytest

from tests.served.client import MODEL

pytestmark = [pytest.mark.served, pytest.mark.timeout(180)]

HELLO = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest.fixture(scope="module")
def client(gateway):
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_a_chat_answer_comes_whole(client):
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, max_tokens=30)
    assert answer.object == "chat.completion"
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_chat_answer_says_the_same_and_ends_with_its_usage(client):
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, max_tokens=30)
    chunks = list(
        client.chat.completions.create(
            model="demo",
            messages=HELLO,
            temperature=0,
            max_tokens=30,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage


def test_completions_take_texts_and_ids_and_answer_each(client):
    one = client.completions.create(model=MODEL, prompt="Once upon a time", temperature=0, max_tokens=8)
    other = client.completions.create(model=MODEL, prompt="The sun is", temperature=0, max_tokens=8)
    both = client.completions.create(
        model=MODEL, prompt=["Once upon a time", "The sun is"], temperature=0, max_tokens=8
    )
    assert [choice.text for choice in both.choices] == [one.choices[0].text, other.choices[0].text]
    assert [choice.index for choice in both.choices] == [0, 1]
    by_ids = client.completions.create(model=MODEL, prompt=[504, 3575, 314], max_tokens=2)
    assert by_ids.usage.prompt_tokens == 3
    assert by_ids.choices[0].finish_reason == "length"
    streamed = client.completions.create(
        model=MODEL, prompt="Once upon a time", temperature=0, max_tokens=8, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in streamed) == one.choices[0].text


def test_a_stop_string_ends_the_text_before_it(client):
    whole = client.completions.create(model=MODEL, prompt="1, 2, 3,", temperature=0, max_tokens=12)
    text = whole.choices[0].text
    stop = text[5:8]
    for stream in (False, True):
        answer = client.completions.create(
            model=MODEL, prompt="1, 2, 3,", temperature=0, max_tokens=12, stop=[stop, "zzz"], stream=stream
        )
        chunks = list(answer) if stream else [answer]
        assert "".join(chunk.choices[0].text for chunk in chunks) == text[: text.index(stop)]
        assert chunks[-1].choices[0].finish_reason == "stop"


def test_two_choices_are_distinct_and_a_seed_brings_them_back(client):
    def two() -> list[str]:
        answer = client.chat.completions.create(
            model=MODEL, messages=HELLO, n=2, seed=7, temperature=1.2, max_tokens=8
        )
        return [choice.message.content for choice in answer.choices]

    first = two()
    assert first[0] != first[1]
    assert two() == first


def test_the_models_are_listed_with_what_is_true_of_them(client):
    models = client.models.list().data
    assert [model.id for model in models] == [MODEL, "demo"]
    facts = models[0].model_extra["forebay"]
    assert facts["context_tokens"] == 8192
    assert facts["batches"] is True
    assert client.models.retrieve("demo").id == "demo"


def test_errors_are_raised_as_the_right_classes(client):
    cases = [
        (openai.NotFoundError, {"model": "gpt-4", "messages": HELLO}),
        (openai.BadRequestError, {"model": MODEL, "messages": []}),
        (openai.BadRequestError, {"model": MODEL, "messages": HELLO, "max_tokens": 9000}),
        (openai.BadRequestError, {"model": MODEL, "messages": HELLO, "temperature": 3}),
        (openai.BadRequestError, {"model": MODEL, "messages": HELLO, "stream": True, "seed": 2**70}),
    ]
    for kind, fields in cases:
        with pytest.raises(kind) as caught:
            client.chat.completions.create(**fields)
        assert caught.value.body["message"]
        assert caught.value.response.headers["x-should-retry"] == "false"


def test_a_prompt_over_the_context_is_refused_with_both_numbers(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=[5] * 8192, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"
    assert "8192" in caught.value.message
    at_the_cap = client.completions.create(model=MODEL, prompt=[5] * 100, max_tokens=3)
    assert at_the_cap.choices[0].finish_reason == "length"
