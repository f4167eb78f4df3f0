"""Messages of Anthropic's: turns of blocks, what they come to for a template, what is refused and where."""

import json

import pytest

from proxy.dialects.messages_parse import parse_messages
from shared.errors import InvalidRequest
from tests.proxy.messages_world import body


def parsed(**fields):
    return parse_messages(json.dumps(body(**fields)).encode(), lambda: 7)


def prompt(**fields):
    (chat,) = parsed(**fields).prompts
    return chat


def said(*messages, **fields):
    return list(prompt(messages=list(messages), **fields).messages)


def user(*content):
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def assistant(*content):
    return {**user(*content), "role": "assistant"}


def system(*content):
    return {**user(*content), "role": "system"}


def text(words):
    return {"type": "text", "text": words}


def call(id_="c1", name="f", **arguments):
    return {"type": "tool_use", "id": id_, "name": name, "input": arguments}


def result(id_="c1", **fields):
    return {"type": "tool_result", "tool_use_id": id_, **fields}


CALLED = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}


# --- messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    ["One.", [text("One.")], [{**text("One."), "cache_control": {"type": "ephemeral", "ttl": "1h"}}]],
    ids=["string", "blocks", "cached"],
)
def test_instructions_come_first_whether_a_string_or_blocks(given):
    assert said(user("Hi"), system=given) == [
        {"role": "system", "content": "One."},
        {"role": "user", "content": "Hi"},
    ]


def test_instructions_inside_the_messages_stay_where_they_are_and_join_those_at_the_head():
    messages = said(system("Two."), user("Hi"), system(text("Now.")), system=[text("One.")])
    assert messages == [
        {"role": "system", "content": "One.\n\nTwo."},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Now."},
    ]


@pytest.mark.parametrize("given", [None, "", [], [text("")]])
def test_without_instructions_there_is_no_message_of_the_system(given):
    assert said(user("Hi"), system=given) == [{"role": "user", "content": "Hi"}]


def test_a_note_on_billing_at_the_head_of_the_instructions_is_no_part_of_the_prompt():
    note = "x-anthropic-billing-header: v=1; cch={};"
    first = said(user("Hi"), system=[text(note.format(1)), text("One.")])
    assert first == said(user("Hi"), system=[text(note.format(2)), text("One.")])
    assert first == said(user("Hi"), system=note.format(3) + "\nOne.")
    assert first[0]["content"] == "One."
    assert said(user(note))[0]["content"] == note


def test_neighbours_of_one_role_are_one_turn():
    assert said(user("a"), user(text("b"), text("c")), assistant("d"), assistant("e"), user("f")) == [
        {"role": "user", "content": "a\n\nb\n\nc"},
        {"role": "assistant", "content": "de"},
        {"role": "user", "content": "f"},
    ]


def test_a_call_its_result_and_what_follows_come_in_the_form_of_templates():
    turn = assistant(
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "xyz"},
        {**text("See."), "citations": None},
        call(a=1),
    )
    assert said(user("Hi"), turn, user(result(content=[text("r1"), text("r2")]), text("and?"))) == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "See.", "reasoning_content": "hm", "tool_calls": [CALLED]},
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "r1\n\nr2"},
        {"role": "user", "content": "and?"},
    ]


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({}, ""),
        ({"content": None}, ""),
        ({"content": []}, ""),
        ({"content": "r"}, "r"),
        ({"content": "r", "is_error": False}, "r"),
        ({"content": "no such file", "is_error": True}, "Error: no such file"),
        ({"content": [{**text("r"), "cache_control": {"type": "ephemeral"}}]}, "r"),
    ],
)
def test_a_result_is_text_and_says_that_it_is_an_error(fields, content):
    last = said(user("Hi"), assistant(call(a=1)), user(result(**fields)))[-1]
    assert last == {"role": "tool", "tool_call_id": "c1", "name": "f", "content": content}


def test_results_of_several_calls_keep_their_order_and_their_names():
    messages = said(
        user("Hi"),
        assistant(call("c1", "f"), text("and"), call("c2", "g")),
        user(result("c2", content="2"), result("c1", content="1"), text("")),
    )
    assert [message.get("name") for message in messages] == [None, None, "g", "f"]
    assert [each["id"] for each in messages[1]["tool_calls"]] == ["c1", "c2"]
    assert messages[-1]["content"] == "1"


def test_texts_of_an_assistant_that_something_stood_between_are_apart():
    turn = assistant(text("a"), text("b"), call(a=1), text("c"))
    assert said(user("Hi"), turn, user(result()))[1]["content"] == "ab\n\nc"


# --- an answer that was begun -------------------------------------------------------------------------------


def test_a_last_message_of_the_assistants_is_gone_on_with():
    chat = prompt(messages=[user("Hi"), assistant("The best is (")])
    assert chat.continues
    assert chat.messages[-1] == {"role": "assistant", "content": "The best is ("}
    assert parsed(messages=[user("Hi"), assistant("The")]).continues


@pytest.mark.parametrize("empty", ["", [], [text("")]])
def test_an_empty_last_message_of_the_assistants_is_none(empty):
    chat = prompt(messages=[user("Hi"), {"role": "assistant", "content": empty}])
    assert not chat.continues
    assert [message["role"] for message in chat.messages] == ["user"]


def test_a_message_of_the_assistants_that_is_not_the_last_is_not_gone_on_with():
    assert not prompt(messages=[user("Hi"), assistant("a"), user("b")]).continues


# --- what is refused, and where -----------------------------------------------------------------------------

HI, CALL = user("Hi"), assistant(call())


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("Hi", "messages"),
        (["Hi"], "messages.0"),
        ([{"role": "tool", "content": "x"}], "messages.0.role"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": 5}], "messages.0.content"),
        ([{"role": "user", "content": ""}], "messages.0.content"),
        ([{"role": "user", "content": []}], "messages.0.content"),
        ([{"role": "user", "content": "x", "nmae": 1}], "messages.0.nmae"),
        ([user(text("x"), "y")], "messages.0.content.1"),
        ([user({"type": "text"})], "messages.0.content.0.text"),
        ([user({"text": "x"})], "messages.0.content.0.type"),
        ([user({"type": [], "text": "x"})], "messages.0.content.0.type"),
        ([user({**text("x"), "cach_control": {}})], "messages.0.content.0.cach_control"),
        ([user({"type": "image", "source": {}})], "messages.0.content.0.type"),
        ([user({"type": "document", "source": {}})], "messages.0.content.0.type"),
        ([user(call())], "messages.0.content.0.type"),
        ([HI, assistant({"type": "server_tool_use"}), HI], "messages.1.content.0.type"),
        ([HI, assistant({"type": "thinking", "signature": "s"}), HI], "messages.1.content.0.thinking"),
        ([HI, assistant({**call(), "input": "{}"}), HI], "messages.1.content.0.input"),
        ([HI, CALL, user(result("c2"))], "messages.2.content.0.tool_use_id"),
        ([user(result())], "messages.0.content.0.tool_use_id"),
        ([HI, CALL, user(result(content=5))], "messages.2.content.0.content"),
        (
            [HI, CALL, user(result(content=[text("a"), {"type": "image"}]))],
            "messages.2.content.0.content.1.type",
        ),
        ([HI, CALL, user(result(is_error="no"))], "messages.2.content.0.is_error"),
        ([HI, CALL], "messages.1"),
        ([HI, assistant({"type": "thinking", "thinking": "t", "signature": ""})], "messages.1"),
        ([system("x")], "messages"),
        ([{"role": "assistant", "content": ""}], "messages"),
    ],
)
def test_what_is_wrong_with_messages_is_refused_by_its_place(messages, param):
    with pytest.raises(InvalidRequest) as caught:
        parsed(messages=messages)
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message
    assert caught.value.message.endswith(".")


def test_pictures_are_refused_in_words_that_say_why():
    with pytest.raises(InvalidRequest, match="is 'image', and this model reads text only"):
        parsed(messages=[user({"type": "image", "source": {"type": "url", "url": "x"}})])
