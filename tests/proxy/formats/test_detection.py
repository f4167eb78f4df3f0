"""A model's format is chosen by its chat template's marks, or its tokenizer's, or by name."""

import pytest

from proxy.formats.families import FAMILIES
from proxy.formats.table import FORMAT_NAMES, format_of
from shared.errors import ModelError
from tests.proxy.formats.samples import deepseek

# What is telling in the templates of these families.
TEMPLATES = [
    ("hermes", False, '{{ \'<tool_call>\\n{"name": "\' + call.name + \'", "arguments": \' }}'),
    ("hermes", True, "{{ '<tool_call>\\n{\"name\": \"' }}{{ content.split('</think>')[-1] }}"),
    ("qwen-xml", True, "<tool_call>\n<function=example>\n<parameter=a>{% if '</think>' in content %}"),
    ("qwen-xml", False, "{{ '<tool_call>\\n<function=' + call.name + '>\\n' }}"),
    ("glm", True, "<tool_call>{name}\n<arg_key>{key}</arg_key>{{ '\\n<think></think>' }}"),
    ("llama", False, "<|start_header_id|>{{ '\"parameters\": ' }}{{ call.arguments | tojson }}"),
    ("llama", False, "{{ '<|python_tag|>' + call.name }}"),
    ("mistral", False, "{{ '[TOOL_CALLS]' + call.name + '[ARGS]' }}"),
    ("mistral", True, "[THINK]Your thoughts[/THINK]{{ '[TOOL_CALLS]' + call.name + '[ARGS]' }}"),
    ("mistral-list", False, "{{ '[TOOL_CALLS] [' }}"),
    ("deepseek", True, deepseek("'[calls][call]' + type + '[sep]' + '```json' {{ '</think>' }}")),
    ("deepseek-v3.1", True, deepseek("'[calls][call]' + name + '[sep]' {{ '<think>' }}")),
    ("lfm2", False, "List of tools: <|tool_list_start|>[{{ tools }}]<|tool_list_end|>"),
    ("lfm2", True, "{{ 'List of tools: [' }}{{ content.split('</think>')[-1] }}"),
    ("lfm2", False, "{{ '<|tool_call_start|>' }}"),
    ("kimi", True, "<|tool_calls_section_begin|><|tool_call_begin|> <think></think>"),
    ("minimax", True, "{%- set begin = '<minimax:tool_call>' -%} <think>"),
    ("gemma-4", True, "{{ '<|tool_call>call:' }}<tool_call|>{{ '<|channel>thought\\n<channel|>' }}"),
    ("function-gemma", False, "<start_function_call>call:{{ name }}"),
    ("gpt-oss", True, "<|start|>assistant<|channel|>analysis<|message|>"),
    ("think", True, "{{ '<think>\\n' }}"),
    ("think", True, "{{ content.split('</think>')[-1] }}"),
    ("plain", False, "<start_of_turn>model\n"),
    ("plain", False, ""),
]


@pytest.mark.parametrize(("name", "thinks", "template"), TEMPLATES)
def test_a_template_shows_its_family(name: str, thinks: bool, template: str) -> None:
    found = format_of(template, {"<think>": 1, "<tool_call>": 2})
    assert (found.name, found.thinks) == (name, thinks)
    assert found.calls_tools == (name not in ("think", "plain"))


def test_every_family_is_found_by_some_template() -> None:
    assert {name for name, _, _ in TEMPLATES} == {family.name for family in FAMILIES}


def test_without_a_template_the_tokenizers_words_decide() -> None:
    assert format_of(None, {"[TOOL_CALLS]": 5, "[ARGS]": 6}).name == "mistral"
    assert format_of(None, {"<tool_call>": 5, "<think>": 6}).thinks
    assert format_of(None, {}).name == "plain"


def test_a_name_wins_over_the_template() -> None:
    template = "<tool_call> <think>"
    assert [format_of(template, {}, name).name for name in FORMAT_NAMES] == list(FORMAT_NAMES)
    assert not format_of(template, {}, "plain").thinks
    assert format_of("", {}, "think").thinks


def test_a_name_of_no_format_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ModelError, match=r"answer_format: .*'hermess'.*hermes, .*llama.*plain"):
        format_of("", {}, "hermess")


def test_a_format_knows_the_ids_of_its_own_marks_only() -> None:
    words = {"<tool_call>": 3, "<think>": 4, "<|im_end|>": 5}
    assert format_of("<tool_call> <think>", words).words == {"<tool_call>": 3, "<think>": 4}
    assert format_of("<tool_call>", words).words == {"<tool_call>": 3}
