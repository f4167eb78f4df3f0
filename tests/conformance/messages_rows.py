"""/v1/messages and its count of tokens: messages, their stream, tools, thoughts and errors."""

import json
from itertools import pairwise

from tests.conformance.grammars import allows
from tests.conformance.reading import message_events_of, message_of, refused_as
from tests.conformance.row import ANTHROPIC, MESSAGES, REPORTED, Section
from tests.conformance.samples import (
    CALL,
    CALLS,
    PARIS,
    THOUGHT,
    THOUGHTFUL,
    UTC,
    WEATHER,
    message_tools,
    without_markup,
)
from tests.conformance.world import MESSAGES as PATH
from tests.conformance.world import SAID, user

SECTION = Section(PATH)
row = SECTION.row
JSON = {"Content-Type": "application/json"}
INVALID = "invalid_request_error"
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def uses_of(message):
    return [(block.name, block.input) for block in message.content if block.type == "tool_use"]


def blocks_of(events):
    """Return each block of a stream with its deltas put together; check the order of all events."""
    kinds = [event.type for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert (kinds.count("message_start"), kinds.count("message_delta")) == (1, 1)
    blocks, current = [], None
    for event in events[1:-2]:
        if event.type == "content_block_start":
            assert current is None, "a block begins when the one before has ended"
            assert event.index == len(blocks)
            current = [event.content_block, []]
        elif event.type == "content_block_delta":
            assert event.index == len(blocks)
            current[1].append(event.delta)
        else:
            assert (event.type, event.index) == ("content_block_stop", len(blocks))
            blocks.append(tuple(current))
            current = None
    assert current is None
    return blocks


@row(MESSAGES + "the message object")
async def a_whole_answer_is_a_message(here):
    answered = message_of(await here.message())
    assert (text_of(answered), answered.role, answered.type) == (SAID, "assistant", "message")
    assert (answered.stop_reason, answered.stop_sequence) == ("end_turn", None)
    assert answered.id.startswith("msg_")
    assert answered.model == "small"
    assert answered.usage.output_tokens == len(here.ids(SAID))


@row(MESSAGES + "usage.cache_read_input_tokens")
async def cached_tokens_are_told_apart_from_the_others(here):
    here.worker.cached = lambda _submit: 5
    usage = message_of(await here.message()).usage
    assert usage.cache_read_input_tokens == 5
    assert usage.input_tokens + 5 == len(here.submits[0].prompt_ids)
    assert usage.cache_creation_input_tokens == 0


@row(ANTHROPIC + "streaming messages, the order of events")
async def a_streams_events_come_in_order_and_say_the_same(here):
    events = message_events_of(await here.message(stream=True))
    ((block, deltas),) = blocks_of(events)
    assert (block.type, block.text) == ("text", "")
    assert "".join(delta.text for delta in deltas) == SAID
    assert events[-2].delta.stop_reason == "end_turn"
    assert events[0].message.content == []
    assert events[0].message.stop_reason is None


@row(ANTHROPIC + "streaming messages, usage")
async def a_streams_usage_is_told_at_its_beginning_and_in_full_at_its_end(here):
    usage = message_of(await here.message()).usage
    events = message_events_of(await here.message(stream=True))
    assert events[0].message.usage.input_tokens == usage.input_tokens
    assert events[-2].usage.output_tokens == usage.output_tokens


@row(MESSAGES + "max_tokens")
async def an_answer_that_is_cut_says_max_tokens(here):
    assert message_of(await here.message(max_tokens=3)).stop_reason == "max_tokens"
    events = message_events_of(await here.message(max_tokens=3, stream=True))
    assert events[-2].delta.stop_reason == "max_tokens"
    for value in (..., 0, -1, "5", 1.5):
        assert "max_tokens" in refused_as(await here.message(max_tokens=value), 400, INVALID)


@row(MESSAGES + "stop_sequences")
async def a_stop_sequence_is_told(here):
    here.say("one two three")
    answered = message_of(await here.message(stop_sequences=["zz", "two"]))
    assert (text_of(answered), answered.stop_reason, answered.stop_sequence) == (
        "one ",
        "stop_sequence",
        "two",
    )
    delta = message_events_of(await here.message(stop_sequences=["two"], stream=True))[-2].delta
    assert (delta.stop_reason, delta.stop_sequence) == ("stop_sequence", "two")


@row(MESSAGES + "system: a string or a list of text blocks")
async def a_system_prompt_is_a_string_or_a_list(here):
    block = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    for system in ("Be brief.", [block], [block, {"type": "text", "text": "And kind."}]):
        message_of(await here.message(system=system))
        assert here.prompt.startswith("<|im_start|>system\nBe brief.")
    assert "And kind." in here.prompt


@row(REPORTED + "a system role inside messages was a 422")
async def a_system_role_inside_messages_is_accepted(here):
    system = {"role": "system", "content": "Be brief."}
    for messages in ([system, user("Hi")], [user("Hi"), system]):
        message_of(await here.message(messages=messages))
        assert "Be brief." in here.prompt


@row(MESSAGES + "content: a string or blocks")
async def text_blocks_are_read_with_their_cache_control(here):
    content = [
        {"type": "text", "text": "one"},
        {"type": "text", "text": "two", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ]
    message_of(await here.message(messages=[user(content)]))
    assert "one" in here.prompt
    assert "two" in here.prompt


@row(MESSAGES + "messages: a last one of the assistant's is gone on with")
async def an_assistants_last_message_is_gone_on_with(here):
    prefill = {"role": "assistant", "content": "The answer is"}
    assert text_of(message_of(await here.message(messages=[user("x"), prefill]))) == SAID
    assert here.prompt.endswith("The answer is")


@row(MESSAGES + "image and document blocks")
async def images_and_documents_are_refused_by_a_text_model(here):
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
    assert "messages.0.content.0" in refused_as(await here.message(messages=[user([PNG])]), 400, INVALID)
    answered = await here.message(messages=[user([document])])
    if answered.status != 200:
        refused_as(answered, 400, INVALID)


@row(MESSAGES + "temperature, top_p, top_k")
async def sampling_fields_reach_the_worker_and_have_their_ranges(here):
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 40}
    message_of(await here.message(**fields))
    assert {name: getattr(here.sampling, name) for name in fields} == fields
    for field, value in (("temperature", 1.1), ("temperature", -1), ("top_p", 2), ("top_k", -5)):
        assert field in refused_as(await here.message(**{field: value}), 400, INVALID)


@row(MESSAGES + "metadata, service_tier")
async def metadata_and_tier_are_accepted(here):
    for tier in ("auto", "standard_only"):
        answered = message_of(await here.message(metadata={"user_id": "u"}, service_tier=tier))
        assert answered.usage.service_tier == "standard"


@row(ANTHROPIC + "versioning and beta headers")
async def version_and_beta_headers_are_accepted(here):
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        "x-api-key": "none",
    }
    message_of(await here.message(headers=headers))


# --- tools --------------------------------------------------------------------------------------------------


@row(MESSAGES + "tool_use blocks")
async def calls_are_tool_use_blocks(here):
    here.say(f"I'll look.\n{CALLS}")
    answered = message_of(await here.message(tools=message_tools()))
    assert answered.stop_reason == "tool_use"
    assert uses_of(answered) == [("get_weather", json.loads(PARIS)), ("get_time", json.loads(UTC))]
    assert text_of(answered).strip() == "I'll look."
    ids = [block.id for block in answered.content if block.type == "tool_use"]
    assert len(set(ids)) == 2
    assert all(id_.startswith("toolu_") for id_ in ids)


@row(ANTHROPIC + "streaming messages, input_json_delta")
async def calls_are_streamed_as_blocks_with_their_input_in_deltas(here):
    here.say(f"I'll look.\n{CALLS}")
    events = message_events_of(await here.message(tools=message_tools(), stream=True))
    blocks = blocks_of(events)
    assert [block.type for block, _ in blocks] == ["text", "tool_use", "tool_use"]
    assert [block.input for block, _ in blocks[1:]] == [{}, {}]
    inputs = ["".join(delta.partial_json for delta in deltas) for _, deltas in blocks[1:]]
    assert [json.loads(each) for each in inputs] == [json.loads(PARIS), json.loads(UTC)]
    assert events[-2].delta.stop_reason == "tool_use"
    without_markup("".join(delta.text for delta in blocks[0][1]))


@row(MESSAGES + "tools: input_schema, description, cache_control")
async def the_model_is_shown_the_tools(here):
    message_of(await here.message(tools=message_tools(cache_control={"type": "ephemeral"})))
    assert '"get_weather"' in here.prompt
    assert '"Tells the time."' in here.prompt


@row(MESSAGES + "tool_choice: any")
async def with_any_nothing_but_a_call_is_possible(here):
    here.say(CALL)
    assert uses_of(message_of(await here.message(tools=message_tools(), tool_choice={"type": "any"})))
    assert allows(here, CALL)
    assert not allows(here, "No.", whole=False)


@row(MESSAGES + "tool_choice: tool")
async def with_a_name_only_that_tool_can_be_called(here):
    here.say(CALL)
    choice = {"type": "tool", "name": "get_weather"}
    assert uses_of(message_of(await here.message(tools=message_tools(), tool_choice=choice)))
    assert not allows(here, CALLS.removeprefix(CALL).strip())
    refused_as(
        await here.message(tools=message_tools(), tool_choice={"type": "tool", "name": "x"}), 400, INVALID
    )


@row(MESSAGES + "tool_choice: none")
async def with_none_nothing_is_a_call(here):
    here.say(CALL)
    answered = message_of(await here.message(tools=message_tools(), tool_choice={"type": "none"}))
    assert (uses_of(answered), answered.stop_reason) == ([], "end_turn")


@row(MESSAGES + "tool_choice.disable_parallel_tool_use")
async def without_parallel_use_there_is_one_call_at_most(here):
    here.say(CALLS)
    choice = {"type": "any", "disable_parallel_tool_use": True}
    answered = message_of(await here.message(tools=message_tools(), tool_choice=choice))
    assert len(uses_of(answered)) == 1 or not allows(here, CALLS)


@row(MESSAGES + "tool_result blocks")
async def results_can_be_sent_back(here):
    here.say(CALLS)
    answered = message_of(await here.message(tools=message_tools()))
    ids = [block.id for block in answered.content if block.type == "tool_use"]
    back = [json.loads(block.model_dump_json(exclude_none=True)) for block in answered.content]
    results = [
        {"type": "tool_result", "tool_use_id": ids[0], "content": "Rain, 12 °C"},
        {
            "type": "tool_result",
            "tool_use_id": ids[1],
            "content": [{"type": "text", "text": "no clock"}],
            "is_error": True,
            "cache_control": {"type": "ephemeral"},
        },
        {"type": "text", "text": "Go on."},
    ]
    messages = [user("x"), {"role": "assistant", "content": back}, user(results)]
    here.say("It rains.")
    assert text_of(message_of(await here.message(tools=message_tools(), messages=messages))) == "It rains."
    places = [here.prompt.index(text) for text in ("Rain, 12 °C", "no clock", "Go on.")]
    assert all(before < after for before, after in pairwise(places))


@row(MESSAGES + "tool_result without content")
async def an_empty_result_is_a_result(here):
    use = {"type": "tool_use", "id": "toolu_1", "name": "get_time", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1"}
    messages = [user("x"), {"role": "assistant", "content": [use]}, user([result])]
    message_of(await here.message(tools=message_tools(), messages=messages))


@row(MESSAGES + "server tools")
async def tools_that_anthropic_runs_are_refused(here):
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    assert "tools.0" in refused_as(await here.message(tools=tools), 400, INVALID)


@row(MESSAGES + "tools: errors")
async def bad_tools_are_refused_by_name(here):
    for tools in ("x", [{}], [{"name": "a b!", "input_schema": {}}], message_tools(WEATHER, WEATHER)):
        assert "tools" in refused_as(await here.message(tools=tools), 400, INVALID)


# --- thoughts -----------------------------------------------------------------------------------------------

THINKS = {"type": "enabled", "budget_tokens": 1024}


@row(MESSAGES + "thinking blocks")
async def thoughts_are_blocks_with_a_signature_before_the_text(here):
    here.say(THOUGHTFUL + "Yes.")
    answered = message_of(await here.message(thinking=THINKS, max_tokens=2000))
    assert [block.type for block in answered.content] == ["thinking", "text"]
    assert answered.content[0].thinking.strip() == THOUGHT
    assert answered.content[0].signature
    assert answered.content[1].text.strip() == "Yes."


@row(ANTHROPIC + "streaming messages, thinking_delta and signature_delta")
async def thoughts_are_streamed_and_signed_at_their_end(here):
    here.say(THOUGHTFUL + "Yes.")
    events = message_events_of(await here.message(thinking=THINKS, max_tokens=2000, stream=True))
    (thought, deltas), (text, _) = blocks_of(events)
    assert (thought.type, thought.thinking, text.type) == ("thinking", "", "text")
    assert [delta.type for delta in deltas[-2:]] == ["thinking_delta", "signature_delta"]
    assert "".join(delta.thinking for delta in deltas[:-1]).strip() == THOUGHT


@row(MESSAGES + "thinking blocks are given back unchanged")
async def thoughts_can_be_sent_back(here):
    here.say(THOUGHTFUL + CALL)
    answered = message_of(await here.message(thinking=THINKS, max_tokens=2000, tools=message_tools()))
    back = [json.loads(block.model_dump_json(exclude_none=True)) for block in answered.content]
    result = {"type": "tool_result", "tool_use_id": answered.content[-1].id, "content": "Rain"}
    messages = [user("x"), {"role": "assistant", "content": back}, user([result])]
    message_of(await here.message(thinking=THINKS, max_tokens=2000, tools=message_tools(), messages=messages))
    assert THOUGHT in here.prompt
    redacted = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, *back[1:]]}
    message_of(await here.message(tools=message_tools(), messages=[user("x"), redacted, user([result])]))


@row(MESSAGES + "thinking: disabled, adaptive; budget_tokens")
async def thinking_is_turned_off_and_has_a_budget(here):
    message_of(await here.message(thinking={"type": "disabled"}))
    assert here.prompt.endswith("<think>\n\n</think>\n\n")
    message_of(await here.message(thinking={"type": "adaptive"}))
    for thinking in ({"type": "enabled"}, {"type": "banana"}, {"type": "enabled", "budget_tokens": 0}):
        assert "thinking" in refused_as(await here.message(thinking=thinking, max_tokens=2000), 400, INVALID)


@row(MESSAGES + "output_config.format: structured outputs")
async def an_answers_form_can_be_asked_for(here):
    here.say('{"city": "Paris"}')
    format_ = {"type": "json_schema", "schema": WEATHER["parameters"]}
    message_of(await here.message(output_config={"format": format_}))
    assert allows(here, '{"city": "Paris"}')
    assert not allows(here, "Paris", whole=False)
