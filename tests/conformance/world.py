"""The gateway that rows are checked at: a real proxy, and a worker that says what it is told."""

import asyncio
import contextlib
import json
from pathlib import Path

from tokenizers import AddedToken

from proxy.formats.families import FAMILIES
from proxy.formats.format import Format
from shared.model_folder import ModelFolder
from tests.proxy.false_worker import FalseWorker
from tests.proxy.small_gateway import NAME, Gateway
from tests.proxy.small_tokenizers import byte_level, write_folder
from tests.waiting import until

CONTEXT_TOKENS = 1 << 16
TURNS_AT_ONCE = 8
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, COUNT, EMBEDDINGS = "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
SAID = "hélo 漢字"

# Shows whatever a request may bring to a template, and writes calls and thoughts as Hermes and Qwen do.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}A call is <tool_call>{"name": , "arguments": }</tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>
{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if reasoning_effort is defined %}({{ reasoning_effort }})
{% endif %}{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""


# Of gpt-oss's and Gemma's thoughts, the marks are those at their ends.
MARKS = {mark for family in FAMILIES for mark in family.marks} | {
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<|channel>",
    "<channel|>",
}


class _Hurried(FalseWorker):
    """A worker of many tokens a millisecond: rows have long answers."""

    async def _live(self):
        while True:
            for _ in range(TURNS_AT_ONCE):
                self._turn()
            await asyncio.sleep(0.001)


class World(Gateway):
    """A gateway of a model with a long context. With `marks`, all families' marks are special tokens."""

    worker_kind = _Hurried

    def __init__(self, folder: Path, *, marks: bool = False, **proxy_settings):
        super().__init__(folder, **proxy_settings)
        self._words = sorted(MARKS) if marks else []
        self.tokenizer = byte_level()
        self.tokenizer.add_special_tokens([AddedToken(word, special=True) for word in self._words])

    def write_model(self, folder: Path) -> ModelFolder:
        """Write a model that has what rows need of it: room, and a template that shows all."""
        path = write_folder(folder, self.tokenizer).path
        config = json.loads((path / "config.json").read_text("utf-8"))
        config |= {"max_position_embeddings": CONTEXT_TOKENS}
        (path / "config.json").write_text(json.dumps(config), "utf-8")
        (path / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
        return ModelFolder.read(path)

    async def start(self, pause_at: int | None = None) -> None:
        """Start a worker that has room for everything."""
        room = {"context_tokens": CONTEXT_TOKENS, "kv_bytes_per_token": 0}
        await self.start_worker(slots=16, pause_at=pause_at, **room)
        self.chosen = self.text_model.format

    async def replace_worker(self, **changes) -> None:
        await self.kill_worker()
        await self.start(**changes)

    @property
    def text_model(self):
        return self.proxy.measurer._text_model

    @property
    def submits(self):
        """What the worker was asked for since the row began."""
        return self.worker.submits

    @property
    def prompt(self) -> str:
        """The last prompt's text, special tokens and all."""
        return self.tokenizer.decode(list(self.submits[-1].prompt_ids), skip_special_tokens=False)

    @property
    def sampling(self):
        return self.submits[-1].sampling

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def say(self, *texts: str) -> None:
        """Have all answers say this; with several texts, each choice its own."""
        answers = [self.ids(text) for text in texts]
        self.answer = lambda submit: answers[submit.sampling.choice % len(answers)]

    def reads(self, name: str) -> None:
        """Have the model's answers read in this format from now on."""
        family = next(family for family in FAMILIES if family.name == name)
        words = {word: self.tokenizer.token_to_id(word) for word in self._words}
        self._read(family.format(words, thinks=True))

    def _read(self, format_: Format) -> None:
        self.text_model.format = format_
        self.proxy.measurer._composer._compiler = (
            None  # it knows the words of the format that it was made for
        )

    async def begin(self) -> None:
        """Be as a row expects it: nothing runs, and nothing is left of the row before."""
        if not self.workers or not self.proxy.link.state.hello:
            await self.start()
        await self.idle()
        self._read(self.chosen)
        self.worker.submits.clear()
        self.worker.cancelled.clear()
        self.worker.pause_at = None
        self.worker.cached = lambda _submit: None
        self.say(SAID)

    async def reached(self, index: int) -> None:
        """Wait until what runs stands at this index, and all before it has come."""
        await until(lambda: self.paused_at(index))

    # --- asking ---------------------------------------------------------------------------------------------

    async def chat(self, **fields):
        return await self.post(CHAT, chat(**fields))

    async def complete(self, **fields):
        return await self.post(COMPLETIONS, completion(**fields))

    async def respond(self, **fields):
        return await self.post(RESPONSES, response(**fields))

    async def message(self, headers=None, **fields):
        return await self.post(MESSAGES, message(**fields), headers=headers)


def _told(body: dict, fields: dict) -> dict:
    """Return a body with fields set; those that are `...` are left out of it."""
    return {name: value for name, value in {"model": NAME, **body, **fields}.items() if value is not ...}


def chat(**fields):
    return _told({"messages": [user("Hi")]}, fields)


def completion(**fields):
    return _told({"prompt": "Hi"}, fields)


def response(**fields):
    return _told({"input": "Hi"}, fields)


def message(**fields):
    return _told({"messages": [user("Hi")], "max_tokens": 500}, fields)


def user(content):
    return {"role": "user", "content": content}


@contextlib.asynccontextmanager
async def world(folder: Path, key=None, **options):
    """Run a gateway that has a worker. With bounds of a `key`, it takes none but that one."""
    here = World(folder / NAME, **options)
    if key is not None:
        here.key = here.add_key("client", **key)
    async with here:
        await here.start()
        yield here
