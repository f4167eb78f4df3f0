"""/tokenize and /detokenize: the ids that a request is charged for, and back; keys and bounds apply."""

import asyncio

import pytest

from shared.limits import TOKENIZING_MAX
from tests.proxy.small_gateway import CHAT, COMPLETIONS, TEXT, TOKENIZER, chat, completion, gateway, ids

TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
MESSAGES = chat()["messages"]


@pytest.fixture
async def here(tmp_path):
    """A gateway without a worker: none is needed."""
    async with gateway(tmp_path) as running:
        yield running


async def refused(here, path, body, param, status=400):
    answered = await here.post(path, body)
    assert (answered.status, answered.error["param"]) == (status, param)
    return answered.error["message"]


async def test_a_text_is_its_ids(here):
    answered = await here.post(TOKENIZE, {"prompt": TEXT})
    assert answered.status == 200
    assert answered.body == {"count": 12, "max_model_len": 64, "tokens": ids(TEXT), "token_strs": None}


async def test_the_vocabularys_own_words_come_on_request(here):
    answered = await here.post(TOKENIZE, {"prompt": "a<|im_end|>é", "return_token_strs": True})
    assert answered.body["token_strs"] == ["a", "<|im_end|>", "Ã", "©"]


async def test_a_count_is_what_a_request_is_charged(here):
    await here.start_worker()
    for path, body, asked in (
        (CHAT, chat(max_tokens=1), {"messages": MESSAGES}),
        (CHAT, chat(max_tokens=1, temperature=0), chat(max_tokens=1, temperature=0)),
        (COMPLETIONS, completion(max_tokens=1), {"prompt": completion()["prompt"]}),
    ):
        used = (await here.post(path, body)).body["usage"]["prompt_tokens"]
        counted = (await here.post(TOKENIZE, asked)).body
        assert counted["count"] == used == len(counted["tokens"])
        assert here.worker.submits[-1].prompt_ids == tuple(counted["tokens"])


async def test_ids_are_a_text_again_and_special_ones_are_shown_unless_unwanted(here):
    given = [*ids(TEXT), TOKENIZER.token_to_id("<|im_end|>")]
    assert (await here.post(DETOKENIZE, {"tokens": given})).body == {"prompt": TEXT + "<|im_end|>"}
    plain = {"tokens": given, "skip_special_tokens": True, "model": "small"}
    assert (await here.post(DETOKENIZE, plain)).body == {"prompt": TEXT}
    assert (await here.post(DETOKENIZE, {"tokens": []})).body == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TOKENIZE, {}, "prompt"),
        (TOKENIZE, {"prompt": "a", "messages": MESSAGES}, "prompt"),
        (TOKENIZE, {"prompt": ""}, "prompt"),
        (TOKENIZE, {"prompt": ["a"]}, "prompt"),
        (TOKENIZE, {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        (TOKENIZE, {"prompt": "a", "temperature": 1}, "temperature"),
        (TOKENIZE, {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        (TOKENIZE, {"messages": MESSAGES, "return_token_strs": "yes"}, "return_token_strs"),
        (TOKENIZE, {"messages": MESSAGES, "temperature": 9}, "temperature"),
        (TOKENIZE, {"messages": []}, "messages"),
        (TOKENIZE, {"messages": MESSAGES, "no_such": 1}, "no_such"),
        (DETOKENIZE, {}, "tokens"),
        (DETOKENIZE, {"tokens": [1.5]}, "tokens.0"),
        (DETOKENIZE, {"tokens": [True]}, "tokens.0"),
        (DETOKENIZE, {"tokens": [-1]}, "tokens.0"),
        (DETOKENIZE, {"tokens": [1, 999]}, "tokens"),
        (DETOKENIZE, {"tokens": [1 << 40]}, "tokens.0"),
        (DETOKENIZE, {"tokens": "a"}, "tokens"),
    ],
)
async def test_a_wrong_field_is_refused_by_name(here, path, body, param):
    await refused(here, path, body, param)


async def test_another_models_name_is_a_404(here):
    for path, body in ((TOKENIZE, {"prompt": "a"}), (TOKENIZE, chat()), (DETOKENIZE, {"tokens": [1]})):
        await refused(here, path, {**body, "model": "gpt-4"}, "model", 404)


async def test_a_text_longer_than_the_context_is_counted_but_for_hopeless_ones(here):
    assert (await here.post(TOKENIZE, {"prompt": "x" * 1000})).body["count"] == 1000
    assert "4097 characters" in await refused(here, TOKENIZE, {"prompt": "x" * (64 * 64 + 1)}, "prompt")
    tools = [{"type": "function", "function": {"name": "a", "description": "x" * 4096}}]
    await refused(here, TOKENIZE, {"messages": MESSAGES, "tools": tools}, "messages")


async def test_a_special_beginning_is_left_out_on_request(here):
    body = {"prompt": "a", "add_special_tokens": False}
    assert (await here.post(TOKENIZE, body)).body["tokens"] == ids("a")


async def test_keys_and_their_quotas_apply(tmp_path):
    async with gateway(tmp_path) as here:
        headers = here.add_key("one", requests_per_minute=2)
        other = here.add_key("other", models=("gpt-4",))
        await here.proxy.policy.reload(lambda *_: None)
        assert (await here.post(TOKENIZE, {"prompt": "a"})).status == 401
        assert (await here.post(DETOKENIZE, {"tokens": [1]})).status == 401
        assert (await here.post(DETOKENIZE, {"tokens": [1]}, headers=other)).status == 403
        statuses = [(await here.post(TOKENIZE, {"prompt": "a"}, headers=headers)).status for _ in range(3)]
        assert statuses == [200, 200, 429]


async def test_more_at_once_than_may_be_are_told_to_come_back(here):
    desk = here.proxy.measurer
    free = asyncio.Event()

    async def waits(*_):
        await free.wait()
        return ()

    desk.encoded = waits
    asked = [here.asking(TOKENIZE, {"prompt": "a"}) for _ in range(TOKENIZING_MAX + 1)]
    done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result().status for task in done] == [503]
    assert done.pop().result().headers["Retry-After"]
    free.set()
    statuses = sorted(answered.status for answered in await asyncio.gather(*asked))
    assert statuses == [200] * TOKENIZING_MAX + [503]
