"""What the gateway says about itself: what the served model's text side can do, and its own description."""

import asyncio
from typing import Any

from aiohttp import web

from proxy.docs_page import HEADERS, PAGE
from proxy.openapi import description_text
from proxy.openapi_table import OPERATIONS
from proxy.text_model import TextModel


def text_facts(text_model: TextModel) -> dict[str, Any]:
    """Return what /v1/models says of a model's tokenizer, template and format."""
    chat = text_model.chat
    return {
        "chat": chat.template,
        "tools": chat.tools and text_model.format.calls_tools,
        "reasoning_switch": chat.thinking_switch,
        "reasoning_efforts": list(chat.reasoning_efforts),
        "structured_output": ["json_object", "json_schema", "regex", "lark", "choice"],
        "endpoints": [each.path for each in OPERATIONS if each.fields is not None],
    }


async def openapi(_request: web.Request) -> web.Response:
    """Answer GET /openapi.json, to anybody: there is nothing in it that the source doesn't say."""
    text = await asyncio.to_thread(description_text)
    return web.Response(text=text, content_type="application/json")


async def docs(_request: web.Request) -> web.Response:
    """Answer GET /docs: a page that shows /openapi.json, and asks no other host for anything."""
    return web.Response(text=PAGE, content_type="text/html", headers=HEADERS)
