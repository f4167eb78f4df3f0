"""Bodies of /v1/responses as agents send them."""

import json

from proxy.dialects.responses_request import ASKED, parse_response
from tests.proxy.test_responses_request import PATCH_GRAMMAR, TOWN, WEATHER


def test_the_body_of_codex_is_taken():
    body = {
        "model": "small",
        "instructions": "You are a coding agent.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "sandbox"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "ls"}]},
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
            {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "c1"},
            {"type": "function_call_output", "call_id": "c1", "output": "a.py"},
            {
                "type": "custom_tool_call",
                "status": "completed",
                "call_id": "c2",
                "name": "apply_patch",
                "input": "***",
            },
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
            {
                "type": "message",
                "role": "assistant",
                "phase": "commentary",
                "content": [{"type": "output_text", "text": "Next."}],
            },
        ],
        "tools": [
            {"type": "function", "name": "shell", "description": "", "strict": False, "parameters": TOWN},
            {"type": "custom", "name": "apply_patch", "description": "", "format": PATCH_GRAMMAR},
            {"type": "web_search", "external_web_access": False},
            {
                "type": "namespace",
                "name": "mcp__docs",
                "description": "docs",
                "tools": [{"type": "function", "name": "find", "strict": False, "parameters": TOWN}],
            },
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "service_tier": None,
        "prompt_cache_key": "019f5f4e-ed9f",
        "text": {"verbosity": "medium"},
        "client_metadata": {"x-codex-installation-id": "1"},
    }
    request = parse_response(json.dumps(body).encode(), lambda: 7)
    roles = [message["role"] for message in request.prompts[0].messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [tool.name for tool in request.tools.tools] == ["shell", "apply_patch", "mcp__docs__find"]
    assert not request.extras[ASKED].keeps
    assert request.prompt_cache_key == "019f5f4e-ed9f"


def test_the_body_of_the_agents_sdk_is_taken():
    answer = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "A", "annotations": [], "logprobs": []}],
    }
    body = {
        "model": "small",
        "instructions": "Help.",
        "include": [],
        "input": [{"role": "user", "content": "1"}, answer, {"role": "user", "content": "2"}],
        "max_output_tokens": None,
        "metadata": {"trace": "1"},
        "parallel_tool_calls": None,
        "previous_response_id": None,
        "prompt_cache_retention": None,
        "reasoning": None,
        "store": None,
        "stream": False,
        "temperature": None,
        "text": None,
        "tool_choice": None,
        "tools": [{**WEATHER, "description": "of a town", "strict": True}],
        "top_p": None,
        "truncation": "auto",
    }
    request = parse_response(json.dumps(body).encode(), lambda: 7)
    assert [message["role"] for message in request.prompts[0].messages] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert request.extras[ASKED].keeps
    assert request.extras[ASKED].items[1]["id"] == "msg_1"
