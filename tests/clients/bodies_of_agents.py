"""Bodies in the shapes in which two coding agents send theirs: many tools, long prompts, all at once."""

CACHED = {"type": "ephemeral"}


def _schema(*required, **properties):
    kinds = {name: {"type": kind, "description": f"The {name}."} for name, kind in properties.items()}
    return {
        "$schema": "http:" + "//json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": kinds,
        "required": list(required),
        "additionalProperties": False,
    }


_TOOLS = {
    "Bash": _schema("command", command="string", timeout="number", description="string"),
    "Read": _schema("file_path", file_path="string", offset="number", limit="number"),
    "Edit": _schema(
        "file_path", "old_string", file_path="string", old_string="string", replace_all="boolean"
    ),
    "TodoWrite": {
        **_schema("todos"),
        "properties": {
            "todos": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "content": {"type": "string", "minLength": 1},
                        "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
                    },
                    "required": ["content", "status"],
                },
            }
        },
    },
    **{f"mcp__server__tool_{number}": _schema(query="string") for number in range(20)},
}
_BETAS = (
    "claude-code-20250219,interleaved-thinking-2025-05-14,"
    "fine-grained-tool-streaming-2025-05-14,context-management-2025-06-27"
)
CLAUDE_CODE_HEADERS = {
    "x-api-key": "none",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": _BETAS,
    "anthropic-dangerous-direct-browser-access": "true",
    "x-app": "cli",
    "user-agent": "claude-cli/2.0.0 (external, cli)",
    "x-stainless-lang": "js",
    "x-stainless-retry-count": "0",
    "x-stainless-timeout": "600",
}
CLAUDE_CODE = {
    "model": "small",
    "max_tokens": 32_000,
    "temperature": 1,
    "stream": True,
    "metadata": {"user_id": "user_0_account__session_0"},
    "system": [
        {"type": "text", "text": "You are a coding agent.", "cache_control": CACHED},
        {"type": "text", "text": "Follow these rules. " * 300, "cache_control": CACHED},
    ],
    "tools": [
        {"name": name, "description": f"{name}: " + "what it does. " * 20, "input_schema": schema}
        for name, schema in _TOOLS.items()
    ],
    "thinking": {"type": "enabled", "budget_tokens": 31_999},
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nBe careful.\n</system-reminder>"},
                {"type": "text", "text": "Fix the test."},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should look.", "signature": "c2ln"},
                {"type": "text", "text": "I'll look."},
                {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "a.py"}},
                {"type": "tool_use", "id": "toolu_2", "name": "Bash", "input": {"command": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "     1\u2192x = 1"},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": [{"type": "text", "text": "a.py"}],
                    "is_error": False,
                    "cache_control": CACHED,
                },
            ],
        },
    ],
}
# What it asks beside: a title, of a small model, without tools.
CLAUDE_CODE_ASIDE = {
    "model": "small",
    "max_tokens": 512,
    "system": [{"type": "text", "text": "Name the topic."}],
    "messages": [{"role": "user", "content": "Fix the test."}, {"role": "assistant", "content": "{"}],
    "temperature": 0,
    "stream": True,
    "metadata": {"user_id": "user_0"},
}

CODEX_HEADERS = {
    "authorization": "Bearer none",
    "originator": "codex_cli_rs",
    "user-agent": "codex_cli_rs/0.50.0",
    "openai-beta": "responses=experimental",
    "conversation_id": "c-0",
    "session_id": "s-0",
    "accept": "text/event-stream",
}
CODEX = {
    "model": "small",
    "instructions": "You are a coding agent in a terminal. " * 200,
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "<permissions>read only</permissions>"}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "<environment_context><cwd>src</cwd></environment_context>"}
            ],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix the test."}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "b3RoZXI="},
        {
            "type": "function_call",
            "name": "shell",
            "arguments": '{"command":["bash","-lc","ls"],"workdir":"src"}',
            "call_id": "call_1",
        },
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": '{"output":"a.py\\n","metadata":{"exit_code":0,"duration_seconds":0.1}}',
        },
        {"type": "custom_tool_call", "call_id": "call_2", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done"},
    ],
    "tools": [
        {
            "type": "function",
            "name": "shell",
            "description": "Runs a shell command and returns its output.",
            "strict": False,
            "parameters": {
                "type": "object",
                "properties": {
                    "command": {"type": "array", "items": {"type": "string"}},
                    "workdir": {"type": "string"},
                    "timeout_ms": {"type": "number"},
                },
                "required": ["command"],
                "additionalProperties": False,
            },
        },
        {
            "type": "custom",
            "name": "apply_patch",
            "description": "Edits files.",
            "format": {
                "type": "grammar",
                "syntax": "lark",
                "definition": 'start: "*** Begin Patch" /(.|\\n)*/',
            },
        },
        {"type": "web_search", "external_web_access": False},
        {
            "type": "function",
            "name": "view_image",
            "strict": False,
            "parameters": _schema("path", path="string"),
        },
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "s-0",
    "text": {"verbosity": "medium"},
}
