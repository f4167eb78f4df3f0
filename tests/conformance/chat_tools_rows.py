"""/v1/chat/completions: tools, calls and thoughts."""

import json

from tests.conformance.chat_rows import reason_of, text_of
from tests.conformance.grammars import allows
from tests.conformance.reading import chat_of, chunks_of, refused
from tests.conformance.row import CHAT, OURS, REPORTED, VLLM, Section
from tests.conformance.samples import (
    CALL,
    CALLS,
    PARIS,
    THOUGHT,
    THOUGHTFUL,
    TIME,
    UTC,
    WEATHER,
    chat_tools,
    without_markup,
)
from tests.conformance.world import CHAT as PATH
from tests.conformance.world import user

SECTION = Section(PATH)
row = SECTION.row


def called(message):
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]


def streamed_calls(chunks):
    """Return (id, name, arguments) of a stream's calls, put together by OpenAI's rules for deltas."""
    calls = {}
    for delta in (choice.delta for chunk in chunks for choice in chunk.choices):
        for part in delta.tool_calls or ():
            if part.index not in calls:
                assert part.index == len(calls), "calls begin in order"
                assert (part.type, bool(part.id), bool(part.function.name)) == ("function", True, True)
                assert part.function.arguments == ""
                calls[part.index] = [part.id, part.function.name, ""]
            else:
                assert (part.id, part.type, part.function.name) == (None, None, None)
                calls[part.index][2] += part.function.arguments
    return [tuple(call) for call in calls.values()]


@row(CHAT + "message.tool_calls")
async def a_call_is_told_with_its_id_name_and_arguments(here):
    here.say(CALL)
    choice = chat_of(await here.chat(tools=chat_tools())).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content in (None, "")
    assert called(choice.message) == [("get_weather", json.loads(PARIS))]
    assert (choice.message.tool_calls[0].type, bool(choice.message.tool_calls[0].id)) == ("function", True)


@row(REPORTED + "two calls in a row were one, or the second was text")
async def two_calls_in_a_row_are_two_with_ids_of_their_own(here):
    here.say(CALLS)
    message = chat_of(await here.chat(tools=chat_tools())).choices[0].message
    assert called(message) == [("get_weather", json.loads(PARIS)), ("get_time", json.loads(UTC))]
    assert len({call.id for call in message.tool_calls}) == 2


@row(CHAT + "delta.tool_calls: index; id and name first; then arguments")
async def calls_are_streamed_by_the_rules_for_deltas(here):
    here.say(CALLS)
    chunks = chunks_of(await here.chat(tools=chat_tools(), stream=True))
    calls = streamed_calls(chunks)
    assert [(name, json.loads(arguments)) for _, name, arguments in calls] == [
        ("get_weather", json.loads(PARIS)),
        ("get_time", json.loads(UTC)),
    ]
    assert len({id_ for id_, _, _ in calls}) == 2
    assert reason_of(chunks) == "tool_calls"
    without_markup(text_of(chunks))


@row(REPORTED + "markup split over the stream leaked as text")
async def text_before_calls_is_text_and_nothing_of_the_markup_is_sent(here):
    here.say(f"I'll look.\n{CALLS}")
    whole = chat_of(await here.chat(tools=chat_tools())).choices[0].message
    chunks = chunks_of(await here.chat(tools=chat_tools(), stream=True))
    assert whole.content.strip() == "I'll look."
    assert text_of(chunks) == whole.content
    without_markup(whole.content)


@row(REPORTED + "a call cut by max_tokens was a 500, or a call with half its arguments")
async def a_call_that_is_cut_stays_text_as_it_was(here):
    here.say(CALL)
    for cap in (1, 5, 20, len(CALL) - 8):
        choice = chat_of(await here.chat(tools=chat_tools(), max_tokens=cap)).choices[0]
        assert choice.finish_reason == "length"
        assert choice.message.tool_calls in (None, [])
        assert choice.message.content.rstrip("\ufffd") == CALL.encode()[:cap].decode(errors="ignore")
        chunks = chunks_of(await here.chat(tools=chat_tools(), max_tokens=cap, stream=True))
        assert (text_of(chunks), reason_of(chunks)) == (choice.message.content, "length")


@row(REPORTED + "malformed arguments were a 500, or were sent as a call")
async def what_is_no_valid_call_stays_text(here):
    for text in (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": }\n</tool_call>',
        "<tool_call>\nnothing\n</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        "a < b <tool",
    ):
        here.say(text)
        choice = chat_of(await here.chat(tools=chat_tools())).choices[0]
        assert (choice.message.content, choice.finish_reason) == (text, "stop")
        assert not choice.message.tool_calls


@row(CHAT + "tools")
async def the_model_is_shown_the_tools(here):
    chat_of(await here.chat(tools=chat_tools()))
    assert '"get_weather"' in here.prompt
    assert '"Tells the time."' in here.prompt


@row(CHAT + "tool_choice: none")
async def with_none_no_tools_are_shown_and_nothing_is_a_call(here):
    here.say(CALL)
    choice = chat_of(await here.chat(tools=chat_tools(), tool_choice="none")).choices[0]
    assert "get_weather" not in here.prompt
    assert (choice.finish_reason, bool(choice.message.tool_calls)) == ("stop", False)


@row(CHAT + "tool_choice: auto")
async def with_auto_the_model_may_answer_in_words(here):
    choice = chat_of(await here.chat(tools=chat_tools(), tool_choice="auto")).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("hélo 漢字", "stop")


@row(CHAT + "tool_choice: required")
async def with_required_nothing_but_a_call_is_possible(here):
    here.say(CALL)
    assert called(chat_of(await here.chat(tools=chat_tools(), tool_choice="required")).choices[0].message)
    assert allows(here, CALL)
    assert not allows(here, "No.", whole=False)


@row(CHAT + "tool_choice: a function by its name")
async def with_a_name_only_that_function_can_be_called(here):
    here.say(CALL)
    choice = {"type": "function", "function": {"name": "get_weather"}}
    assert called(chat_of(await here.chat(tools=chat_tools(), tool_choice=choice)).choices[0].message)
    assert allows(here, CALL)
    assert not allows(here, CALLS.removeprefix(CALL).strip())
    assert not allows(here, "No.", whole=False)


@row(CHAT + "tool_choice: errors")
async def a_choice_of_what_isnt_there_is_refused(here):
    for choice in (
        {"type": "function", "function": {"name": "nothing"}},
        "banana",
        {"type": "function"},
        5,
    ):
        answered = await here.chat(tools=chat_tools(), tool_choice=choice)
        refused(answered, 400)
        assert answered.error["param"].startswith("tool_choice")
    refused(await here.chat(tool_choice="required"), 400, "tool_choice")


@row(CHAT + "tool_choice: allowed_tools")
async def only_the_allowed_tools_can_be_called(here):
    here.say(CALL)
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}
    answered = await here.chat(
        tools=chat_tools(), tool_choice={"type": "allowed_tools", "allowed_tools": allowed}
    )
    assert called(chat_of(answered).choices[0].message)
    assert not allows(here, CALLS.removeprefix(CALL).strip())


@row(CHAT + "parallel_tool_calls")
async def without_parallel_calls_there_is_one_at_most(here):
    here.say(CALLS)
    answered = await here.chat(tools=chat_tools(), parallel_tool_calls=False, tool_choice="required")
    message = chat_of(answered).choices[0].message
    assert len(message.tool_calls) == 1 or not allows(here, CALLS)


@row(CHAT + "function.strict")
async def strict_tools_are_called_with_arguments_by_their_schema_only(here):
    here.say(CALL)
    chat_of(await here.chat(tools=chat_tools(WEATHER, strict=True)))
    assert allows(here, CALL)
    assert allows(here, "Just words.")
    assert not allows(here, CALL.replace('"city"', '"town"'))


@row(CHAT + "tools: errors")
async def bad_tools_are_refused_by_name(here):
    for tools in (
        [{"type": "function"}],
        [{"type": "banana", "function": WEATHER}],
        [{"type": "function", "function": {"name": ""}}],
        [{"type": "function", "function": {"name": "a b!"}}],
        [{"type": "function", "function": {"name": "a", "parameters": "x"}}],
        chat_tools(WEATHER, WEATHER),
        "x",
    ):
        answered = await here.chat(tools=tools)
        refused(answered, 400)
        assert answered.error["param"].startswith("tools"), answered.error


@row(CHAT + "messages: assistant with tool_calls, tool")
async def calls_and_their_results_can_be_sent_back(here):
    here.say(CALL)
    message = chat_of(await here.chat(tools=chat_tools())).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Rain, 12 °C"}
    back = json.loads(message.model_dump_json())
    here.say("It rains.")
    answered = await here.chat(tools=chat_tools(), messages=[user("Paris?"), back, result])
    assert chat_of(answered).choices[0].message.content == "It rains."
    assert "Rain, 12 °C" in here.prompt
    assert '"city": "Paris, 漢"' in here.prompt


@row(CHAT + "messages: a result's content may be parts")
async def a_results_content_may_be_parts(here):
    call = {"id": "c", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    messages = [
        user("x"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "noon"}]},
    ]
    chat_of(await here.chat(tools=chat_tools(), messages=messages))
    assert "noon" in here.prompt


@row(OURS + "a conversation with a hole in it is refused")
async def a_result_without_an_id_is_refused(here):
    answered = await here.chat(messages=[user("x"), {"role": "tool", "content": "noon"}])
    refused(answered, 400)
    assert answered.error["param"].startswith("messages.1")


@row(REPORTED + "arguments that aren't JSON in the history were a 500")
async def calls_in_the_history_with_odd_arguments_are_answered(here):
    for arguments in ("", "not json", "[1]", '{"a": 1}'):
        call = {"id": "c", "type": "function", "function": {"name": "get_time", "arguments": arguments}}
        messages = [
            user("x"),
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "noon"},
        ]
        chat_of(await here.chat(messages=messages))


# --- thoughts -----------------------------------------------------------------------------------------------


@row(VLLM + "reasoning outputs; others call it reasoning_content")
async def thoughts_are_told_apart_from_the_text_under_both_names(here):
    here.say(THOUGHTFUL + "Yes.")
    message = chat_of(await here.chat()).choices[0].message
    assert message.content.strip() == "Yes."
    assert message.model_extra["reasoning_content"].strip() == THOUGHT
    assert message.model_extra["reasoning"] == message.model_extra["reasoning_content"]


@row(VLLM + "reasoning outputs, streamed")
async def thoughts_are_streamed_before_the_text(here):
    here.say(THOUGHTFUL + "Yes.")
    chunks = chunks_of(await here.chat(stream=True))
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    thoughts = [(delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas]
    texts = [delta.content or "" for delta in deltas]
    whole = chat_of(await here.chat()).choices[0].message
    assert "".join(thoughts) == whole.model_extra["reasoning_content"]
    assert "".join(texts) == whole.content
    last_thought = max(place for place, thought in enumerate(thoughts) if thought)
    assert not any(texts[: last_thought + 1])


@row(CHAT + "usage.completion_tokens_details.reasoning_tokens")
async def tokens_of_thoughts_are_counted(here):
    here.say(THOUGHTFUL + "Yes.")
    usage = chat_of(await here.chat()).usage
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens
    here.say("Yes.")
    assert chat_of(await here.chat()).usage.completion_tokens_details.reasoning_tokens == 0


@row(CHAT + "reasoning_effort")
async def an_effort_is_the_templates_where_it_knows_one(here):
    chat_of(await here.chat(reasoning_effort="high"))
    assert "(high)" in here.prompt
    refused(await here.chat(reasoning_effort="banana"), 400, "reasoning_effort")


@row(VLLM + "chat_template_kwargs")
async def thinking_can_be_turned_off_in_the_template(here):
    chat_of(await here.chat(chat_template_kwargs={"enable_thinking": False}))
    assert here.prompt.endswith("<think>\n\n</think>\n\n")
    chat_of(await here.chat())
    assert "<think>" not in here.prompt


@row(REPORTED + "an answer sent back with its thoughts was a 400")
async def thoughts_can_be_sent_back(here):
    for field in ("reasoning_content", "reasoning"):
        back = {"role": "assistant", "content": "Yes.", field: "Hm."}
        chat_of(await here.chat(messages=[user("x"), back, user("y")]))
    chat_of(await here.chat(messages=[user("x"), {**back, "tool_calls": None, "refusal": None}, user("y")]))


@row(REPORTED + "a call inside a thought was made")
async def a_call_in_a_thought_is_a_thought(here):
    here.say(f"<think>\nPerhaps {CALL}\n</think>\n\nNo.")
    choice = chat_of(await here.chat(tools=chat_tools())).choices[0]
    assert (choice.message.content.strip(), choice.finish_reason) == ("No.", "stop")
    assert not choice.message.tool_calls


@row(REPORTED + "a stop string in a thought ended the answer")
async def stops_are_for_the_text_and_not_for_thoughts(here):
    here.say("<think>\nwait END wait\n</think>\n\nyes END no")
    choice = chat_of(await here.chat(stop="END")).choices[0]
    assert (choice.message.content.strip(), choice.finish_reason) == ("yes", "stop")


@row(REPORTED + "an answer cut while it thought leaked the thought as text")
async def an_answer_that_is_cut_while_it_thinks_has_no_text(here):
    here.say(THOUGHTFUL + "Yes.")
    choice = chat_of(await here.chat(max_tokens=14)).choices[0]
    assert (choice.finish_reason, choice.message.content in (None, "")) == ("length", True)
    assert THOUGHT.startswith(choice.message.model_extra["reasoning_content"].strip())


@row(OURS + "a thought and two calls in one answer")
async def thoughts_and_calls_can_be_in_one_answer(here):
    here.say(THOUGHTFUL + CALLS)
    choice = chat_of(await here.chat(tools=chat_tools(WEATHER, TIME))).choices[0]
    assert len(choice.message.tool_calls) == 2
    assert choice.message.model_extra["reasoning_content"].strip() == THOUGHT
    without_markup(choice.message.content, choice.message.model_extra["reasoning_content"])


@row(CHAT + "n, with tools")
async def each_choice_has_calls_of_its_own(here):
    here.say(CALLS, CALL)
    chunks = chunks_of(await here.chat(tools=chat_tools(), n=2, stream=True))
    for index, expected in enumerate((2, 1)):
        mine = [[choice for choice in chunk.choices if choice.index == index] for chunk in chunks]
        parts = [part for choices in mine for choice in choices for part in choice.delta.tool_calls or ()]
        assert {part.index for part in parts} == set(range(expected))
        assert reason_of(chunks, index) == "tool_calls"
    message = chat_of(await here.chat(tools=chat_tools(), n=2))
    assert [len(choice.message.tool_calls) for choice in message.choices] == [2, 1]
    ids = [call.id for choice in message.choices for call in choice.message.tool_calls]
    assert len(set(ids)) == 3


@row(CHAT + "functions, function_call: deprecated")
async def the_older_fields_for_functions_are_answered_in_the_older_way(here):
    here.say(CALL)
    choice = chat_of(await here.chat(functions=[WEATHER], function_call="auto")).choices[0]
    assert '"get_weather"' in here.prompt
    assert (choice.finish_reason, choice.message.tool_calls) == ("function_call", None)
    assert choice.message.function_call.name == "get_weather"
    assert json.loads(choice.message.function_call.arguments) == json.loads(PARIS)
    chunks = chunks_of(await here.chat(functions=[WEATHER], stream=True))
    deltas = [choice.delta.function_call for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.arguments or "" for delta in deltas if delta) == PARIS
    back = [
        user("x"),
        {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": PARIS}},
        {"role": "function", "name": "get_weather", "content": "Rain, 12 °C"},
    ]
    chat_of(await here.chat(functions=[WEATHER], messages=back))
    assert "Rain, 12 °C" in here.prompt
