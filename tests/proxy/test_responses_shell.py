"""The local shell of /v1/responses: offered, called, shown to the client as a command, and answered."""

import json

import pytest
from openai.types.responses import ResponseInputItem
from pydantic import TypeAdapter

from proxy.answer import Call
from proxy.dialects.responses_request import ASKED, without_unsaid
from proxy.dialects.responses_shell import SHELL_SCHEMA
from shared.limits import SHELL_TIMEOUT_MS_MAX, SHELL_WORDS_MAX
from tests.proxy.responses_world import (
    RESPONSES,
    asking,
    checked_events,
    checked_response,
    client,
    prompt_text,
    responses_gateway,
    says,
)
from tests.proxy.small_gateway import NAME
from tests.proxy.test_responses_request import USER, WEATHER, messages, parsed, refused
from tests.proxy.test_responses_stream import built, request, streamed, whole

SHELL = {"type": "local_shell"}
ALL = {
    "command": ["ls", "-l"],
    "working_directory": "/src",
    "timeout_ms": 10,
    "env": {"A": "1"},
    "user": "me",
}
CALL = {
    "type": "local_shell_call",
    "id": "lsh_1",
    "call_id": "call_1",
    "status": "completed",
    "action": {"type": "exec", **ALL},
}
OUTPUT = {"type": "local_shell_call_output", "call_id": "call_1", "output": "a.py"}


def called(*arguments, reason="stop"):
    """Return the items of an answer that calls the shell with these, whole and streamed alike."""
    asked, _ = request(tools=[SHELL, WEATHER])
    pieces = [
        Call("local_shell", given if isinstance(given, str) else json.dumps(given)) for given in arguments
    ]
    body, events = whole(asked, pieces, reason), streamed(asked, pieces, reason)
    assert built(events) == body["output"]
    return body["output"], [event["type"].removeprefix("response.") for event in events]


def test_a_model_is_offered_a_function_with_a_command():
    asked = parsed(tools=[SHELL])
    (tool,) = asked.tools.tools
    assert (tool.name, tool.parameters, tool.strict, tool.wished) == ("local_shell", SHELL_SCHEMA, True, True)
    assert asked.prompts[0].tools == (tool,)
    assert asked.extras[ASKED].repeated["tools"] == (SHELL,)
    freed = without_unsaid(asked, asked.extras[ASKED])
    assert not freed.tools.tools[0].strict
    assert freed.extras[ASKED].repeated["tools"] == (SHELL,)


def test_a_command_comes_whole_with_all_that_is_said_of_it():
    (item,), events = called(ALL)
    assert item == {**CALL, "id": item["id"], "call_id": item["call_id"]}
    assert item["id"] != item["call_id"]
    assert events == [
        "created",
        "in_progress",
        "output_item.added",
        "output_item.done",
        "completed",
    ]


def test_what_is_not_said_of_a_command_is_not_there_but_for_its_variables():
    (first, second), _ = called({"command": ["ls"]}, {"command": ["pwd"], "user": None})
    assert first["action"] == {"type": "exec", "command": ["ls"], "env": {}}
    assert second["action"] == {"type": "exec", "command": ["pwd"], "env": {}}
    assert len({first["id"], first["call_id"], second["id"], second["call_id"]}) == 4


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"command": []},
        {"command": "ls"},
        {"command": ["ls", 1]},
        {"command": ["ls"], "timeout_ms": -1},
        {"command": ["ls"], "timeout_ms": SHELL_TIMEOUT_MS_MAX + 1},
        {"command": ["ls"], "env": {"A": 1}},
        {"command": ["ls"], "sudo": True},
        {"command": ["ls"] * (SHELL_WORDS_MAX + 1)},
        "[]",
        '{"command": ["\\ud800"]}',
        "no JSON",
    ],
)
def test_what_is_no_command_is_a_functions_call_as_it_was_written(arguments):
    (item,), _ = called(arguments)
    assert (item["type"], item["name"]) == ("function_call", "local_shell")
    assert item["arguments"] == (arguments if isinstance(arguments, str) else json.dumps(arguments))


def test_only_the_shell_that_was_offered_is_one():
    asked, _ = request(tools=[{**WEATHER, "name": "local_shell"}])
    (item,) = whole(asked, [Call("local_shell", json.dumps(ALL))], "stop")["output"]
    assert item["type"] == "function_call"


@pytest.mark.parametrize(
    "answer", [OUTPUT, {"type": "function_call_output", "call_id": "call_1", "output": "a.py"}]
)
def test_a_command_and_its_output_are_a_call_and_its_result(answer):
    TypeAdapter(ResponseInputItem).validate_python(CALL, strict=True)
    assert messages(USER, CALL, answer)[1:] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "local_shell", "arguments": ALL}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "name": "local_shell", "content": "a.py"},
    ]


def test_a_model_sees_no_more_of_its_command_than_it_has_written():
    bare = {**CALL, "action": {"type": "exec", "command": ["ls"], "env": {}, "user": None}}
    (call,) = messages(USER, bare)[1]["tool_calls"]
    assert call["function"]["arguments"] == {"command": ["ls"]}
    unset = {**CALL, "action": {"type": "exec", "command": ["ls"], "env": None}}
    assert messages(USER, unset) == messages(USER, bare)


@pytest.mark.parametrize("id_", ["call_1", "lsh_1"])
def test_an_output_may_name_its_call_by_its_own_id(id_):
    """OpenAI's types have nothing else there, and say that it is the call's."""
    answer = {"type": "local_shell_call_output", "id": id_, "output": "a.py"}
    TypeAdapter(ResponseInputItem).validate_python(answer, strict=True)
    assert messages(USER, CALL, answer) == messages(USER, CALL, OUTPUT)
    (item,) = parsed([answer], previous_response_id="resp_1").extras[ASKED].items
    assert item["id"] == "", "kept items are found by their ids: this one is the call's"


def test_a_command_without_a_calls_id_is_called_by_its_own():
    nameless = {name: value for name, value in CALL.items() if name != "call_id"}
    found = messages(USER, nameless, {**OUTPUT, "call_id": "lsh_1"})
    assert found[1]["tool_calls"][0]["id"] == found[2]["tool_call_id"] == "lsh_1"


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "local_shell_call", "action": CALL["action"]}, "input.1.call_id"),
        ({"type": "local_shell_call", "call_id": "call_1"}, "input.1.action"),
        ({**CALL, "action": {**CALL["action"], "type": "open"}}, "input.1.action.type"),
        ({**CALL, "action": {**CALL["action"], "command": "ls"}}, "input.1.action.command"),
        ({**CALL, "action": {**CALL["action"], "command": []}}, "input.1.action.command"),
        ({**CALL, "action": {**CALL["action"], "env": {"A": 1}}}, "input.1.action.env.A"),
        ({**CALL, "action": {**CALL["action"], "shell": "zsh"}}, "input.1.action.shell"),
        ({"type": "local_shell_call_output", "output": "a.py"}, "input.1.call_id"),
        ({"type": "local_shell_call_output", "call_id": "call_1"}, "input.1.output"),
        ({**OUTPUT, "call_id": "call_9"}, "input.1.call_id"),
        ({"type": "local_shell_call_output", "id": "", "output": "a.py"}, "input.1.call_id"),
    ],
)
def test_a_wrong_item_of_the_shell_is_named_by_its_place(item, param):
    assert refused([USER, item]).param == param


def test_a_choice_names_the_shell():
    by_type = parsed(tools=[SHELL, WEATHER], tool_choice=SHELL)
    by_name = parsed(tools=[SHELL, WEATHER], tool_choice={"type": "function", "name": "local_shell"})
    for asked in (by_type, by_name):
        assert (asked.tools.choice, asked.tools.name) == ("named", "local_shell")
        whole(asked, [], "stop")
    some = parsed(tools=[SHELL, WEATHER], tool_choice={"type": "allowed_tools", "tools": [SHELL]})
    assert [tool.name for tool in some.tools.tools] == ["local_shell"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [WEATHER], "tool_choice": SHELL}, "tool_choice.name"),
        ({"tools": [SHELL], "tool_choice": {**SHELL, "name": "local_shell"}}, "tool_choice"),
        ({"tools": [SHELL, SHELL]}, "tools.1"),
        ({"tools": [SHELL, {**WEATHER, "name": "local_shell"}]}, "tools.1"),
        ({"tools": [{**SHELL, "cwd": "/"}]}, "tools.0.cwd"),
        ({"tools": [{"type": "shell"}]}, "tools.0.type"),
        ({"tools": [{"type": "apply_patch"}]}, "tools.0.type"),
    ],
)
def test_a_wrong_shell_or_choice_is_named(fields, param):
    assert refused(**fields).param == param


async def test_a_shell_is_called_and_answered_by_what_was_kept_and_by_what_is_sent_back(tmp_path):
    async with (
        responses_gateway(tmp_path, '@local_shell{"command":["ls"]}@') as here,
        client(here) as official,
    ):
        body = asking("List.", tools=[SHELL], tool_choice=SHELL, seed=1)
        checked_events(await here.post(RESPONSES, {**body, "stream": True}))
        checked_response((await here.post(RESPONSES, body)).body)
        first = await official.responses.create(model=NAME, input="List.", tools=[SHELL])
        (call,) = first.output
        assert (call.type, call.action.command) == ("local_shell_call", ["ls"])
        says(here, "A file.")
        result = {"type": "local_shell_call_output", "id": call.call_id, "output": "a.py"}
        asked = {"model": NAME, "tools": [SHELL]}
        second = await official.responses.create(input=[result], previous_response_id=first.id, **asked)
        kept = prompt_text(here)
        assert kept == (
            'local_shell\nuser:List.\nassistant:!local_shell{"command": ["ls"]}\n'
            f"tool({call.call_id} local_shell):a.py\n"
        )
        given = [{"role": "user", "content": "List."}, call.to_dict(), result]
        await official.responses.create(input=given, store=False, **asked)
        assert prompt_text(here) == kept
        listed = [item async for item in await official.responses.input_items.list(second.id, order="asc")]
        assert [item.type for item in listed] == ["message", "local_shell_call", "local_shell_call_output"]
        assert len({item.id for item in listed}) == 3
        await official.responses.create(input=[item.to_dict() for item in listed], store=False, **asked)
        assert prompt_text(here) == kept
