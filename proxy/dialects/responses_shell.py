"""The local shell of /v1/responses: to a model it is a function, to the client a command that it may run.

Nothing is run here. A model's call that has the form of a command is one for the client; whatever else a
model wrote is a function's call, as it was written.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from proxy.fields import Fields
from proxy.formats.json_text import sound_json
from shared.limits import SHELL_TIMEOUT_MS_MAX, SHELL_WORDS_MAX

LOCAL_SHELL: Final = "local_shell"
SHELL_CALL: Final = "local_shell_call"
SHELL_OUTPUT: Final = "local_shell_call_output"
SHELL_DESCRIPTION: Final = (
    "Runs a command on the user's machine and returns what it prints. `command` is a program and its "
    "arguments, a string each. Pipes, variables and several commands need a shell: "
    '["bash", "-lc", "the line to run"]. `working_directory` and `env` are where and with which variables '
    "it runs, `timeout_ms` is how long it may take."
)
SHELL_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "working_directory": {"type": "string"},
        "timeout_ms": {"type": "integer", "minimum": 0, "maximum": SHELL_TIMEOUT_MS_MAX},
        "env": {"type": "object", "additionalProperties": {"type": "string"}},
        "user": {"type": "string"},
    },
    "required": ["command"],
    "additionalProperties": False,
}


class ShellAction(Fields):
    """A command, as items have it; a model's arguments are the same without a type."""

    type: Literal["exec"] = "exec"
    command: Annotated[list[str], Field(min_length=1, max_length=SHELL_WORDS_MAX)]
    working_directory: str | None = None
    timeout_ms: int | None = Field(None, ge=0, le=SHELL_TIMEOUT_MS_MAX)
    env: Annotated[dict[str, str], Field(max_length=SHELL_WORDS_MAX)] = Field({})
    user: str | None = None

    @property
    def shown(self) -> dict[str, Any]:
        """Return what items say: variables always, the rest where it is given."""
        return self.model_dump(exclude_none=True)


def shell_action(arguments: str) -> dict[str, Any] | None:
    """Return the command of a model's call as items have it, or None if the arguments aren't one."""
    try:
        return ShellAction.model_validate(sound_json(arguments)).shown
    except ValueError:  # a ValidationError is one
        return None


def shell_arguments(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item's command as the model wrote it: what wasn't given isn't there."""
    return {
        name: action[name] for name in SHELL_SCHEMA["properties"] if name in action and action[name] != {}
    }
