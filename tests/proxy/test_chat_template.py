"""Conversations as templates of several families show them: tools, thoughts, calls, and going on."""

from datetime import UTC, datetime

import pytest

from proxy.chat_template import ChatTemplate
from proxy.request import ChatPrompt, Thinking, Tool
from shared.errors import InvalidRequest

USER = {"role": "user", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be brief"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"at": "é"}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "sun", "tool_call_id": "c1", "name": "look"}
TOOL = Tool("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}})
TURNS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def template(source, **words):
    return ChatTemplate(source, words, lambda: datetime(2026, 3, 1, tzinfo=UTC))


def shown(source, *messages, **prompt):
    return template(source).render(ChatPrompt(messages or (USER,), **prompt))


def refusal_of(source, *messages, **prompt):
    with pytest.raises(InvalidRequest) as refusal:
        shown(source, *messages, **prompt)
    return refusal.value


# --- tools --------------------------------------------------------------------------------------------------


def test_tools_are_shown_in_the_shape_that_templates_know():
    text = shown("{% for each in tools %}{{ each | tojson }}{% endfor %}", tools=(TOOL,))
    assert text == (
        '{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": '
        '{"type": "object", "properties": {"at": {"type": "string"}}}}}'
    )


def test_without_tools_there_are_none():
    assert shown("{{ tools is none }}") == "True"


def test_tools_on_a_template_without_them_are_refused_by_name():
    refusal = refusal_of(TURNS, tools=(TOOL,))
    assert refusal.param == "tools"
    assert "doesn't know tools" in refusal.message


@pytest.mark.parametrize(
    "written",
    [
        "{{ c.arguments | tojson }}",
        "{{ c.arguments }}",
        "{{ '' ~ c.arguments }}",
        "{{ '' + c.arguments }}",
        "{% if c.arguments is string %}{{ c.arguments }}{% else %}{{ c.arguments | tojson }}{% endif %}",
        "{{ '%s' % c.arguments if c.arguments is string else raise_exception('text, please') }}",
    ],
)
def test_a_calls_arguments_are_json_whichever_way_a_template_writes_them(written):
    source = f"{{% for m in messages %}}{{% for t in m.tool_calls %}}{{% set c = t.function %}}{written}"
    assert shown(source + "{% endfor %}{% endfor %}", USER, CALLED, RESULT) == '{"at": "é"}'


def test_a_template_may_look_into_a_calls_arguments():
    source = (
        "{% for k, v in messages[1].tool_calls[0].function.arguments.items() %}{{ k }}={{ v }}{% endfor %}"
    )
    assert shown(source, USER, CALLED) == "at=é"


@pytest.mark.parametrize("nothing", [{}, {"content": None}, {"content": "", "tool_calls": []}])
def test_a_message_that_says_nothing_has_an_empty_text_and_no_calls(nothing):
    source = "{{ messages[0].content == '' }} {{ 'tool_calls' in messages[0] }}"
    assert shown(source, {"role": "assistant", **nothing}) == "True False"


# --- forms --------------------------------------------------------------------------------------------------


def test_a_template_that_refuses_a_system_gets_its_words_from_the_user():
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TURNS
    assert shown(source, SYSTEM, USER) == "<user>Be brief\n\nHi</><assistant>"
    assert "no system" in refusal_of(source, SYSTEM, CALLED).message


def test_the_first_complaint_is_the_one_that_is_told():
    source = "{{ raise_exception(messages | length | string ~ ' are wrong') }}"
    assert refusal_of(source, SYSTEM, USER).message.endswith("2 are wrong.")


def test_a_template_that_reads_parts_only_gets_parts():
    source = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %};{% endfor %}"
    assert shown(source, SYSTEM, USER) == "Be brief;Hi;"
    both = "{% for m in messages %}{% if m.content is string %}s{{ m.content }}{% endif %};{% endfor %}"
    assert shown(both, SYSTEM, USER) == "sBe brief;sHi;"


# --- thinking and options -----------------------------------------------------------------------------------

SWITCH = "{% if enable_thinking is defined %}{{ enable_thinking }}{% else %}unsaid{% endif %}"


@pytest.mark.parametrize(
    ("source", "thinking", "text"),
    [
        (SWITCH, Thinking(), "unsaid"),
        (SWITCH, Thinking(enabled=False), "False"),
        (SWITCH, Thinking(enabled=True, effort="high"), "True"),
        ("{{ thinking }}", Thinking(enabled=True), "True"),
        ("{{ reasoning_effort | default('medium') }}", Thinking(effort="high"), "high"),
        ("{{ reasoning_effort | default('medium') }}", Thinking(), "medium"),
        ("x", Thinking(enabled=True, effort="high"), "x"),
    ],
)
def test_a_wish_about_thinking_reaches_the_variable_that_the_template_has(source, thinking, text):
    assert shown(source, thinking=thinking) == text


def test_a_template_says_what_can_be_wished():
    plain, switched = template("x"), template("{% if tools %}{% endif %}" + SWITCH)
    assert (plain.knows_tools, plain.thinking_switch, plain.efforts) == (False, False, ())
    assert (switched.knows_tools, switched.thinking_switch) == (True, True)
    assert template("{{ reasoning_effort }}").efforts == ("low", "medium", "high")
    assert template("{{ reasoning_effort in ['high', 'max'] }}").efforts == ("high", "max")


def test_what_a_template_sets_by_itself_is_no_wish():
    assert not template("{% set enable_thinking = true %}{{ enable_thinking }}").thinking_switch


def test_options_are_variables_but_for_the_servers_own():
    assert shown("{{ colour }}", options={"colour": "red"}) == "red"
    for name in ("messages", "tools", "add_generation_prompt"):
        refusal = refusal_of("x", options={name: 1})
        assert (refusal.param, name in refusal.message) == ("chat_template_kwargs", True)
    with pytest.raises(InvalidRequest, match="bos_token"):
        template("x", bos_token="<s>").render(ChatPrompt((USER,), options={"bos_token": ""}))


# --- going on -----------------------------------------------------------------------------------------------


def begun(content, **more):
    return {"role": "assistant", "content": content, **more}


@pytest.mark.parametrize("begin", ["Well", "Well, ", "", "Hi"])
def test_a_last_message_is_gone_on_with_where_its_text_ends(begin):
    assert shown(TURNS, USER, begun(begin), continues=True) == f"<user>Hi</><assistant>{begin}"


def test_no_other_answer_is_begun_where_one_is_gone_on_with():
    source = "{{ add_generation_prompt }}{{ messages[0].content }}"
    assert shown(source, begun("a"), continues=True) == "Falsea"
    assert shown(source) == "TrueHi"


def test_spaces_at_the_end_of_a_begun_answer_stay():
    source = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
    assert shown(source, USER, begun("a "), continues=True) == "[Hi][a "


@pytest.mark.parametrize(
    ("source", "last"),
    [
        (TURNS, USER),
        (TURNS, begun("", tool_calls=[CALL])),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", begun("a")),
        (TURNS + TURNS, begun("a")),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused(source, last):
    assert "continued" in refusal_of(source, USER, last, continues=True).message


def test_a_client_cannot_move_the_place_where_an_answer_goes_on():
    mark = template("{% for m in messages %}{{ m.content }}{% endfor %}")
    for text in ("\ue0f5\uf8ce\ue5a1", "\ue0f5", "\ue5a1 \ue0f5"):
        said = (USER | {"content": text}, begun("a"))
        if "\ue0f5\uf8ce\ue5a1" in text:
            with pytest.raises(InvalidRequest, match="continued"):
                mark.render(ChatPrompt(said, continues=True))
        else:
            assert mark.render(ChatPrompt(said, continues=True)) == text + "a"


def test_a_refusal_names_the_messages_as_the_client_does():
    assert refusal_of("{{ raise_exception('no') }}", param="input").param == "input"


# --- what families' templates do ----------------------------------------------------------------------------


SHOUTS = "{% macro shout(m) %}{{ m.content.upper() }}{% endmacro %}"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ m.content.strip() }}{{ m.get('x', '-') }}", "Hi-"),
        ("{% for k, v in m.items() %}{{ k }};{% endfor %}", "role;content;"),
        ("{{ m.content.startswith('H') }}{{ 'a b'.split(' ') }}", "True['a', 'b']"),
        ("{{ shout(m) }}{{ strftime_now('%Y') }}", "HI2026"),
        ("{% set ns.n = ns.n + range(3)|length %}{{ ns.n }}", "3"),
    ],
)
def test_calls_in_a_loop_are_made_as_they_are_written(source, text):
    looped = f"{{% for m in messages %}}{source}{{% endfor %}}"
    assert shown(f"{SHOUTS}{{% set ns = namespace(n=0) %}}{looped}") == text
    inside = f"{{% set ns = namespace(n=0) %}}{looped}"
    assert shown(f"{SHOUTS}{{% block all %}}{inside}{{% endblock %}}") == text


def test_ids_of_calls_are_shortened_for_templates_that_take_no_others():
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{% if c.id|length != 9 %}{{ raise_exception('nine, please') }}{% endif %}{{ c.id }}{% endfor %}"
        "{% if m.role == 'tool' %}{% if m.tool_call_id|length != 9 %}{{ raise_exception('nine') }}{% endif %}"
        "={{ m.tool_call_id }}{% endif %}{% endfor %}"
    )
    called, result = shown(source, USER, CALLED, RESULT).split("=")
    assert called == result
    assert called.isalnum()


def test_a_template_that_goes_through_the_tools_without_asking_finds_none():
    assert shown("{% for each in tools %}{{ each }}{% endfor %}{{ messages[0].content }}") == "Hi"
