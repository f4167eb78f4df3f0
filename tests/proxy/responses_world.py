"""A gateway for /v1/responses: with room for conversations, a template that shows all, and a small format."""

import contextlib
import json
from unittest.mock import patch

import openai
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from proxy.answer import Call, Text, Thought
from proxy.formats.format import Format
from shared.model_folder import ModelFolder
from tests.proxy import small_gateway
from tests.proxy.small_gateway import NAME, TOKENIZER, gateway
from tests.proxy.small_tokenizers import write_folder

RESPONSES = "/v1/responses"
EVENT = TypeAdapter(ResponseStreamEvent)
CONTEXT_TOKENS = 4096
# A line a message, with everything that a message may have.
TEMPLATE = (
    "{% if tools %}{{ tools | map(attribute='function.name') | join(' ') }}{{ '\\n' }}{% endif %}"
    "{% for m in messages %}{{ m.role }}{% if m.name %}({{ m.tool_call_id }} {{ m.name }}){% endif %}:"
    "{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls %}!{{ call.function.name }}{{ call.function.arguments | tojson }}"
    "{% endfor %}{{ '\\n' }}{% endfor %}"
)


class MarkupReader:
    """Reads ~thoughts~ and @name{…}@ out of a text, once the closing mark is there; the rest is text."""

    def __init__(self):
        self.held = ""

    @property
    def held_chars(self):
        return len(self.held)

    @property
    def is_thinking(self):
        return self.held.startswith("~")

    def feed(self, text):
        pieces = []
        for character in text:
            self.held += character
            mark = self.held[0]
            if mark not in "~@":
                pieces.append(Text(self.held))
                self.held = ""
            elif character == mark and len(self.held) > 1:
                pieces.append(_marked(self.held[1:-1], mark))
                self.held = ""
        return pieces

    def finish(self):
        rest, self.held = self.held, ""
        return [Text(rest)] if rest else []


def _marked(text, mark):
    if mark == "~":
        return Thought(text)
    name, brace, arguments = text.partition("{")
    return Call(name, brace + arguments)


MARKUP = Format("markup", lambda _thinks, _tools: MarkupReader(), thought=("~", "~"), call_begins="@")


def _roomy(path, tokenizer, **_config):
    write_folder(path, tokenizer, chat_template=TEMPLATE)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT_TOKENS}))
    return ModelFolder.read(path)


@contextlib.asynccontextmanager
async def responses_gateway(tmp_path, answer="", **settings):
    """Run a gateway whose worker answers with this text, markup and all."""
    with patch.object(small_gateway, "write_folder", _roomy):
        async with gateway(tmp_path, **settings) as here:
            here.proxy.measurer._text_model.format = MARKUP
            await here.start_worker()
            says(here, answer)
            yield here


def says(here, text):
    here.answer = lambda _submit: small_gateway.ids(text)


def prompt_text(here):
    """Return what the worker was last asked to go on from."""
    return TOKENIZER.decode(list(here.worker.submits[-1].prompt_ids), skip_special_tokens=False)


def asking(content="Hi", **fields):
    return {"model": NAME, "input": content, **fields}


def client(here, key="none"):
    return openai.AsyncOpenAI(base_url=f"{here.url}/v1", api_key=key, max_retries=0)


def checked_response(body):
    """Return a body as the official package reads it, with no type changed and no field of ours lost."""
    return Response.model_validate(body, strict=True)


def checked_events(answered):
    """Return a stream's events, each as the official package demands it, in the order of their numbers."""
    events = []
    for number, block in enumerate(answered.blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        assert EVENT.validate_python(event, strict=True).type == event["type"]
        events.append(event)
    return events
