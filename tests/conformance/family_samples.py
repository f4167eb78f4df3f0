"""One answer as each family's models write it: a thought, a text and two calls, always the same."""

from tests.conformance.samples import PARIS, THOUGHT, UTC

TEXT = "I'll look: 😀."


def _think(text: str) -> str:
    return f"<think>\n{THOUGHT}\n</think>\n\n{text}"


def _named(name: str, arguments: str, word: str = "arguments") -> str:
    return f'{{"name": "{name}", "{word}": {arguments}}}'


def _deepseek(words: str) -> str:
    return "<\uff5c" + words.replace(" ", "\u2581") + "\uff5c>"


_CALLS, _CALLS_END = _deepseek("tool calls begin"), _deepseek("tool calls end")
_ONE, _ONE_END, _SEP = (_deepseek(f"tool {words}") for words in ("call begin", "call end", "sep"))


def _deepseek_r1(name: str, arguments: str) -> str:
    return f"{_ONE}function{_SEP}{name}\n```json\n{arguments}\n```{_ONE_END}"


def _kimi(name: str, number: int, arguments: str) -> str:
    begin = f"<|tool_call_begin|>functions.{name}:{number}"
    return f"{begin}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def _xml(name: str, key: str, value: str) -> str:
    parameter = f"<parameter={key}>\n{value}\n</parameter>"
    return f"<tool_call>\n<function={name}>\n{parameter}\n</function>\n</tool_call>"


def _minimax(name: str, key: str, value: str) -> str:
    return f'<invoke name="{name}">\n<parameter name="{key}">{value}</parameter>\n</invoke>\n'


def _glm(name: str, key: str, value: str) -> str:
    return f"<tool_call>{name}\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"


def _gemma(begins: str, quote: str, ends: str, name: str, key: str, value: str) -> str:
    return f"{begins}call:{name}{{{key}:{quote}{value}{quote}}}{ends}"


def _function_gemma(*call: str) -> str:
    return _gemma("<start_function_call>", "<escape>", "<end_function_call>", *call)


def _gemma_4(*call: str) -> str:
    return _gemma("<|tool_call>", '<|"|>', "<tool_call|>", *call)


def _harmony(name: str, arguments: str) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}"


_NEXT = "<|end|><|start|>assistant"
_WEATHER, _TIME = ("get_weather", PARIS), ("get_time", UTC)
_CITY, _ZONE = ("get_weather", "city", "Paris, 漢"), ("get_time", "zone", "UTC")

SAMPLES: dict[str, str] = {
    "gpt-oss": (
        f"<|channel|>analysis<|message|>{THOUGHT}{_NEXT}<|channel|>commentary<|message|>{TEXT}{_NEXT}"
        f"{_harmony(*_WEATHER)}{_NEXT}{_harmony(*_TIME)}<|call|>"
    ),
    "minimax": _think(
        f"{TEXT}\n<minimax:tool_call>\n{_minimax(*_CITY)}{_minimax(*_ZONE)}</minimax:tool_call>"
    ),
    "gemma-4": f"<|channel>thought\n{THOUGHT}\n<channel|>{TEXT}{_gemma_4(*_CITY)}{_gemma_4(*_ZONE)}",
    "function-gemma": _think(f"{TEXT}{_function_gemma(*_CITY)}{_function_gemma(*_ZONE)}"),
    "glm": _think(f"{TEXT}\n{_glm(*_CITY)}\n{_glm(*_ZONE)}"),
    "qwen-xml": _think(f"{TEXT}\n\n{_xml(*_CITY)}\n{_xml(*_ZONE)}"),
    "kimi": _think(
        f"{TEXT}<|tool_calls_section_begin|>{_kimi('get_weather', 0, PARIS)}{_kimi('get_time', 1, UTC)}"
        "<|tool_calls_section_end|>"
    ),
    "deepseek": _think(f"{TEXT}{_CALLS}{_deepseek_r1(*_WEATHER)}\n{_deepseek_r1(*_TIME)}{_CALLS_END}"),
    "deepseek-v3.1": _think(
        f"{TEXT}{_CALLS}{_ONE}get_weather{_SEP}{PARIS}{_ONE_END}{_ONE}get_time{_SEP}{UTC}{_ONE_END}{_CALLS_END}"
    ),
    "mistral": (
        f"[THINK]{THOUGHT}[/THINK]{TEXT}[TOOL_CALLS]get_weather[ARGS]{PARIS}[TOOL_CALLS]get_time[ARGS]{UTC}"
    ),
    "mistral-list": f"[THINK]{THOUGHT}[/THINK]{TEXT}[TOOL_CALLS] [{_named(*_WEATHER)}, {_named(*_TIME)}]",
    "hermes": _think(
        f"{TEXT}\n<tool_call>\n{_named(*_WEATHER)}\n</tool_call>\n<tool_call>\n{_named(*_TIME)}\n</tool_call>"
    ),
    "lfm2": _think(
        f"{TEXT}<|tool_call_start|>[get_weather(city='Paris, 漢'), get_time(zone=\"UTC\")]<|tool_call_end|>"
    ),
    "llama": _think(f"{TEXT}<|python_tag|>{_named(*_WEATHER, 'parameters')}; {_named(*_TIME, 'parameters')}"),
}
# These have no calls, or none at all.
CALLLESS = {"think": _think(TEXT), "plain": TEXT}
