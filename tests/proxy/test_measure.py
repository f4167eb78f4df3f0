"""Measuring: ids, caps, and refusals that say both numbers."""

import threading
from dataclasses import replace

import pytest

from proxy.answer_bytes import entry_bytes
from proxy.measure import Measurer, refuse_hopeless
from proxy.request import ChatPrompt, IdsPrompt, Parsed, TextPrompt
from proxy.text_model import TextModel
from shared.config import ProxySettings
from shared.errors import ContextTooLong, InvalidRequest
from shared.lane_settings import LaneSettings
from shared.prefix_chain import keys_of, name_of, root_key
from shared.sampling import LogitBias, Sampling
from tests.proxy.small_tokenizers import CHATML, byte_level, write_folder
from tests.proxy.small_worlds import FINGERPRINT, facts, ticket

CONTEXT = 32


def parsed(*prompts, max_tokens=None, choices=1, stream=False, **sampling):
    endpoint = "chat" if isinstance(prompts[0], ChatPrompt) else "completions"
    drawn = Sampling(**sampling)
    return Parsed(endpoint, "m", prompts, choices, max_tokens, drawn, (), stream=stream, include_usage=False)


def chat(content):
    return ChatPrompt(({"role": "user", "content": content},))


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path, byte_level(), chat_template=CHATML)


@pytest.fixture
def measurer(folder):
    measurer = Measurer(TextModel.load(folder), folder, ProxySettings())
    yield measurer
    measurer.close()


LANE = LaneSettings(name="plain", max_tokens_default=20)
TICKET = ticket(LANE, context_tokens=CONTEXT)


async def measure(measurer, request):
    refuse_hopeless(request, TICKET)
    return await measurer.measure(request, TICKET)


async def refusal_of(measurer, request, kind=ContextTooLong):
    with pytest.raises(kind) as refusal:
        await measure(measurer, request)
    return refusal.value


async def test_each_prompt_gets_its_ids_and_its_own_cap(measurer):
    request = parsed(TextPrompt("abc"), IdsPrompt((5, 6)), TextPrompt("x" * 30))
    measured = await measure(measurer, request)
    assert measured.parsed is request
    assert [len(ids) for ids in measured.prompt_ids] == [3, 2, 30]
    assert measured.prompt_ids[1] == (5, 6)
    assert measured.max_tokens == (20, 20, 2)


async def test_a_chat_is_measured_by_its_template(measurer, folder):
    measured = await measure(measurer, parsed(chat("Hi")))
    assert measured.prompt_ids == (TextModel.load(folder).encode_chat(chat("Hi")).ids,)


@pytest.mark.parametrize("max_tokens", [1, 28, 29])
async def test_an_answer_may_fill_the_context_to_its_end(measurer, max_tokens):
    measured = await measure(measurer, parsed(TextPrompt("abc"), max_tokens=max_tokens))
    assert measured.max_tokens == (max_tokens,)


async def test_an_answer_that_would_pass_the_end_is_refused_with_both_numbers(measurer):
    refusal = await refusal_of(measurer, parsed(TextPrompt("abc"), max_tokens=30))
    assert refusal.param == "max_tokens"
    assert "32 tokens" in refusal.message
    assert "33: 3 in the prompt and 30" in refusal.message


async def test_a_prompt_that_leaves_one_token_for_the_answer_is_served(measurer):
    measured = await measure(measurer, parsed(TextPrompt("x" * (CONTEXT - 1))))
    assert measured.max_tokens == (1,)


@pytest.mark.parametrize("tokens", [CONTEXT, CONTEXT + 1, 1000])
@pytest.mark.parametrize("max_tokens", [None, 1])
async def test_a_prompt_that_leaves_nothing_is_refused_with_both_numbers(measurer, tokens, max_tokens):
    for prompt in (TextPrompt("x" * tokens), IdsPrompt((5,) * tokens)):
        refusal = await refusal_of(measurer, parsed(prompt, max_tokens=max_tokens))
        assert refusal.param == "prompt"
        assert "32 tokens" in refusal.message
        assert f"has {tokens}." in refusal.message


async def test_a_chat_that_is_too_long_names_its_messages(measurer):
    assert (await refusal_of(measurer, parsed(chat("x" * CONTEXT)))).param == "messages"


@pytest.mark.parametrize("make", [TextPrompt, chat], ids=["text", "chat"])
async def test_a_hopeless_text_is_refused_without_tokenising_it(measurer, make, monkeypatch):
    monkeypatch.setattr(measurer, "_measure", None)
    refusal = await refusal_of(measurer, parsed(make("x" * 64 * CONTEXT + "x")))
    assert "2049 characters" in refusal.message
    assert "32 tokens" in refusal.message


async def test_an_id_beyond_the_vocabulary_is_refused(measurer, folder):
    await measure(measurer, parsed(IdsPrompt((folder.vocabulary - 1,))))
    refusal = await refusal_of(measurer, parsed(IdsPrompt((1, folder.vocabulary))), InvalidRequest)
    assert refusal.param == "prompt"
    assert str(folder.vocabulary) in refusal.message


async def test_a_bias_beyond_the_vocabulary_is_refused(measurer, folder):
    last = LogitBias(folder.vocabulary - 1, 1.0)
    await measure(measurer, parsed(TextPrompt("a"), logit_bias=(last,)))
    beyond = parsed(TextPrompt("a"), logit_bias=(LogitBias(folder.vocabulary, 1.0), last))
    refusal = await refusal_of(measurer, beyond, InvalidRequest)
    assert refusal.param == "logit_bias"
    assert str(folder.vocabulary) in refusal.message


# --- names --------------------------------------------------------------------------------------------------

LONG = (tuple(range(130)), tuple(range(64)), (1, 2))


async def names_by(folder, salt="", **family):
    """Return the names of LONG's blocks as they are known by a worker's facts."""
    known = facts(**family) if family else None
    measurer = Measurer(TextModel.load(folder), folder, ProxySettings(), lambda: known)
    try:
        prompts = parsed(*map(IdsPrompt, LONG))
        return (await measurer.measure(prompts, ticket(LANE, context_tokens=1 << 10, salt=salt))).names
    finally:
        measurer.close()


async def test_whole_blocks_are_named_as_the_worker_names_them(folder):
    root = root_key(FINGERPRINT, 8, salt="of a key")
    expected = tuple(tuple(map(name_of, keys_of(root, ids))) for ids in LONG)
    names = await names_by(folder, "of a key", reuse="any", kv_bits=8)
    assert names == expected
    assert [len(each) for each in names] == [2, 1, 0]
    assert names[0][0] == names[1][0]


async def test_names_of_another_salt_or_of_other_facts_are_others(folder):
    family = {"reuse": "checkpoints", "kv_bits": 4}
    plain = await names_by(folder, **family)
    assert plain == await names_by(folder, **family)
    for salt, changes in (("x", {}), ("", {"kv_bits": 0}), ("", {"fingerprint": "e" * 16})):
        names = await names_by(folder, salt, **{**family, **changes})
        assert not {*names[0]} & {*plain[0]}


async def test_blocks_have_no_names_before_the_first_worker_or_where_nothing_is_used_again(folder):
    assert (await names_by(folder), await names_by(folder, reuse="none")) == ((), ())


# --- whole bodies -------------------------------------------------------------------------------------------

WHOLE_MAX = (1 << 20) // 4  # with undelivered_mb = 1
LARGE = ticket(LANE, context_tokens=1 << 16)


async def measure_whole(folder, request):
    measurer = Measurer(TextModel.load(folder), folder, ProxySettings(undelivered_mb=1))
    try:
        return await measurer.measure(request, LARGE)
    finally:
        measurer.close()


@pytest.mark.parametrize(
    ("prompts", "choices", "tops"), [(1, 1, 0), (1, 1, 20), (1, 4, 5), (3, 1, 2), (2, 3, 1)]
)
async def test_a_whole_body_has_no_more_logprobs_than_a_quarter_of_what_may_be_undelivered(
    folder, prompts, choices, tops
):
    asks = {"choices": choices, "top_logprobs": tops}
    most = WHOLE_MAX // (prompts * choices * entry_bytes(Sampling(top_logprobs=tops)))
    texts = [TextPrompt("a")] * prompts
    assert (await measure_whole(folder, parsed(*texts, max_tokens=most, **asks))).max_tokens[0] == most
    with pytest.raises(InvalidRequest, match=r"0\.3 MiB for .* 0\.2 MiB is the most .* Stream it"):
        await measure_whole(folder, parsed(*texts, max_tokens=most + 1, **asks))
    assert await measure_whole(folder, parsed(*texts, max_tokens=most + 1, stream=True, **asks))


async def test_a_whole_body_without_logprobs_is_as_long_as_the_context(folder):
    assert await measure_whole(folder, parsed(TextPrompt("a"), max_tokens=60_000))


@pytest.mark.parametrize(
    ("prompt", "tops", "param"),
    [
        (chat("a"), 20, "top_logprobs"),
        (chat("a"), 0, "logprobs"),
        (TextPrompt("a"), 20, "logprobs"),
        (TextPrompt("a"), 0, "logprobs"),
    ],
)
async def test_a_whole_body_of_too_many_logprobs_names_the_field_that_asks(folder, prompt, tops, param):
    with pytest.raises(InvalidRequest) as refusal:
        await measure_whole(folder, parsed(prompt, max_tokens=60_000, top_logprobs=tops))
    assert refusal.value.param == param


async def test_an_answer_that_goes_on_behind_the_models_end_has_a_fingerprint_of_its_own(measurer):
    plain = parsed(TextPrompt("abc"), max_tokens=4)
    first, second = [await measure(measurer, replace(plain, ignores_eos=each)) for each in (False, True)]
    assert first.fingerprints != second.fingerprints


async def test_two_ways_to_draw_have_two_fingerprints(measurer):
    (plain,) = (await measure(measurer, parsed(TextPrompt("a")))).fingerprints
    (other,) = (await measure(measurer, parsed(TextPrompt("a"), presence_penalty=1.0))).fingerprints
    assert plain != other


async def test_a_prompt_of_no_tokens_is_refused(tmp_path):
    """A template may come to nothing; a model can't start from nothing."""
    folder = write_folder(tmp_path, byte_level(), chat_template="")
    measurer = Measurer(TextModel.load(folder), folder, ProxySettings())
    assert (await refusal_of(measurer, parsed(chat("Hi")), InvalidRequest)).param == "messages"
    measurer.close()


async def test_tokenising_happens_off_the_event_loop(measurer, monkeypatch):
    threads = []
    encode = measurer._text_model.encode_text

    class Spy:
        def encode_text(self, text):
            threads.append(threading.current_thread())
            return encode(text)

    monkeypatch.setattr(measurer, "_text_model", Spy())
    await measure(measurer, parsed(TextPrompt("a")))
    assert threads != [threading.main_thread()]
    assert len(threads) == 1


async def test_nothing_is_measured_after_close(measurer):
    measurer.close()
    with pytest.raises(RuntimeError):
        await measure(measurer, parsed(TextPrompt("a")))
