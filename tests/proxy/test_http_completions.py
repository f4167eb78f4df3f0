"""What only completions have, over HTTP: echoes, texts to fill in between, and prompts of all kinds."""

import pytest
from openai.types import Completion
from tokenizers import AddedToken

from proxy.fill_in import FillIn
from tests.proxy.small_gateway import CHAT, COMPLETIONS, TEXT, chat, completion, gateway, ids
from tests.proxy.small_tokenizers import byte_level
from tests.proxy.test_bodies import unknown_fields

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
STARCODER = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path) as running:
        await running.start_worker()
        yield running


async def test_an_echo_begins_each_answer_with_its_own_prompt(here):
    body = completion(prompt=["a b", "ü"], n=2, max_tokens=20, echo=True)
    whole = await here.post(COMPLETIONS, body)
    streamed = await here.post(COMPLETIONS, {**body, "stream": True})
    parsed = Completion.model_validate(whole.body, strict=True)
    assert unknown_fields(parsed) == []
    expected = ["a b" + TEXT, "a b" + TEXT, "ü" + TEXT, "ü" + TEXT]
    assert [choice.text for choice in parsed.choices] == expected
    assert [streamed.streamed(index) for index in range(4)] == [(text, "stop") for text in expected]
    assert whole.body["usage"]["completion_tokens"] == 4 * len(ids(TEXT))


async def test_an_echo_is_not_searched_for_stop_strings(here):
    answered = await here.post(COMPLETIONS, completion(prompt="no h", max_tokens=20, echo=True, stop="h"))
    assert answered.text == "no h"


async def test_a_suffix_is_refused_by_a_model_that_cannot_fill_in(here):
    answered = await here.post(COMPLETIONS, completion(suffix="b"))
    assert (answered.status, answered.error["param"]) == (400, "suffix")
    assert not here.worker.submits


async def test_a_suffix_reaches_a_model_that_can_fill_in(here):
    text_model = here.proxy.measurer._text_model
    text_model._fill_in = FillIn(first=1, last=2, answer=3)
    answered = await here.post(COMPLETIONS, completion(prompt="ab", suffix="cd", max_tokens=20))
    assert (answered.status, answered.text) == (200, TEXT)
    (submit,) = here.worker.submits
    assert submit.prompt_ids == (1, *ids("ab"), 2, *ids("cd"), 3)


@pytest.mark.parametrize("words", [QWEN, STARCODER])
def test_a_tokenizers_words_for_filling_in_are_found(words):
    tokenizer = byte_level()
    assert FillIn.of(tokenizer) is None
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in words[:2]])
    assert FillIn.of(tokenizer) is None
    tokenizer.add_special_tokens([AddedToken(words[2], special=True)])
    first, last, answer = map(tokenizer.token_to_id, words)
    assert FillIn.of(tokenizer).ids(tokenizer, "a", "é") == (first, *ids("a"), last, *ids("é"), answer)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_too_many_tokens_are_refused_by_the_name_that_the_client_gave_them(here, name):
    answered = await here.post(CHAT, chat(**{name: 60}))
    assert (answered.status, answered.error["param"]) == (400, name)
    assert answered.error["code"] == "context_length_exceeded"


async def test_the_fingerprint_changes_with_the_workers_life(here):
    async def fingerprint():
        return (await here.post(CHAT, chat(max_tokens=20))).body["system_fingerprint"]

    first = await fingerprint()
    assert first == await fingerprint()
    assert here.model.fingerprint in first
    await here.replace_worker()
    second = await fingerprint()
    assert second != first
    assert here.model.fingerprint in second
