"""Texts and calls as terms of a Lark rule, in llguidance's dialect."""

import json
import re
from collections.abc import Mapping

from proxy.request import Tool


def lark_text(text: str, words: Mapping[str, int]) -> str:
    """Return the terms that match exactly this text; `words` in it are single tokens, by their ids.

    A grammar matches a text by its bytes, which an added word's token doesn't have for llguidance: it must
    be named. By its id, since a name may stand there only if it is in angle brackets.
    """
    there = sorted((word for word in words if word and word in text), key=len, reverse=True)
    parts = re.split("(" + "|".join(map(re.escape, there)) + ")", text) if there else [text]
    # A quoted term knows JSON's escapes.
    terms = (f"<[{words[part]}]>" if part in words else json.dumps(part) for part in parts if part)
    return " ".join(terms) or '""'


def call_rule(before: str, after: str, words: Mapping[str, int], tool: Tool) -> str:
    """Return the terms that match one call: `before`, with {name} in it, arguments by the schema, `after`."""
    schema = json.dumps({"type": "object", **tool.parameters}, ensure_ascii=False)
    begins = lark_text(before.replace("{name}", tool.name), words)
    return f"{begins} %json {schema} {lark_text(after, words)}"
