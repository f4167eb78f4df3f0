"""Shapes and schemas made to take the proxy's time, memory or stack: each is refused, or held to.

What isn't bounded would end this process; how long it takes is measured by hand.
"""

import json
import threading

import pytest

from shared.errors import InvalidRequest
from tests.proxy.grammars.small_answers import Writer, shape

WRITER = Writer("think")


def chain(count, make=lambda reference: reference):
    ends = {f"a{n}": make({"$ref": f"#/$defs/a{n + 1}"}) for n in range(count)}
    return {"$ref": "#/$defs/a0", "$defs": {**ends, f"a{count}": {"type": "object"}}}


def rules(count, rule):
    return "start: a0\n" + "".join(rule.format(n, n + 1) for n in range(count)) + f'a{count}: "x"'


REGEXES = {
    "repetitions": "(a{1,1000}){1,1000}",
    "deep repetitions": "(((((((((a{2}){2}){2}){2}){2}){2}){2}){2}){2}){1000}",
    "blind alleys": "(.*a){50}.*(b|c.*d){40}",
    "optional": "a?" * 500,
    "many states": "(.*)a.{200}",
    "letters": r"(\p{L}\p{N}){500}",
    "brackets": "(" * 500 + ")" * 500,
    "two dots": "(.{0,1000}a.{0,1000}b){0,1000}",
}
GRAMMARS = {
    "brackets": "start: " + "(" * 5000 + '"a"' + ")" * 5000,
    "long chain": rules(3000, "a{}: a{}\n"),
    "chain": rules(250, "a{}: a{}\n"),
    "doubling": rules(40, "a{0}: a{1} a{1}\n"),
    "repetitions": 'start: ("a"{0,1000}){0,1000}',
    "joined": "start: T\nT: " + " & ".join(f"/(?s:.*)w{n}(?s:.*)/" for n in range(40)),
    "left": 'start: start "a" | start start | "a"',
    "never ends": 'start: "a" start',
    "open string": 'start: "' + "\\" * 999,
}
SCHEMAS = {
    "members": {"enum": [f"value {n}" for n in range(10_000)]},
    "long text": {"type": "string", "minLength": 10**9},
    "longer text": {"type": "string", "maxLength": 10**18},
    "long list": {"type": "array", "items": {"type": "integer"}, "minItems": 10**12},
    "references": chain(5000),
    "references in properties": chain(2000, lambda reference: {"properties": {"x": reference}}),
    "fewer references": chain(250),
    "doubling": chain(60, lambda reference: {"properties": {"x": reference, "y": reference}}),
    "doubling joins": chain(60, lambda reference: {"allOf": [reference, reference]}),
    "doubling choices": chain(60, lambda reference: {"anyOf": [reference, reference]}),
    "patterns": {"type": "string", "allOf": [{"pattern": f"w{n}"} for n in range(40)]},
    "hard patterns": {
        "allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(90, 94)]
    },
    "pattern and length": {"type": "string", "pattern": "a.*b.*c.*d", "maxLength": 3000, "minLength": 2900},
    "divisor": {"type": "integer", "multipleOf": 999_983},
    "divisors": {"allOf": [{"type": "integer", "multipleOf": n} for n in (9967, 9973, 9949)]},
    "choices": {
        "allOf": [
            {"anyOf": [{"type": "object", "required": [f"p{n}{m}"]} for m in range(4)]} for n in range(10)
        ]
    },
    "properties": {"properties": {f"p{n}": {} for n in range(5000)}},
    "keys": {"patternProperties": {f"^x{n}_(a|b)*a(a|b){{20}}$": {} for n in range(300)}},
}
SHAPES = {
    **{f"regex: {name}": shape("regex", source) for name, source in REGEXES.items()},
    **{f"lark: {name}": shape("lark", source) for name, source in GRAMMARS.items()},
    **{f"schema: {name}": shape("json_schema", json.dumps(content)) for name, content in SCHEMAS.items()},
    "schema: deep": shape("json_schema", '{"items":' * 20_000 + "{}" + "}" * 20_000),
    "choice: many": shape("choice", json.dumps([f"{'x' * 200}{n}" for n in range(300)])),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_hostile_shape_is_refused_or_can_be_begun(name):
    ends = []

    def asks():
        try:
            grammar = WRITER.grammar(shape=SHAPES[name])
        except InvalidRequest as refused:
            ends.append(refused)
        else:
            ends.append(WRITER.allowed(WRITER.matcher(grammar)))

    # In a thread as in the proxy: the main one has another stack.
    thread = threading.Thread(target=asks)
    thread.start()
    thread.join()
    assert ends
    assert ends[0]
