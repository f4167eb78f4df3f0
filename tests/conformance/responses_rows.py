"""/v1/responses: the response, its events, items of every kind, and what is remembered of them."""

import json

from tests.conformance.grammars import allows
from tests.conformance.reading import refused, response_events_of, response_of
from tests.conformance.row import OURS, RESPONSES, Section
from tests.conformance.samples import (
    CALL,
    CALLS,
    PARIS,
    SCHEMA,
    THOUGHT,
    THOUGHTFUL,
    UTC,
    WEATHER,
    response_tools,
    without_markup,
)
from tests.conformance.world import CONTEXT_TOKENS, SAID, user
from tests.conformance.world import RESPONSES as PATH

SECTION = Section(PATH)
row = SECTION.row


def kinds_of(response):
    return [item.type for item in response.output]


def calls_of(response):
    items = [item for item in response.output if item.type == "function_call"]
    return [(item.name, json.loads(item.arguments)) for item in items]


def deltas_of(events, kind):
    return "".join(event.delta for event in events if event.type == kind)


@row(RESPONSES + "the response object")
async def a_whole_answer_is_a_response(here):
    response = response_of(await here.respond())
    assert (response.output_text, response.status, response.error) == (SAID, "completed", None)
    (item,) = response.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    assert response.id.startswith("resp_")
    assert response.usage.output_tokens == len(here.ids(SAID))
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


@row(RESPONSES + "streaming events")
async def a_streams_events_come_in_order_and_say_the_same(here):
    events = response_events_of(await here.respond(stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert deltas_of(events, "response.output_text.delta") == SAID
    assert events[-4].text == SAID
    assert events[-1].response.output_text == SAID
    assert events[-2].item == events[-1].response.output[0]
    assert len({event.item_id for event in events if hasattr(event, "item_id")}) == 1


@row(RESPONSES + "streaming events: the response in them")
async def a_streams_last_response_is_as_a_whole_one(here):
    events = response_events_of(await here.respond(stream=True))
    whole = response_of(await here.respond()).model_dump()
    last = events[-1].response.model_dump()
    differs = {name for name in whole if whole[name] != last[name]}
    assert differs <= {"id", "created_at", "completed_at", "output"}
    assert (events[0].response.status, events[0].response.output) == ("in_progress", [])
    assert events[0].response.id == events[-1].response.id


@row(RESPONSES + "input: a string or a list of items")
async def input_is_a_string_or_messages_with_parts(here):
    parts = [{"type": "input_text", "text": "one "}, {"type": "input_text", "text": "two"}]
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "three"}]}
    developer = {"role": "developer", "content": "Be brief."}
    response_of(await here.respond(input=[developer, user(parts), said, user("four")]))
    assert "<|im_start|>system\nBe brief." in here.prompt
    assert all(text in here.prompt for text in ("one two", "three", "four"))


@row(RESPONSES + "instructions")
async def instructions_are_a_system_message(here):
    assert response_of(await here.respond(instructions="Be brief.")).instructions == "Be brief."
    assert here.prompt.startswith("<|im_start|>system\nBe brief.")


@row(RESPONSES + "max_output_tokens, incomplete_details")
async def an_answer_that_is_cut_is_incomplete(here):
    response = response_of(await here.respond(max_output_tokens=3))
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    events = response_events_of(await here.respond(max_output_tokens=3, stream=True))
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == response.output_text


@row(RESPONSES + "function_call items")
async def calls_are_items_of_their_own(here):
    here.say(CALLS)
    response = response_of(await here.respond(tools=response_tools()))
    assert calls_of(response) == [("get_weather", json.loads(PARIS)), ("get_time", json.loads(UTC))]
    calls = [item for item in response.output if item.type == "function_call"]
    assert len({item.call_id for item in calls}) == 2
    assert {item.status for item in calls} == {"completed"}
    without_markup(response.output_text)


@row(RESPONSES + "streaming events: function_call_arguments")
async def calls_are_streamed_with_their_arguments_in_deltas(here):
    here.say(CALLS)
    events = response_events_of(await here.respond(tools=response_tools(), stream=True))
    for call in events[-1].response.output:
        mine = [event for event in events if getattr(event, "item_id", None) == call.id]
        assert deltas_of(mine, "response.function_call_arguments.delta") == call.arguments
        assert mine[-1].type == "response.function_call_arguments.done"
        assert mine[-1].arguments == call.arguments
    added = [event.item for event in events if event.type == "response.output_item.added"]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [(item.name, item.arguments, item.status) for item in added] == [
        ("get_weather", "", "in_progress"),
        ("get_time", "", "in_progress"),
    ]
    assert done == events[-1].response.output


@row(RESPONSES + "output_index")
async def every_event_of_an_item_has_its_place(here):
    here.say(f"{THOUGHTFUL}I'll look.\n{CALLS}")
    events = response_events_of(await here.respond(tools=response_tools(), stream=True))
    output = events[-1].response.output
    assert [item.type for item in output] == ["reasoning", "message", "function_call", "function_call"]
    places = [event.output_index for event in events if hasattr(event, "output_index")]
    assert places == sorted(places)
    for event in events:
        if hasattr(event, "item_id"):
            assert output[event.output_index].id == event.item_id


@row(RESPONSES + "function_call_output items")
async def calls_and_their_results_can_be_sent_back(here):
    here.say(f"{THOUGHTFUL}{CALL}")
    response = response_of(await here.respond(tools=response_tools()))
    back = [json.loads(item.model_dump_json(exclude_none=True)) for item in response.output]
    result = {"type": "function_call_output", "call_id": response.output[-1].call_id, "output": "Rain"}
    here.say("It rains.")
    again = await here.respond(tools=response_tools(), input=[user("x"), *back, result])
    assert response_of(again).output_text == "It rains."
    assert "Rain" in here.prompt
    assert '"city": "Paris, 漢"' in here.prompt


@row(RESPONSES + "tool_choice")
async def tools_can_be_required_named_and_forbidden(here):
    here.say(CALL)
    named = {"type": "function", "name": "get_weather"}
    for choice in ("required", named):
        assert calls_of(response_of(await here.respond(tools=response_tools(), tool_choice=choice)))
        assert allows(here, CALL)
        assert not allows(here, "No.", whole=False)
    response = response_of(await here.respond(tools=response_tools(), tool_choice="none"))
    assert calls_of(response) == []
    refused(await here.respond(tools=response_tools(), tool_choice={"type": "function", "name": "x"}), 400)


@row(RESPONSES + "tools: strict")
async def strict_tools_are_called_with_arguments_by_their_schema_only(here):
    here.say(CALL)
    response = response_of(await here.respond(tools=response_tools(WEATHER, strict=True)))
    assert response.tools[0].strict is True
    assert allows(here, CALL)
    assert not allows(here, CALL.replace('"city"', '"town"'))


@row(RESPONSES + "parallel_tool_calls, tools, tool_choice, temperature, metadata: told again")
async def what_was_asked_for_is_told_again(here):
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "max_output_tokens": 99,
        "tool_choice": "auto",
    }
    response = response_of(await here.respond(tools=response_tools(), **fields))
    assert {name: getattr(response, name) for name in fields} == fields
    assert [tool.name for tool in response.tools] == ["get_weather", "get_time"]


@row(RESPONSES + "built-in tools")
async def tools_that_openai_runs_are_refused_if_they_are_all_there_is(here):
    for tool in ({"type": "file_search", "vector_store_ids": ["v"]}, {"type": "banana"}):
        answered = await here.respond(tools=[tool])
        refused(answered, 400)
        assert answered.error["param"].startswith("tools")


@row(RESPONSES + "reasoning items")
async def thoughts_are_an_item_before_the_message(here):
    here.say(THOUGHTFUL + "Yes.")
    response = response_of(await here.respond())
    assert kinds_of(response) == ["reasoning", "message"]
    assert "".join(part.text for part in response.output[0].content).strip() == THOUGHT
    assert response.output_text.strip() == "Yes."
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens


@row(RESPONSES + "streaming events: reasoning_text")
async def thoughts_are_streamed_before_the_message(here):
    here.say(THOUGHTFUL + "Yes.")
    events = response_events_of(await here.respond(stream=True))
    kinds = [event.type for event in events]
    assert deltas_of(events, "response.reasoning_text.delta").strip() == THOUGHT
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")


@row(RESPONSES + "reasoning.effort")
async def an_effort_is_the_templates_where_it_knows_one(here):
    assert response_of(await here.respond(reasoning={"effort": "high"})).reasoning.effort == "high"
    assert "(high)" in here.prompt
    refused(await here.respond(reasoning={"effort": "banana"}), 400, "reasoning.effort")


@row(RESPONSES + "text.format")
async def an_answers_form_can_be_asked_for(here):
    here.say('{"answer": 5}')
    format_ = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
    assert response_of(await here.respond(text={"format": format_})).text.format.type == "json_schema"
    assert allows(here, '{"answer": 5}')
    assert not allows(here, '{"answer": "x"}')
    response_of(await here.respond(text={"format": {"type": "json_object"}}))
    assert allows(here, '{"x": [1]}')
    assert not allows(here, "words", whole=False)
    refused(await here.respond(text={"format": {"type": "banana"}}), 400)


@row(RESPONSES + "previous_response_id")
async def a_conversation_is_gone_on_with_by_the_id_of_its_last_response(here):
    here.say("I am Ann.")
    first = response_of(await here.respond(input="Who are you?", instructions="Be Ann."))
    second = response_of(await here.respond(input="Who?", previous_response_id=first.id))
    assert second.previous_response_id == first.id
    assert all(text in here.prompt for text in ("Who are you?", "I am Ann.", "Who?"))
    assert "Be Ann." not in here.prompt, "instructions aren't carried over"
    response_of(await here.respond(input="And?", previous_response_id=second.id))
    assert here.prompt.count("I am Ann.") == 2


@row(RESPONSES + "previous_response_id: calls")
async def a_result_can_be_sent_to_a_call_of_the_response_before(here):
    here.say(CALL)
    for stream in (False, True):
        answered = await here.respond(tools=response_tools(), stream=stream)
        first = response_events_of(answered)[-1].response if stream else response_of(answered)
        result = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "Rain"}
        response_of(await here.respond(input=[result], previous_response_id=first.id))
        assert "Rain" in here.prompt


@row(RESPONSES + "previous_response_id, store: errors")
async def what_isnt_stored_cant_be_gone_on_with(here):
    answered = await here.respond(previous_response_id="resp_nothing")
    assert answered.status in (400, 404)
    refused(answered, answered.status, "previous_response_id")
    forgotten = response_of(await here.respond(store=False))
    assert (await here.respond(previous_response_id=forgotten.id)).status in (400, 404)


@row(RESPONSES + "input: images and files")
async def images_and_files_are_refused_by_a_text_model(here):
    for part in ({"type": "input_image", "image_url": "data:,"}, {"type": "input_file", "file_id": "f"}):
        answered = await here.respond(input=[user([part])])
        refused(answered, 400)
        assert answered.error["param"].startswith("input.0.content")


@row(RESPONSES + "errors")
async def bad_fields_are_refused_by_name(here):
    bad = {
        "input": (5, [], [{"type": "banana"}], None),
        "temperature": (3, "x"),
        "top_p": (2,),
        "max_output_tokens": (0, 1 << 40),
        "background": (True,),
        "model": (..., 5),
        "banana": (1,),
        "metadata": (5,),
        "tools": ("x",),
    }
    for field, values in bad.items():
        for value in values:
            answered = await here.respond(**{field: value})
            refused(answered, 400)
            assert answered.error["param"].split(".")[0] == field, (field, value, answered.error)


@row(RESPONSES + "errors, streamed")
async def a_refused_stream_has_the_status_of_its_error(here):
    refused(await here.respond(stream=True, temperature=9), 400, "temperature")
    refused(await here.respond(stream=True, model="x"), 404, "model")
    refused(await here.respond(input="x" * CONTEXT_TOKENS), 400, code="context_length_exceeded")


@row(RESPONSES + "include")
async def thoughts_for_clients_that_keep_everything_themselves_are_included(here):
    here.say(THOUGHTFUL + "Yes.")
    response = response_of(await here.respond(include=["reasoning.encrypted_content"], store=False))
    assert response.output[0].encrypted_content
    back = [json.loads(item.model_dump_json(exclude_none=True)) for item in response.output]
    response_of(await here.respond(input=[user("x"), *back, user("y")], store=False))


@row(RESPONSES + "top_logprobs, include message.output_text.logprobs")
async def log_probabilities_are_there_or_refused(here):
    answered = await here.respond(include=["message.output_text.logprobs"], top_logprobs=2)
    if answered.status == 200:
        logprobs = response_of(answered).output[0].content[0].logprobs
        assert b"".join(bytes(each.bytes) for each in logprobs) == SAID.encode()
    else:
        refused(answered, 400)


@row(RESPONSES + "text, content parts: annotations")
async def a_message_has_one_part_with_its_annotations(here):
    (part,) = response_of(await here.respond()).output[0].content
    assert (part.type, part.text, part.annotations) == ("output_text", SAID, [])


@row(OURS + "a response is one thing through a call or a key")
async def an_empty_answer_is_a_response(here):
    here.say("")
    response = response_of(await here.respond())
    assert (response.output_text, response.status) == ("", "completed")
    assert response_events_of(await here.respond(stream=True))[-1].response.output_text == ""


@row(RESPONSES + "the local shell tool, local_shell_call items")
async def a_local_shell_is_called_and_its_output_taken(here):
    here.say('<tool_call>\n{"name": "local_shell", "arguments": {"command": ["ls"]}}\n</tool_call>')
    response = response_of(await here.respond(tools=[{"type": "local_shell"}]))
    (item,) = response.output
    begins = '<tool_call>\n{"name": "local_shell", "arguments": '
    assert allows(here, begins + '{"command": ["ls"], "env": {"A": "1"}}}\n</tool_call>')
    assert not allows(here, begins + '{"command": "ls', whole=False)
    assert (item.type, item.action.command) == ("local_shell_call", ["ls"])
    back = json.loads(item.model_dump_json(exclude_none=True))
    output = {"type": "local_shell_call_output", "id": item.call_id, "output": "a.py"}
    response_of(await here.respond(tools=[{"type": "local_shell"}], input=[user("x"), back, output]))
    assert "a.py" in here.prompt
