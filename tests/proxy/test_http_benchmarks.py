"""What benchmarks ask beside OpenAI's fields: answers that go on to their cap, and a usage in each chunk."""

import pytest

from tests.proxy.small_gateway import CHAT, COMPLETIONS, TOKENIZER, chat, completion, gateway, ids
from tests.waiting import until

ENDPOINTS = pytest.mark.parametrize(
    ("path", "body"), [(CHAT, chat), (COMPLETIONS, completion)], ids=["chat", "completions"]
)
END = TOKENIZER.token_to_id("<|im_end|>")
SAID = [*ids("one"), END, *ids("two"), END, *[END] * 12]
CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}


def spoken(submit):
    """Return what a worker makes of SAID: up to a stop id."""
    ends = [place for place, token in enumerate(SAID) if token in submit.stop_ids]
    return SAID[: ends[0]] if ends else SAID


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path) as running:
        await running.start_worker()
        running.answer = spoken
        yield running


def completion_tokens(answered):
    return answered.body["usage"]["completion_tokens"]


# --- ignore_eos ---------------------------------------------------------------------------------------------


@ENDPOINTS
async def test_an_answer_goes_on_to_its_cap_and_its_special_tokens_are_not_seen(here, path, body):
    asked = {"max_tokens": 15, "ignore_eos": True}
    whole = await here.post(path, body(**asked))
    streamed = await here.post(path, body(**asked, stream=True))
    assert (whole.text, whole.body["choices"][0]["finish_reason"]) == ("onetwo", "length")
    assert completion_tokens(whole) == 15
    assert streamed.streamed() == ("onetwo", "length")
    assert {submit.stop_ids for submit in here.worker.submits} == {()}


@ENDPOINTS
@pytest.mark.parametrize("fields", [{}, {"ignore_eos": False}, {"ignore_eos": None}], ids=str)
async def test_without_it_an_answer_ends_where_the_model_says(here, path, body, fields):
    whole = await here.post(path, body(max_tokens=15, **fields))
    assert (whole.text, whole.body["choices"][0]["finish_reason"]) == ("one", "stop")
    assert completion_tokens(whole) == 3
    assert END in here.worker.submits[0].stop_ids


async def test_a_stop_string_behind_the_models_end_still_ends_it(here):
    whole = await here.post(COMPLETIONS, completion(max_tokens=15, ignore_eos=True, stop="wo"))
    assert (whole.text, whole.body["choices"][0]["finish_reason"]) == ("onet", "stop")
    assert completion_tokens(whole) == 7


async def test_it_goes_on_past_the_models_end_when_a_worker_dies_behind_it(here):
    here.worker.pause_at = 5
    asked = here.asking(CHAT, chat(max_tokens=15, ignore_eos=True))
    await until(lambda: here.paused_at(5))
    await here.replace_worker()
    whole = await asked
    assert (whole.text, completion_tokens(whole)) == ("onetwo", 15)
    (again,) = here.worker.submits
    assert (again.stop_ids, list(again.emitted_ids)) == ((), SAID[:5])


HELD = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    {"guided_choice": ["a", "b"]},
]


@pytest.mark.parametrize("fields", HELD, ids=str)
async def test_an_answer_that_is_held_to_a_grammar_ends_with_it_so_the_wish_is_refused_by_name(here, fields):
    refused = await here.post(CHAT, chat(max_tokens=15, ignore_eos=True, **fields))
    assert (refused.status, refused.error["param"]) == (400, "ignore_eos")
    assert refused.error["message"].startswith("'ignore_eos' can't be had with")
    assert not here.worker.submits
    ordinary = await here.post(CHAT, chat(max_tokens=15, ignore_eos=False, **fields))
    assert ordinary.status == 200


async def test_a_least_number_of_tokens_that_is_met_anyway_is_taken(here):
    whole = await here.post(CHAT, chat(max_completion_tokens=15, min_tokens=15, ignore_eos=True))
    assert completion_tokens(whole) == 15


# --- a usage in each chunk ----------------------------------------------------------------------------------


def usages(streamed):
    """Return each chunk's text and completion tokens, the one without choices as None."""
    return [
        (text_of(event["choices"][0]) if event["choices"] else None, event["usage"]["completion_tokens"])
        for event in streamed.events
        if event != "DONE"
    ]


def text_of(choice):
    return choice["delta"].get("content", "") if "delta" in choice else choice["text"]


@ENDPOINTS
async def test_each_chunk_says_how_many_tokens_had_come_by_then(here, path, body):
    whole = await here.post(path, body(max_tokens=8, ignore_eos=True))
    asked = body(max_tokens=8, ignore_eos=True, stream=True, stream_options=CONTINUOUS)
    streamed = await here.post(path, asked)
    opened = [("", 0)] if path == CHAT else []
    shown = [("o", 1), ("n", 2), ("e", 3), ("t", 5), ("w", 6), ("o", 7)]
    assert usages(streamed) == [*opened, *shown, ("", 8), (None, 8)]
    *chunks, last, _ = streamed.events
    assert (last["choices"], last["usage"]) == ([], whole.body["usage"])
    for usage in (chunk["usage"] for chunk in chunks):
        assert usage["prompt_tokens"] == whole.body["usage"]["prompt_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_it_counts_all_answers_of_the_request_and_never_less_than_before(here):
    here.answer = lambda submit: ids("abc"[: 1 + submit.sampling.choice])
    asked = completion(n=3, max_tokens=8, stream=True, stream_options=CONTINUOUS)
    counts = [tokens for _, tokens in usages(await here.post(COMPLETIONS, asked))]
    assert counts == sorted(counts)
    assert counts[-2:] == [6, 6]


@pytest.mark.parametrize("options", [{"continuous_usage_stats": True}, CONTINUOUS | {"include_usage": False}])
async def test_without_include_usage_no_chunk_has_one(here, options):
    streamed = await here.post(CHAT, chat(max_tokens=8, stream=True, stream_options=options))
    assert streamed.streamed() == ("one", "stop")
    assert all("usage" not in event for event in streamed.events if event != "DONE")
