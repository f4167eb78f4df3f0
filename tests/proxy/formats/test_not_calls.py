"""What begins like a call and isn't one stays text, whole, as it was written."""

import pytest

from proxy.answer import Call, Text, Thought
from tests.proxy.formats.samples import (
    CALLS,
    CITY,
    TOOLS,
    call,
    deepseek,
    harmony,
    hermes,
    kimi,
    named,
    read,
)

NOT_CALLS = [
    ("hermes", '<tool_call>{"name": "run", "arguments": {"code": "a" "b"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "run", "arguments": {"code": "a\nb"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "run", "arguments": {"code": "a\\x"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "run", "arguments": {"code": "\\ud800"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "run", "arguments": {"code": 01}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "run", "arguments": {"code": 1e999}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "run", "arguments": {"code": NaN}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "run", "arguments": {"code": 1,}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "run", "arguments": {"code": [1, 2}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "run", "arguments": {"code": ' + "9" * 1100 + "}}</tool_call>"),
    ("hermes", '<tool_call>{"name": "run", "arguments": ' + '{"a":' * 65 + "1" + "}" * 66 + "</tool_call>"),
    ("hermes", '<tool_call>{"name": "run", "arguments": "{}"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "run", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "run", "arguments": null}</tool_call>'),
    ("hermes", '<tool_call>{"name": 7, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "two words", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "run", "name": "run", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "run", "reason": "why", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "run", "arguments": {}} and so on</tool_call>'),
    ("hermes", "<tool_call>\n\nrun(1)\n</tool_call>\n"),
    ("hermes", "a <tool_call> b </tool_call> c <tool_call"),
    ("llama", '{"name": "walk", "parameters": {}}'),
    ("llama", '{"answer": {"name": "run", "parameters": {}}}'),
    ("llama", '{"name": "run", "parameters": []}'),
    ("llama", '<|python_tag|>run.call(code="a")'),
    ("mistral", "[TOOL_CALLS]run{}"),
    ("mistral", "[TOOL_CALLS]run[ARGS][]"),
    ("mistral", "[TOOL_CALLS][]"),
    ("mistral-list", '[TOOL_CALLS] [{"name": "run", "arguments": {}}, {"name": "run"]'),
    ("deepseek", deepseek("[calls][ends]")),
    ("deepseek", deepseek("[calls][call]function[sep]run\n```python\n{}\n```[end][ends]")),
    ("deepseek", deepseek("[calls][call]function[sep]run\n```json\n{}\n[end][ends]")),
    ("deepseek-v3.1", deepseek("[calls][call]run[sep]{}[end][call]run[sep][1][end][ends]")),
    ("kimi", f"<|tool_calls_section_begin|>{kimi('1', 0)}<|tool_calls_section_end|>"),
    ("kimi", "<|tool_calls_section_begin|><|tool_calls_section_end|>"),
    ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>run<|tool_call_argument_begin|>{}"),
    *(
        ("lfm2", f"<|tool_call_start|>{text}<|tool_call_end|>")
        for text in (
            "",
            "[]",
            "run()",
            "[run]",
            "[run()",
            "[run(1)]",
            "[run(code=)]",
            "[run(=1)]",
            "[run(**{})]",
            "[run(code=1, code=2)]",
            "[run(code=1 + 1)]",
            "[run(code=a)]",
            "[run(code=f'a')]",
            "[run(code='a' 'b')]",
            "[run(code=open('a'))]",
            "[run(code={'a'})]",
            "[run(code={1: 2})]",
            "[run(code=01)]",
            "[run(code=1e999)]",
            "[run(code='\\ud800')]",
            "[run(code='\\U00110000')]",
            "[run(code='a)]",
            "[run(code='a\\",
            "[__import__('os').system('ls')]",
            "[run(code=" + "[" * 70 + "]" * 70 + ")]",
            "[run(code=" + "-" * 2000 + "1)]",
            '[{"name": "run", "arguments": []}]',
            '[{"name": "run"}, run()]',
        )
    ),
    ("lfm2", "<|tool_call_start|>[run()]"),
    ("qwen-xml", "<tool_call>\n<function=run>\n<parameter=code>\n1\n</parameter>\n"),
    ("qwen-xml", "<tool_call>\n<function=run>\n<parameter=>\n1\n</parameter>\n</function>\n</tool_call>"),
    ("qwen-xml", "<function=run><parameter=a>1</parameter><parameter=a>1</parameter></function>"),
    ("qwen-xml", "<tool_call>\n<function=>\n</function>\n</tool_call>"),
    ("qwen-xml", '<tool_call>\n{"name": "run", "arguments": {}}\n</tool_call>'),
    ("minimax", '<minimax:tool_call>\n<invoke name="run">\n</minimax:tool_call>'),
    ("minimax", "<minimax:tool_call></minimax:tool_call>"),
    ("glm", "<tool_call>run a thing</tool_call>"),
    ("glm", "<tool_call></tool_call>"),
    ("glm", "<tool_call>run<arg_key>a</arg_key></tool_call>"),
    ("gemma-4", "<|tool_call>run{}<tool_call|>"),
    ("gemma-4", "<|tool_call>call:run{a:b}<tool_call|>"),
    ("gemma-4", "<|tool_call>call:run{a:1,}<tool_call|>"),
    ("gemma-4", '<|tool_call>call:run{a:<|"|>1}<tool_call|>'),
    ("gemma-4", "<|tool_call>call:run{a:" + "[" * 70 + "]" * 70 + "}<tool_call|>"),
    ("function-gemma", "<start_function_call>call:run[]<end_function_call>"),
    ("gpt-oss", harmony("run", '{"code": 1} and')),
    ("gpt-oss", harmony("run", "{")),
    ("gpt-oss", "<|channel|>commentary to=functions.ru"),
    ("gpt-oss", "<|channel|>" + "x" * 600),
]


@pytest.mark.parametrize(("family", "text"), NOT_CALLS, ids=lambda value: value[:60])
def test_what_is_no_call_is_text_as_it_was_written(family: str, text: str) -> None:
    assert read(named(family).reader(False, TOOLS), [text]) == [Text(text)]
    assert read(named(family).reader(False, TOOLS), list(text)) == [Text(text)]


@pytest.mark.parametrize(
    "family", ["hermes", "qwen-xml", "glm", "minimax", "mistral", "mistral-list", "kimi", "lfm2"]
)
def test_a_call_that_is_cut_off_is_text_as_it_was_written(family: str) -> None:
    samples = [sample for sample in CALLS if sample.family == family and "<think>" not in sample.text[:9]]
    for text in (sample.text for sample in samples if isinstance(sample.pieces[0], Call)):
        whole = read(named(family).reader(False, TOOLS), [text])
        for at in range(1, len(text)):
            pieces = read(named(family).reader(False, TOOLS), [text[:at]])
            # Of several calls the earlier ones count.
            calls = [piece for piece in pieces if isinstance(piece, Call)]
            rest = [piece for piece in pieces if not isinstance(piece, Call)]
            assert calls == whole[: len(calls)]
            assert pieces == calls + rest
            assert all(isinstance(piece, Text) and text[:at].endswith(piece.text) for piece in rest)
            assert len(calls) < len(whole)


def test_a_call_behind_one_that_isnt_any_is_read() -> None:
    text = f"<tool_call>\nnot this\n<tool_call>\n{hermes(CITY)} <tool_call>"
    pieces = [Text("<tool_call>\nnot this\n<tool_call>\n"), call(CITY), Text("<tool_call>")]
    assert read(named("hermes").reader(False, TOOLS), list(text)) == pieces


@pytest.mark.parametrize(
    "behind", ["So run[ARGS] {}", "run[ARGS]{", "run [ARGS]{}", "[ARGS]{}", "! run[ARGS]{}", "a" * 300]
)
def test_what_stands_behind_a_call_without_a_mark_is_a_call_only_if_it_is_one(behind: str) -> None:
    text = f"[TOOL_CALLS]run[ARGS]{{}}{behind}"
    for parts in ([text], list(text)):
        assert read(named("mistral").reader(False, TOOLS), parts) == [call("{}", "run"), Text(behind)]


def test_bare_json_in_the_midst_of_a_text_is_no_call() -> None:
    text = f'It is {{"name": "run", "parameters": {CITY}}}'
    assert read(named("llama").reader(False, TOOLS), [text]) == [Text(text)]


def test_marks_of_thoughts_inside_a_line_are_text_where_they_may_be_written_in_plain_characters() -> None:
    reader = named("hermes").reader(False, TOOLS)
    text = f"Write `<think>` first.\n{hermes(CITY)}"
    assert read(reader, [text]) == [Text("Write `<think>` first."), call(CITY)]
    special = named("mistral").reader(False, TOOLS)
    assert read(special, ["So [THINK]no[/THINK]yes"]) == [Text("So"), Thought("no"), Text("yes")]
