"""Every endpoint that generates, by name."""

from collections.abc import Mapping
from typing import Final

from proxy.dialects.dialect import Dialect
from proxy.dialects.messages import Messages
from proxy.dialects.openai import Chat, Completions
from proxy.dialects.responses import Responses
from proxy.request import Endpoint

DIALECTS: Final[Mapping[Endpoint, Dialect]] = {
    "chat": Chat(),
    "completions": Completions(),
    "messages": Messages(),
    "responses": Responses(),
}
