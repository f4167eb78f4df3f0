"""Every endpoint that generates, by name."""

from collections.abc import Mapping
from typing import Final

from proxy.dialects.dialect import Dialect
from proxy.dialects.openai import Chat, Completions
from proxy.request import Endpoint

DIALECTS: Final[Mapping[Endpoint, Dialect]] = {"chat": Chat(), "completions": Completions()}
