"""A text without any format is the same streamed and not, at every endpoint, whatever is in it."""

import asyncio

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.completions_rows import text_of
from tests.conformance.format_rows import told
from tests.conformance.reading import completion_chunks_of, completion_of
from tests.conformance.world import world

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXTS = st.text(st.sampled_from("ab <>{}\n\u200bé漢😀\U0001f468\u200d"), max_size=25)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory):
    async with world(tmp_path_factory.mktemp("texts")) as running:
        yield running


@given(text=TEXTS, cap=st.integers(1, 60))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_a_text_is_the_same_streamed_and_whole_at_every_endpoint(here, text, cap):
    await here.begin()
    here.reads("plain")
    here.say(text)
    all_told = await told(here, cap)
    whole, streamed = await asyncio.gather(
        here.complete(max_tokens=cap), here.complete(max_tokens=cap, stream=True)
    )
    texts = {each.text for each in all_told}
    texts |= {completion_of(whole).choices[0].text, text_of(completion_chunks_of(streamed))}
    assert len(texts) == 1
    (shown,) = texts
    assert text.startswith(shown.rstrip("\ufffd"))
    assert shown == text or len(here.ids(text)) > cap


@given(text=TEXTS, stop=st.text(st.sampled_from("ab <\né漢😀"), min_size=1, max_size=3))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_a_stop_string_cuts_a_text_at_its_first_match_streamed_and_whole(here, text, stop):
    await here.begin()
    here.reads("plain")
    here.say(text)
    expected = text.split(stop)[0]
    whole, streamed, message, chat = await asyncio.gather(
        here.complete(stop=stop),
        here.complete(stop=stop, stream=True),
        here.message(stop_sequences=[stop]),
        here.chat(stop=stop),
    )
    assert completion_of(whole).choices[0].text == expected
    assert text_of(completion_chunks_of(streamed)) == expected
    assert "".join(block["text"] for block in message.body["content"]) == expected
    assert chat.text == expected
