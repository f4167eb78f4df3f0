"""What clients hold when an answer has ended: put together by the vendors' own packages, chunk by chunk."""

import json
from dataclasses import dataclass

from anthropic.lib.streaming._messages import accumulate_event
from openai._types import omit
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.lib.streaming.responses._responses import ResponseStreamState

from tests.conformance.reading import (
    chat_of,
    chunks_of,
    message_events_of,
    message_of,
    response_events_of,
    response_of,
)


@dataclass(frozen=True)
class Told:
    """An answer, whatever the endpoint: its thought, its text, and its calls' names and arguments."""

    thought: str
    text: str
    calls: tuple[tuple[str, dict], ...]
    cut: bool = False

    @property
    def stripped(self) -> "Told":
        return Told(self.thought.strip(), self.text.strip(), self.calls, self.cut)


def of_chat(completion) -> Told:
    choice = completion.choices[0]
    message = choice.message
    extra = message.model_extra or {}
    assert extra.get("reasoning") == extra.get("reasoning_content")
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]
    assert (choice.finish_reason == "tool_calls") == (bool(calls) and choice.finish_reason != "length")
    return Told(
        extra.get("reasoning_content") or "",
        message.content or "",
        tuple(calls),
        choice.finish_reason == "length",
    )


def of_message(message) -> Told:
    thought = "".join(block.thinking for block in message.content if block.type == "thinking")
    text = "".join(block.text for block in message.content if block.type == "text")
    calls = tuple((block.name, block.input) for block in message.content if block.type == "tool_use")
    assert message.stop_reason == "max_tokens" or (message.stop_reason == "tool_use") == bool(calls)
    return Told(thought, text, calls, message.stop_reason == "max_tokens")


def of_response(response) -> Told:
    thoughts = [part.text for item in response.output if item.type == "reasoning" for part in item.content]
    calls = tuple(
        (item.name, json.loads(item.arguments)) for item in response.output if item.type == "function_call"
    )
    return Told("".join(thoughts), response.output_text, calls, response.status == "incomplete")


def chat_stream(answered) -> Told:
    state = ChatCompletionStreamState()
    thoughts = []
    for chunk in chunks_of(answered):
        state.handle_chunk(chunk)
        thoughts += [
            (choice.delta.model_extra or {}).get("reasoning_content") or "" for choice in chunk.choices
        ]
    completion = state.current_completion_snapshot
    told = of_chat(completion)
    assert told.thought == "".join(thoughts)
    return told


def message_stream(answered) -> Told:
    message, buffers = None, {}
    for event in message_events_of(answered):
        message = accumulate_event(event=event, current_snapshot=message, json_bufs=buffers)
    return of_message(message)


def response_stream(answered) -> Told:
    """Return what the package's state puts together of the deltas; the last event has to say the same."""
    events = response_events_of(answered)
    state = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in events:
        if event.type == "response.output_item.done":
            continue  # it would set right what the deltas told wrong
        put_together = state._ResponseStreamState__current_snapshot
        state.handle_event(event)
    last = events[-1].response
    told = of_response(last)
    assert [item.type for item in put_together.output] == [item.type for item in last.output]
    given = [(item.name, item.arguments) for item in put_together.output if item.type == "function_call"]
    assert given == [(item.name, item.arguments) for item in last.output if item.type == "function_call"]
    text = [part.text for item in put_together.output if item.type == "message" for part in item.content]
    assert "".join(text) == told.text
    return told


def chat_whole(answered) -> Told:
    return of_chat(chat_of(answered))


def message_whole(answered) -> Told:
    return of_message(message_of(answered))


def response_whole(answered) -> Told:
    return of_response(response_of(answered))
