"""What coding agents send, in their shapes, is accepted and answered as they read it."""

import copy
import json

import pytest

from tests.clients.bodies_of_agents import (
    CLAUDE_CODE,
    CLAUDE_CODE_ASIDE,
    CLAUDE_CODE_HEADERS,
    CODEX,
    CODEX_HEADERS,
)
from tests.conformance.accumulating import message_stream, response_stream
from tests.conformance.reading import response_events_of
from tests.conformance.samples import THOUGHT, THOUGHTFUL
from tests.conformance.world import COUNT, MESSAGES, RESPONSES, SAID

pytestmark = pytest.mark.asyncio(loop_scope="module")
LS = '{"command": ["ls"]}'


async def test_claude_codes_turn_with_tools_is_answered_with_thoughts_and_a_call(here):
    here.say(f'{THOUGHTFUL}<tool_call>\n{{"name": "Bash", "arguments": {{"command": "ls"}}}}\n</tool_call>')
    path = f"{MESSAGES}?beta=true"
    told = message_stream(await here.post(path, CLAUDE_CODE, headers=CLAUDE_CODE_HEADERS))
    assert told.stripped.thought == THOUGHT
    assert told.calls == (("Bash", {"command": "ls"}),)
    for text in ("You are a coding agent.", "Be careful.", "I'll look.", "a.py", "mcp__server__tool_19"):
        assert text in here.prompt


async def test_claude_codes_questions_beside_are_answered(here):
    answered = await here.post(MESSAGES, CLAUDE_CODE_ASIDE, headers=CLAUDE_CODE_HEADERS)
    assert message_stream(answered).text == SAID
    assert here.prompt.endswith("{")


async def test_claude_codes_count_is_what_the_turn_takes(here):
    asked = {name: CLAUDE_CODE[name] for name in ("model", "system", "tools", "thinking", "messages")}
    answered = await here.post(f"{COUNT}?beta=true", asked, headers=CLAUDE_CODE_HEADERS)
    assert answered.status == 200, answered.raw
    await here.post(MESSAGES, CLAUDE_CODE, headers=CLAUDE_CODE_HEADERS)
    assert answered.body["input_tokens"] == len(here.submits[0].prompt_ids)


async def test_codexs_turn_is_answered_with_thoughts_and_a_call(here):
    here.say(f'{THOUGHTFUL}<tool_call>\n{{"name": "shell", "arguments": {LS}}}\n</tool_call>')
    answered = await here.post(RESPONSES, CODEX, headers=CODEX_HEADERS)
    told = response_stream(answered)
    assert told.calls == (("shell", json.loads(LS)),)
    assert told.stripped.thought == THOUGHT
    for text in ("You are a coding agent", "read only", "Fix the test.", "a.py"):
        assert text in here.prompt


async def test_codexs_next_turn_gives_everything_back(here):
    here.say(f'{THOUGHTFUL}<tool_call>\n{{"name": "shell", "arguments": {LS}}}\n</tool_call>')
    events = response_events_of(await here.post(RESPONSES, CODEX, headers=CODEX_HEADERS))
    items = [event.item for event in events if event.type == "response.output_item.done"]
    back = [json.loads(item.model_dump_json(exclude={"id", "status"}, exclude_none=True)) for item in items]
    result = {"type": "function_call_output", "call_id": items[-1].call_id, "output": "b.py"}
    body = copy.deepcopy(CODEX)
    body["input"] += [*back, result]
    here.say("Done.")
    assert response_stream(await here.post(RESPONSES, body, headers=CODEX_HEADERS)).text == "Done."
    assert "b.py" in here.prompt
    assert THOUGHT in here.prompt


async def test_codexs_tool_for_patches_is_called_with_a_text(here):
    here.say(
        '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin Patch\\n"}}\n</tool_call>'
    )
    events = response_events_of(await here.post(RESPONSES, CODEX, headers=CODEX_HEADERS))
    (item,) = events[-1].response.output
    assert (item.type, item.name, item.input) == ("custom_tool_call", "apply_patch", "*** Begin Patch\n")
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == item.input
