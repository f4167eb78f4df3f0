"""The families, a row each: how their models write thoughts and calls, and by which words that is known."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from proxy.formats import json_calls as by_json
from proxy.formats import tagged_calls as by_tags
from proxy.formats.format import Format, MakeReader, Reader
from proxy.formats.gemma_calls import gemma_call
from proxy.formats.harmony import HARMONY_MARKS, HarmonyReader
from proxy.formats.lark import call_rule
from proxy.formats.marked import Begin, MarkedReader, Marks, ReadCalls
from proxy.formats.python_calls import LFM_BEGINS, LFM_ENDS, lfm_calls
from proxy.formats.tagged_rules import Tags, tagged_rule
from proxy.request import Tool


@dataclass(frozen=True, slots=True)
class Writing:
    """How calls are written: `before` arguments in JSON (with {name} in it) and `after` them; or with `tags`.

    `around` stands around all calls, `between` from one to the next, None where an answer makes only one.
    """

    before: str = ""
    after: str = ""
    between: str | None = ""
    around: tuple[str, str] = ("", "")
    tags: Tags | None = None

    def rule(self, words: Mapping[str, int]) -> Callable[[Tool], str]:
        if self.tags is not None:
            return partial(tagged_rule, self.tags, words)
        return partial(call_rule, self.before, self.after, words)


@dataclass(frozen=True, slots=True)
class Family:
    """A row. A model is of the first family of which all of one of the `signs` are in its chat template.

    `thought` are the marks around thoughts; with `always` a model of the family has them, else if its
    template knows of them. `marks` are the other words that may be special tokens. `begins` are how calls
    begin, and `more` reads one behind another that has no mark; `call_begins` is the text of the usual one.
    """

    name: str
    signs: tuple[tuple[str, ...], ...] = ()
    begins: tuple[Begin, ...] = ()
    more: ReadCalls | None = None
    call_begins: str = ""
    marks: tuple[str, ...] = ()
    thought: tuple[str, str] = ("<think>", "</think>")
    always: bool = False
    text_begins: str = ""
    writing: Writing | None = None
    reader: MakeReader | None = None

    def format(self, words: Mapping[str, int], *, thinks: bool) -> Format:
        """Return the family's format with one tokenizer's added words."""
        thought = self.thought if thinks or self.always else ("", "")
        marks = frozenset({*self.marks, *thought} - {""})
        known = {word: id_ for word, id_ in words.items() if word in marks}
        # Marks that aren't to be had in plain characters count anywhere.
        reading = Marks(self.begins, thought, lines=thought[0].startswith("<think"), more=self.more)
        format_ = Format(
            self.name,
            self.reader or partial(_marked, reading),
            marks,
            thought,
            self.call_begins,
            self.text_begins,
            words=known,
        )
        if self.writing is None:
            return format_
        return replace(
            format_,
            call_rule=self.writing.rule(known),
            calls_around=self.writing.around,
            call_between=self.writing.between,
        )


def _marked(marks: Marks, thinks: bool, tools: Sequence[Tool]) -> Reader:
    return MarkedReader(marks, thinks, tools)


def _harmony(thinks: bool, tools: Sequence[Tool]) -> Reader:
    return HarmonyReader(thinks, tools)


_NAMED: Final = '{"name": "{name}", "arguments": '

# The order counts: the first that fits is taken.
FAMILIES: Final = (
    Family(
        "gpt-oss",
        signs=(("<|channel|>", "<|message|>"),),
        call_begins="<|channel|>commentary to=functions.",
        marks=HARMONY_MARKS,
        thought=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        always=True,
        text_begins="<|channel|>final<|message|>",
        writing=Writing(
            "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>", between=None
        ),
        reader=_harmony,
    ),
    Family(
        "minimax",
        signs=((by_tags.MINIMAX_BEGINS,),),
        begins=(Begin(by_tags.MINIMAX_BEGINS, by_tags.minimax_calls),),
        call_begins=by_tags.MINIMAX_BEGINS,
        marks=(by_tags.MINIMAX_BEGINS, by_tags.MINIMAX_ENDS),
        writing=Writing(
            around=(f"{by_tags.MINIMAX_BEGINS}\n", by_tags.MINIMAX_ENDS),
            tags=Tags(
                '<invoke name="{name}">\n', '<parameter name="', '">', "</parameter>", "\n", "</invoke>\n"
            ),
        ),
    ),
    Family(
        "gemma-4",
        signs=(("<|tool_call>", "<tool_call|>"),),
        begins=(Begin("<|tool_call>", gemma_call('<|"|>', "<tool_call|>")),),
        call_begins="<|tool_call>",
        marks=("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>"),
        thought=("<|channel>thought", "<channel|>"),
    ),
    Family(
        "function-gemma",
        signs=(("<start_function_call>",),),
        begins=(Begin("<start_function_call>", gemma_call("<escape>", "<end_function_call>")),),
        call_begins="<start_function_call>",
        marks=("<start_function_call>", "<end_function_call>", "<escape>"),
    ),
    Family(
        "glm",
        signs=(("<arg_key>",),),
        begins=(Begin("<tool_call>", by_tags.glm_call),),
        call_begins="<tool_call>",
        marks=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        writing=Writing(
            between="\n",
            tags=Tags(
                "<tool_call>{name}\n",
                "<arg_key>",
                "</arg_key>\n<arg_value>",
                "</arg_value>",
                "\n",
                "</tool_call>",
            ),
        ),
    ),
    Family(
        "qwen-xml",
        signs=(("<tool_call>", "<function="),),
        begins=(Begin("<tool_call>", by_tags.xml_call), Begin("<function=", by_tags.bare_xml_call)),
        call_begins="<tool_call>",
        marks=("<tool_call>", "</tool_call>"),
        writing=Writing(
            between="\n",
            tags=Tags(
                "<tool_call>\n<function={name}>\n",
                "<parameter=",
                ">\n",
                "</parameter>",
                "\n",
                "</function>\n</tool_call>",
            ),
        ),
    ),
    Family(
        "kimi",
        signs=((by_json.KIMI_BEGINS,),),
        begins=(Begin(by_json.KIMI_BEGINS, by_json.kimi_calls),),
        call_begins=by_json.KIMI_BEGINS,
        marks=by_json.KIMI_MARKS,
        writing=Writing(
            f"{by_json.KIMI_CALL}functions.{{name}}:0{by_json.KIMI_ARGUMENTS}",
            by_json.KIMI_CALL_ENDS,
            around=(by_json.KIMI_BEGINS, by_json.KIMI_ENDS),
        ),
    ),
    Family(
        "deepseek",
        signs=((by_json.DEEPSEEK_BEGINS, "```json"),),
        begins=(Begin(by_json.DEEPSEEK_BEGINS, by_json.deepseek_calls),),
        call_begins=by_json.DEEPSEEK_BEGINS,
        marks=by_json.DEEPSEEK_MARKS,
        writing=Writing(
            f"{by_json.DEEPSEEK_CALL}function{by_json.DEEPSEEK_SEPARATOR}{{name}}\n```json\n",
            f"\n```{by_json.DEEPSEEK_CALL_ENDS}",
            "\n",
            (by_json.DEEPSEEK_BEGINS, by_json.DEEPSEEK_ENDS),
        ),
    ),
    Family(
        "deepseek-v3.1",
        signs=((by_json.DEEPSEEK_BEGINS,),),
        begins=(Begin(by_json.DEEPSEEK_BEGINS, by_json.deepseek_calls),),
        call_begins=by_json.DEEPSEEK_BEGINS,
        marks=by_json.DEEPSEEK_MARKS,
        writing=Writing(
            f"{by_json.DEEPSEEK_CALL}{{name}}{by_json.DEEPSEEK_SEPARATOR}",
            by_json.DEEPSEEK_CALL_ENDS,
            around=(by_json.DEEPSEEK_BEGINS, by_json.DEEPSEEK_ENDS),
        ),
    ),
    Family(
        "mistral",
        signs=(("[TOOL_CALLS]", "[ARGS]"),),
        begins=(Begin("[TOOL_CALLS]", by_json.mistral_calls),),
        more=by_json.more_mistral_calls,
        call_begins="[TOOL_CALLS]",
        marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        thought=("[THINK]", "[/THINK]"),
        writing=Writing("[TOOL_CALLS]{name}[ARGS]"),
    ),
    Family(
        "mistral-list",
        signs=(("[TOOL_CALLS]",),),
        begins=(Begin("[TOOL_CALLS]", by_json.mistral_calls),),
        call_begins="[TOOL_CALLS]",
        marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        thought=("[THINK]", "[/THINK]"),
        writing=Writing(_NAMED, "}", ", ", ("[TOOL_CALLS] [", "]")),
    ),
    Family(
        "hermes",
        signs=(("<tool_call>",),),
        begins=(Begin("<tool_call>", by_json.hermes_call),),
        call_begins="<tool_call>",
        marks=("<tool_call>", "</tool_call>"),
        writing=Writing(f"<tool_call>\n{_NAMED}", "}\n</tool_call>", "\n"),
    ),
    Family(
        "lfm2",
        signs=((LFM_BEGINS,), ("<|tool_list_start|>",), ("List of tools: ",)),
        begins=(Begin(LFM_BEGINS, lfm_calls),),
        call_begins=LFM_BEGINS,
        marks=(LFM_BEGINS, LFM_ENDS),
    ),
    Family(
        "llama",
        signs=(
            ("<|python_tag|>",),
            ("<|start_header_id|>", '"parameters"'),
            ("<|header_start|>", '"parameters"'),
        ),
        begins=(
            Begin("<|python_tag|>", by_json.spaced_bare_call),
            Begin("{", by_json.bare_call, "first"),
            Begin(";", by_json.spaced_bare_call, "behind a call"),
        ),
        call_begins='{"name": ',
        marks=("<|python_tag|>",),
        writing=Writing('{"name": "{name}", "parameters": ', "}", "; "),
    ),
    Family("think", signs=(("<think>",), ("</think>",)), always=True),
    Family("plain", thought=("", "")),
)
