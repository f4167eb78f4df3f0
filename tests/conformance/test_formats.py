"""Families whose marks are special tokens of the tokenizer, and any answer at all, at every endpoint."""

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.family_samples import CALLLESS, SAMPLES
from tests.conformance.format_rows import answers_are_read, told
from tests.conformance.grammars import allows
from tests.conformance.samples import MARKUP
from tests.conformance.world import CHAT, MESSAGES, chat, message, world

pytestmark = pytest.mark.asyncio(loop_scope="module")
FAMILIES = (*SAMPLES, *CALLLESS)
# What samples and markup are made of, so that random texts come near to them.
PIECES = st.one_of(
    st.sampled_from(
        [
            *MARKUP,
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            '{"name": "get_time", "arguments": {}}',
        ]
    ),
    st.sampled_from(
        ["<|python_tag|>", "[TOOL_CALLS]", "[ARGS]{}", "<|channel|>final<|message|>", "\n", " ", "é😀"]
    ),
    st.text(max_size=4),
)
TEXTS = st.lists(PIECES, max_size=6).map("".join)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def marked(tmp_path_factory):
    """A gateway whose tokenizer has all families' marks as special tokens, one each."""
    async with world(tmp_path_factory.mktemp("marked"), marks=True) as running:
        yield running


@pytest.mark.parametrize("family", FAMILIES)
async def test_marks_that_are_special_tokens_are_read_as_such(marked, family):
    await marked.begin()
    await answers_are_read(marked, family)


async def test_marks_are_one_token_each(marked):
    assert len(marked.ids("<tool_call>")) == 1
    assert len(marked.ids("[TOOL_CALLS]")) == 1


async def test_a_budget_of_thoughts_is_kept_by_the_grammar_at_every_endpoint(marked):
    """Fewer tokens may be thought, and then the answer comes; more may not."""
    await marked.begin()
    marked.reads("hermes")
    marked.say("<think>12345</think>Yes.")
    bodies = (
        (CHAT, chat(thinking_budget=5)),
        (CHAT, chat(reasoning={"max_tokens": 5})),
        (MESSAGES, message(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)),
    )
    for path, body in bodies:
        answered = await marked.post(path, body)
        assert answered.status == 200, answered.raw
        budget = 5 if path == CHAT else 1024
        assert allows(marked, f"<think>{'a' * budget}</think>Yes.")
        assert not allows(marked, f"<think>{'a' * (budget + 1)}", whole=False)


@given(
    family=st.sampled_from(FAMILIES),
    text=TEXTS.filter(bool),
    cap=st.one_of(st.just(2000), st.integers(1, 30)),
    begun=st.booleans(),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_answer_is_the_same_streamed_and_whole_at_every_endpoint(marked, family, text, cap, begun):
    """Cut anywhere, in any format; and every endpoint says the same, but for one that has no place for it."""
    await marked.begin()
    marked.reads(family)
    sample = SAMPLES.get(family, CALLLESS.get(family))
    marked.say(f"{sample}{text}" if begun else text)
    whole, streamed, *others = await told(marked, cap)
    assert streamed == whole
    assert all(other == whole for other in others), others
