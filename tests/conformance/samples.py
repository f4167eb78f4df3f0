"""Tools, calls and thoughts that rows let a model use, as Hermes and Qwen write them."""

WEATHER = {
    "name": "get_weather",
    "description": "Tells the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TIME = {
    "name": "get_time",
    "description": "Tells the time.",
    "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}},
}
PARIS, UTC = '{"city": "Paris, 漢"}', '{"zone": "UTC"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>'
CALLS = f'{CALL}\n<tool_call>\n{{"name": "get_time", "arguments": {UTC}}}\n</tool_call>'
THOUGHT = "Let me see: 漢."
THOUGHTFUL = f"<think>\n{THOUGHT}\n</think>\n\n"
MARKUP = ("<tool_call", "</tool_call", "<think", "</think")

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}


def chat_tools(*functions, **fields):
    """Return functions as chat completions take tools."""
    return [{"type": "function", "function": {**each, **fields}} for each in functions or (WEATHER, TIME)]


def response_tools(*functions, **fields):
    """Return functions as /v1/responses takes tools."""
    return [{"type": "function", **each, **fields} for each in functions or (WEATHER, TIME)]


def message_tools(*functions, **fields):
    """Return functions as /v1/messages takes tools."""
    return [
        {
            "name": each["name"],
            "description": each["description"],
            "input_schema": each["parameters"],
            **fields,
        }
        for each in functions or (WEATHER, TIME)
    ]


def without_markup(*texts) -> None:
    """Check that nothing of a model's own way to write is in what a client reads."""
    for text in texts:
        assert not [mark for mark in MARKUP if mark in (text or "")], text
