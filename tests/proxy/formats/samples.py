"""Answers as models of each family write them, and the pieces that they are."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from proxy.answer import Call, Piece, Text, Thought, joined
from proxy.formats.format import Format, Reader
from proxy.formats.table import format_of
from proxy.request import Tool

WEATHER: Final = Tool(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "hourly": {"type": "boolean"},
            "places": {"type": "array"},
            "note": {"type": ["string", "null"]},
        },
    },
)
RUN: Final = Tool("run", parameters={"type": "object", "properties": {"code": {"type": "string"}}})
TOOLS: Final = (WEATHER, RUN)
TRICKY: Final = '{"code": "if (a[0] == \\"}</tool_call>\\\\\\") {\\n<think>é 😀 \\u00e9 [TOOL_CALLS]"}'
CITY: Final = '{"city": "Rome"}'


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer's text in a family's format. `begun` says that the prompt ended inside a thought."""

    family: str
    text: str
    pieces: tuple[Piece, ...]
    begun: bool = False
    tools: tuple[Tool, ...] = TOOLS


def named(family: str, words: Mapping[str, int] | None = None) -> Format:
    """Return a family's format, thoughts and all."""
    known = format_of("<think> [THINK] <|channel>thought", words or {}, family)
    assert known.name == family
    return known


def reader_of(sample: Sample) -> Reader:
    return named(sample.family).reader(sample.begun, sample.tools)


def read(reader: Reader, parts: Sequence[str]) -> list[Piece]:
    """Return the pieces of a text that comes in these parts."""
    pieces = [piece for part in parts for piece in reader.feed(part)]
    return list(joined([*pieces, *reader.finish()]))


def call(arguments: str, name: str = "get_weather") -> Call:
    return Call(name, arguments)


def hermes(arguments: str, name: str = "get_weather") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def xml(name: str, values: Mapping[str, str]) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def minimax(name: str, values: Mapping[str, str]) -> str:
    inner = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in values.items())
    return f'<invoke name="{name}">\n{inner}</invoke>\n'


def glm(name: str, values: Mapping[str, str]) -> str:
    inner = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values.items()
    )
    return f"<tool_call>{name}\n{inner}</tool_call>"


def harmony(name: str, arguments: str) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}"


def kimi(arguments: str, number: int) -> str:
    return (
        f"<|tool_call_begin|>functions.get_weather:{number}<|tool_call_argument_begin|>"
        f"{arguments}<|tool_call_end|>"
    )


def deepseek(text: str) -> str:
    """Return a text with DeepSeek's marks for [calls], [call], [sep], [end] and [ends]."""
    marks = {
        "[calls]": "tool\u2581calls\u2581begin",
        "[call]": "tool\u2581call\u2581begin",
        "[sep]": "tool\u2581sep",
        "[end]": "tool\u2581call\u2581end",
        "[ends]": "tool\u2581calls\u2581end",
    }
    for short, mark in marks.items():
        text = text.replace(short, f"<\uff5c{mark}\uff5c>")
    return text


def lfm(calls: str) -> str:
    return f"<|tool_call_start|>[{calls}]<|tool_call_end|>"


_PYTHON: Final = (
    "get_weather(city = 'Ro\"me', days=-3, hourly=True, places=[\"a\", ('b',), {'c': 1.5e3, }, [], ], "
    "note=None, more={}, ), run()"
)
_PYTHON_JSON: Final = (
    '{"city": "Ro\\"me", "days": -3, "hourly": true, "places": ["a", ["b"], {"c": 1.5e3}, []], '
    '"note": null, "more": {}}'
)
_QUOTED: Final = r"\n\t\\ \"a\' \x41 \ud83d\ude00 \U0001f600 \q " + "<|tool_call_end|>é\n" + "\\\n" + r"\0"
_UNQUOTED: Final = "\n\t\\ \"a' A 😀 😀 \\q <|tool_call_end|>é\n\0"
_VALUES: Final[Mapping[str, str]] = {
    "city": "007",
    "days": "3",
    "hourly": "True",
    "places": '["a", {"b": 1}]',
    "note": "null",
    "else": "so it is",
    "more": "[1]",
}
_TYPED: Final = (
    '{"city": "007", "days": 3, "hourly": true, "places": ["a", {"b": 1}], "note": null, '
    '"else": "so it is", "more": [1]}'
)
_CODE: Final = 'if a < b:\n    print("</tool_call>")  # </parameter>, <function=x>'
_CODE_JSON: Final = '{"code": "if a < b:\\n    print(\\"</tool_call>\\")  # </parameter>, <function=x>"}'
_PREAMBLE: Final = "<|channel|>commentary<|message|>I'll look.<|end|><|start|>assistant"

CALLS: Final = (
    Sample("hermes", hermes(CITY), (call(CITY),)),
    Sample(
        "hermes",
        f"<think>\nLet me\n\nsee.\n</think>\n\nSure:\n{hermes(CITY)}\n{hermes(TRICKY, 'run')}\n\nDone. ",
        (Thought("Let me\n\nsee."), Text("Sure:"), call(CITY), call(TRICKY, "run"), Text("Done. ")),
    ),
    Sample("hermes", '<tool_call>{"arguments":{}, "name" :"run"}</tool_call>', (call("{}", "run"),)),
    Sample("hermes", '<tool_call>{"name":"run"}</tool_call>', (call("{}", "run"),)),
    Sample("hermes", f"so.\n</think>\n{hermes(CITY)}", (Thought("so."), call(CITY)), begun=True),
    Sample("llama", '{"name": "get_weather", "parameters": {"city": "Rome"}}', (call(CITY),)),
    Sample(
        "llama",
        f'\n{{"name": "get_weather", "parameters": {CITY}}}; {{"name": "run", "parameters": {TRICKY}}}',
        (call(CITY), call(TRICKY, "run")),
    ),
    Sample(
        "llama",
        f'Well. <|python_tag|>{{"type": "function", "name": "get_weather", "parameters": {CITY}}}',
        (Text("Well."), call(CITY)),
    ),
    Sample("mistral", f"[TOOL_CALLS]get_weather[ARGS]{CITY}", (call(CITY),)),
    Sample(
        "mistral",
        f"[THINK]Hm <think>[/THINK]I see.[TOOL_CALLS]run[CALL_ID]a1B2c3D4e[ARGS]{TRICKY}"
        f"[TOOL_CALLS]get_weather[ARGS] {CITY}",
        (Thought("Hm <think>"), Text("I see."), call(TRICKY, "run"), call(CITY)),
    ),
    Sample(
        "mistral",
        f"[TOOL_CALLS]get_weather[ARGS]{CITY}run[ARGS]{TRICKY}\nrun[CALL_ID]a1[ARGS]{{}} run it "
        "[TOOL_CALLS]run[ARGS]{}",
        (call(CITY), call(TRICKY, "run"), call("{}", "run"), Text("run it"), call("{}", "run")),
    ),
    Sample(
        "mistral-list",
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {CITY}, "id": "a1B2c3D4e"}}, '
        f'{{"name": "run", "arguments": {TRICKY}}}]',
        (call(CITY), call(TRICKY, "run")),
    ),
    Sample(
        "deepseek",
        deepseek(
            f"<think>\nno\n</think>\n\n[calls][call]function[sep]get_weather\n```json\n{CITY}\n```[end]\n"
            f"[call]function[sep]run\n```json\n{TRICKY}\n```[end][ends]"
        ),
        (Thought("no"), call(CITY), call(TRICKY, "run")),
    ),
    Sample(
        "deepseek-v3.1",
        deepseek(f"Ah.[calls][call]get_weather[sep]{CITY}[end][call]run[sep]{TRICKY}[end][ends]"),
        (Text("Ah."), call(CITY), call(TRICKY, "run")),
    ),
    Sample(
        "kimi",
        f"<|tool_calls_section_begin|>{kimi(CITY, 0)}{kimi('{}', 1)}<|tool_calls_section_end|>",
        (call(CITY), call("{}")),
    ),
    Sample("lfm2", lfm('get_weather(city="Rome")'), (call(CITY),)),
    Sample(
        "lfm2",
        f"<think>Hm</think>So.{lfm(_PYTHON)}Done.",
        (Thought("Hm"), Text("So."), call(_PYTHON_JSON), call("{}", "run"), Text("Done.")),
    ),
    Sample(
        "lfm2",
        lfm(f"run(code='{_QUOTED}')"),
        (call(json.dumps({"code": _UNQUOTED}, ensure_ascii=False), "run"),),
    ),
    Sample(
        "lfm2",
        lfm(f'{{"name": "get_weather", "arguments": {CITY}}}, {{"name": "run", "arguments": {TRICKY}}}'),
        (call(CITY), call(TRICKY, "run")),
    ),
    Sample(
        "qwen-xml",
        f"<think>\nx\n</think>\n\nNow\n\n{xml('get_weather', _VALUES)}\n{xml('run', {'code': _CODE})}",
        (Thought("x"), Text("Now"), call(_TYPED), call(_CODE_JSON, "run")),
    ),
    Sample("qwen-xml", "<tool_call><function=run></function></tool_call>", (call("{}", "run"),)),
    Sample("qwen-xml", xml("run", {"code": "\n a\n"}), (call('{"code": "\\n a\\n"}', "run"),)),
    Sample(
        "qwen-xml",
        xml("run", {"code": "1"}).removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"),
        (call('{"code": "1"}', "run"),),
    ),
    Sample(
        "minimax",
        f"<think>y</think>\n<minimax:tool_call>\n{minimax('get_weather', _VALUES)}"
        f"{minimax('run', {'code': _CODE})}</minimax:tool_call>",
        (Thought("y"), call(_TYPED), call(_CODE_JSON, "run")),
    ),
    Sample(
        "glm",
        f"\n<think></think>\n{glm('get_weather', _VALUES)}\n{glm('run', {'code': _CODE})}",
        (call(_TYPED), call(_CODE_JSON, "run")),
    ),
    Sample("glm", "<tool_call>run</tool_call>", (call("{}", "run"),)),
    Sample(
        "glm",
        "<tool_call>run<arg_key>code</arg_key><arg_value>x\n</arg_value></tool_call>",
        (call('{"code": "x\\n"}', "run"),),
    ),
    Sample(
        "gemma-4",
        "<|channel>thought\nI think.\n<channel|>Yes.<|tool_call>call:get_weather{city:"
        '<|"|>a "}<tool_call|>\\ b<|"|>,days:-3,places:[<|"|>x<|"|>,{k:1.5,l:[]}],hourly:true,o:{}}'
        "<tool_call|><|tool_call>call:run{}<tool_call|>",
        (
            Thought("I think."),
            Text("Yes."),
            call(
                '{"city": "a \\"}<tool_call|>\\\\ b", "days": -3, "places": ["x", {"k": 1.5, "l": []}], '
                '"hourly": true, "o": {}}'
            ),
            call("{}", "run"),
        ),
    ),
    Sample(
        "function-gemma",
        "<start_function_call>call:get_weather{city:<escape>Rome, {é}<escape>,days:2}<end_function_call>",
        (call('{"city": "Rome, {é}", "days": 2}'),),
    ),
    Sample(
        "gpt-oss",
        f"<|channel|>analysis<|message|>\nThe user\nasks.<|end|><|start|>assistant{_PREAMBLE}"
        f"{harmony('get_weather', CITY)}<|call|>",
        (Thought("The user\nasks."), Text("I'll look."), call(CITY)),
    ),
    Sample(
        "gpt-oss",
        f" to=functions.run<|channel|>commentary json<|message|>{TRICKY}<|end|><|start|>assistant "
        f"to=functions.get_weather<|channel|>analysis<|message|>{CITY}",
        (call(TRICKY, "run"), call(CITY)),
    ),
)

TEXTS: Final = (
    *(Sample(family, "<think>\n\n</think>\n\nHi\n", (Text("Hi\n"),)) for family in ("hermes", "think")),
    Sample("think", "<think>It goes on  \n<b>", (Thought("It goes on  \n<b>"),)),
    Sample("think", "<think>\nagain\n</think>\n\n 1 < 2\n", (Thought("again"), Text("1 < 2\n")), begun=True),
    Sample("think", " \n\n", (), begun=True),
    Sample(
        "think",
        "I mean `<think>` and </think>, which I write.\n</think>\nSo.",
        (Text("I mean `<think>` and </think>, which I write."), Text("So.")),
    ),
    Sample("think", "  <tool_call> \n", (Text("  <tool_call> \n"),)),
    Sample("plain", " <think>a</think> ", (Text(" <think>a</think> "),)),
    Sample(
        "hermes",
        f"<think>{hermes(CITY)}</think>{hermes(CITY)}",
        (Thought(hermes(CITY)), Text(hermes(CITY))),
        tools=(),
    ),
    Sample("mistral", "[TOOL_CALLS] is run[ARGS]{}", (Text("[TOOL_CALLS] is run[ARGS]{}"),)),
    Sample("llama", '{"name": "Ann", "parameters": {}}', (Text('{"name": "Ann", "parameters": {}}'),)),
    Sample(
        "llama",
        f'So {{"name": "run", "parameters": {CITY}}}; {{',
        (Text(f'So {{"name": "run", "parameters": {CITY}}}; {{'),),
    ),
    Sample("llama", "<|python_tag|>print(1)", (Text("<|python_tag|>print(1)"),)),
    Sample("gpt-oss", "<|channel|>final<|message|>Hi \n<|return|>", (Text("Hi \n"),)),
    Sample("gpt-oss", f"{_PREAMBLE}<|channel|>final<|message|>Hi <|", (Text("I'll look.\n\nHi <|"),)),
    Sample("gpt-oss", "hm.\n<|end|><|start|>assistant<|channel|>fin", (Thought("hm."),), begun=True),
    Sample("gpt-oss", "Hi there", (Text("Hi there"),)),
    Sample(
        "gpt-oss",
        f"<|channel|>final<|message|>Hm{harmony('run', '[1]')}<|call|>",
        (Text(f"Hm\n\n{harmony('run', '[1]')}"),),
    ),
    Sample("gpt-oss", harmony("run", "{}"), (Text("{}"),), tools=()),
)
