"""No template and no message takes for ever: hostile ones are refused in a bounded number of steps."""

import json
from datetime import UTC, datetime

import pytest

from proxy.chat_template import ChatTemplate
from proxy.request import ChatPrompt, Tool
from proxy.template_meter import Meter, TooCostlyError
from shared.errors import InvalidRequest, ModelError
from shared.limits import BODY_DEPTH_MAX, TEMPLATE_CHARS_MAX, TEMPLATE_CPU_S_MAX, TEMPLATE_WORK_MAX

HI = ChatPrompt(({"role": "user", "content": "Hi"},))
GROWING = "{{% set ns = namespace(a={0}) %}}{{% for i in range(1000) %}}{{% set ns.a = {1} %}}{{% endfor %}}"


def rendered(source, prompt=HI, meter=Meter):
    return ChatTemplate(source, {}, lambda: datetime(2026, 3, 1, tzinfo=UTC), meter).render(prompt)


HOSTILE = {
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops that do nothing": (
        "{% set r = range(999) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}"
    ),
    "a loop that drops all": (
        "{% for i in range(9999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}"
    ),
    "macros that call two": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "a macro without an end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a loop that calls itself": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "arguments that double": "{% macro f() %}{{ f(varargs, varargs) }}{% endmacro %}{{ f(1) }}",
    "text by a number": "{{ 'x' * 10 ** 9 }}",
    "a list by a number": "{{ 10 ** 9 * [1] }}",
    "text that doubles": GROWING.format("'x'", "ns.a + ns.a"),
    "text joined twice": GROWING.format("'x'", "ns.a ~ ns.a"),
    "text by a format": GROWING.format("'x'", "'{0}{0}'.format(ns.a)"),
    "text by a percent": GROWING.format("'x'", "'%s%s' % (ns.a, ns.a)"),
    "a list of itself twice": GROWING.format("[1]", "[ns.a, ns.a]") + "{{ ns.a }}",
    "a tuple of itself twice": GROWING.format("(1,)", "(ns.a, ns.a)") + "{{ {ns.a: 1} }}",
    "an object of itself twice": GROWING.format("{}", "{'a': ns.a, 'b': ns.a}") + "{{ ns.a | tojson }}",
    "a list in a list in a list": GROWING.format("[]", "[ns.a]") + "{{ ns.a }}",
    "equal lists compared": (
        GROWING.format("[1]", "[ns.a, ns.a]") + GROWING.format("[1]", "[ns.a, ns.a]") + "{{ ns.a == ns.a }}"
    ),
    "numbers that square": GROWING.format("9", "ns.a * ns.a"),
    "a high power": "{{ 2 ** 9999999 }}",
    "a block kept and written": (
        "{% set a %}{% for i in range(9999) %}{{ 'x' }}yyyyyyyyyyyy{% endfor %}{% endset %}"
        "{% for i in range(9999) %}{{ a }}{% endfor %}"
    ),
    "a wide percent": "{{ '%1000000000d' % 5 }}",
    "a wide percent by an argument": "{{ '%*d' | format(10 ** 9, 5) }}",
    "a wide format": "{{ '{:1000000000}'.format(1) }}",
    "a wide format by an argument": "{{ '{:{}}'.format(1, 10 ** 9) }}",
    "a wide format of a map": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "center": "{{ 'x' | center(10 ** 9) }}",
    "center by map": "{{ range(99999) | map('center', 99999) | list }}",
    "the method center": "{{ 'x'.center(10 ** 9) }}",
    "zfill": "{{ 'x'.zfill(10 ** 9) }}",
    "expandtabs": "{{ '\\t'.expandtabs(10 ** 9) }}",
    "indent": "{{ ('\\n' * 99999) | indent('y' * 99999) }}",
    "indent by a number": "{{ 'x' | indent(10 ** 9, true) }}",
    "replace": "{{ ('a' * 99999) | replace('', 'b' * 99999) }}",
    "the method replace": "{{ ('a' * 99999).replace('', 'b' * 99999) }}",
    "join": "{{ range(99999) | join('b' * 99999) }}",
    "the method join": "{{ ('b' * 99999).join(range(99999) | map('string')) }}",
    "tojson": "{{ messages | tojson(indent=10 ** 9) }}",
    "a wide tojson": "{{ (range(99999) | list) | tojson(separators=('x' * 9999, 'y')) }}",
    "batch": "{{ [1] | batch(10 ** 9, 1) | list }}",
    "slice": "{{ [1] | slice(10 ** 9) | list }}",
    "sum of lists": "{{ [[1]] | sum(start=[]) }}",
    "round": "{{ 1.5 | round(10 ** 9, 'ceil') }}",
    "striptags": "{{ ('<!--' * 99999) | striptags }}",
    "bytes": "{{ (5).to_bytes(10 ** 9, 'big') }}",
    "encode": "{{ 'x'.encode() }}",
    "lipsum": "{{ lipsum(10 ** 9) }}",
    "another file": "{% include 'x' %}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_template_is_refused(source):
    with pytest.raises(InvalidRequest, match="chat template can't render"):
        rendered(source)


def test_a_value_that_shows_itself_is_refused_or_short():
    source = GROWING.format("1", "namespace(x=ns.a, y=ns.a)")
    assert (
        rendered(source + "{{ ns.a }}{{ ns.a ~ '' }}{{ [ns.a] }}{{ ns.a | string }}").count("Namespace") == 4
    )


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ '%s-%03d' % ('a', 5) }}{{ '%s' | format('b') }}", "a-005b"),
        ("{{ '{{{0:>4}}}{a}'.format('x', a=1) }}", "{   x}1"),
        ("{{ 'a,b'.split(',') | join('+') }}{{ '+'.join(['a', 'b']) }}", "a+ba+b"),
        ("{{ 'x' | center(3) }}|{{ 'x'.ljust(3) }}|{{ 'a\\nb' | indent(2) }}", " x |x  |a\n  b"),
        ("{{ 'aba'.replace('a', 'c') }}{{ 'aba' | replace('a', 'c', 1) }}", "cbccba"),
        ("{{ [1, 2] | sum }}{{ 1.25 | round(1) }}{{ 2 ** 8 }}{{ 'ab' * 2 }}{{ 7 % 4 }}", "31.2256abab3"),
        ("{{ messages | map(attribute='role') | join(',') }}", "user"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{% for b in [1, 2, 3] | batch(2) %}{{ b }}{% endfor %}", "[1, 2][3]"),
        ("{% if messages | select('none') %}some{% endif %}", "some"),  # an iterator is true, as in Jinja
        ("{{ 1 < 2 < 3 }}{{ 'a' in 'abc' }}{{ 1 in [2] }}{{ 'a' not in 'b' }}", "TrueTrueFalseTrue"),
        ("{% for m in messages if m.role == 'user' %}{{ loop.index }}{% else %}none{% endfor %}", "1"),
        ("{{ 'abc'[::-1] }}{{ (1, 2)[1:] }}", "cba(2,)"),
        ("{{ nothing }}{{ none }}{{ true }}{{ 1.5 }}", "NoneTrue1.5"),
        (
            "{% macro f(a, b='x') %}{{ a }}{{ b }}{{ caller() }}{% endmacro %}{% call f(1) %}c{% endcall %}",
            "1xc",
        ),
        ("{% filter upper %}a{% endfilter %}{% set x %}b{% endset %}{{ x }}", "Ab"),
        ("{{ {'b': 1, 'a': [1, {}]} | tojson(indent=1) }}", '{\n "b": 1,\n "a": [\n  1,\n  {}\n ]\n}'),
    ],
)
def test_what_honest_templates_do_is_as_jinja_does_it(source, text):
    assert rendered(source) == text


def test_what_may_be_done_grows_with_what_came():
    """A template that writes each message ten times is honest, and refused for no length of them."""
    source = "{% for m in messages %}" + "{% if m.content %}{{ '<' + m.content | trim ~ '>' }}{% endif %}" * 4
    source += "{% endfor %}"
    long = ({"role": "user", "content": "word " * 200_000},)
    many = tuple({"role": "user", "content": "word"} for _ in range(4000))
    for messages in (long, many):
        text = "".join(f"<{message['content'].strip()}>" * 4 for message in messages)
        assert (
            rendered(source.replace("m.content | trim", "(m.content | trim)"), ChatPrompt(messages)) == text
        )


def test_deep_parameters_of_a_tool_are_shown():
    schema = {}
    for _ in range(BODY_DEPTH_MAX):
        schema = {"a": schema}
    prompt = ChatPrompt(HI.messages, (Tool("t", parameters=schema),))
    assert json.loads(rendered("{{ tools[0].function.parameters | tojson }}", prompt)) == schema


def test_steps_are_counted_and_the_threads_time_is_looked_at():
    meter = Meter([], iter([0.0, *[TEMPLATE_CPU_S_MAX] * 5, TEMPLATE_CPU_S_MAX + 1]).__next__)
    with pytest.raises(TooCostlyError, match="more than 10 s"):
        meter.taken(range(TEMPLATE_WORK_MAX))
    meter = Meter([], lambda: 0.0)
    with pytest.raises(TooCostlyError, match="steps"):
        meter.taken(range(TEMPLATE_WORK_MAX + 1000))


def test_shared_parts_weigh_as_often_as_they_are_written():
    meter = Meter([])
    inner = ["x" * 100]
    assert meter.weight([inner] * 3) > 3 * 100
    value = inner
    for _ in range(50):
        value = [value, value]
    with pytest.raises(TooCostlyError, match="characters"):
        meter.weighed(value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 5000 + ")" * 5000 + " }}",
        "{% if x %}" * 300 + "{% endif %}" * 300,
        "x" * (TEMPLATE_CHARS_MAX + 1),
    ],
    ids=["brackets", "levels", "length"],
)
def test_a_template_that_cannot_be_compiled_is_the_models_fault(source):
    with pytest.raises(ModelError, match="chat template"):
        rendered(source)
