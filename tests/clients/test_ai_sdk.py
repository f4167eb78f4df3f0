"""Vercel's AI SDK, its four ways to ask: OpenAI-compatible, OpenAI chat, OpenAI responses, Anthropic."""

import asyncio
import contextlib
import json
import shutil

import pytest
import pytest_asyncio

from tests.clients.node_packages import HERE, installed
from tests.conformance.samples import CALL, CALLS, PARIS, THOUGHT, THOUGHTFUL
from tests.conformance.world import SAID

pytestmark = pytest.mark.asyncio(loop_scope="module")
MODELS = ("compatible", "chat", "responses", "anthropic")
BOTH = [["get_weather", json.loads(PARIS)], ["get_time", {"zone": "UTC"}]]
ANSWER_S = 60


class Node:
    """A process that asks as it is told, one question after another."""

    def __init__(self, process):
        self._process = process

    async def ask(self, way, model, **fields):
        line = json.dumps({"way": way, "model": model, **fields}).encode() + b"\n"
        self._process.stdin.write(line)
        async with asyncio.timeout(ANSWER_S):
            answer = await self._process.stdout.readline()
        assert answer, (await self._process.stderr.read()).decode()
        return json.loads(answer)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(served, tmp_path_factory):
    folder = await asyncio.to_thread(installed)
    # Packages are looked for beside the script, so it stands where they are.
    script = tmp_path_factory.mktemp("node") / "clients.mjs"
    shutil.copy(HERE / "clients.mjs", script)
    (script.parent / "node_modules").symlink_to(folder / "node_modules")
    process = await asyncio.create_subprocess_exec(
        *("node", str(script), served.url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    yield Node(process)
    process.stdin.close()
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.communicate()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("way", ["whole", "streamed"])
async def test_a_text_comes_with_its_reason_and_tokens(here, node, way, model):
    told = await node.ask(way, model)
    assert (told["text"], told["reason"], told["tokens"]) == (SAID, "stop", len(here.ids(SAID)))


@pytest.mark.parametrize("model", MODELS)
async def test_streamed_calls_are_put_together_by_the_sdk(here, node, model):
    here.say(f"I'll look.\n{CALLS}")
    told = await node.ask("streamed", model)
    assert told["calls"] == told["together"]["calls"] == BOTH
    assert [json.loads(each) for each in told["inputs"].values()] == [input_ for _, input_ in BOTH]
    assert told["text"].strip() == "I'll look."
    assert told["reason"] == "tool-calls"


@pytest.mark.parametrize("way", ["whole", "streamed"])
@pytest.mark.parametrize("model", ["compatible", "anthropic"])
async def test_thoughts_are_told_apart(here, node, way, model):
    here.say(THOUGHTFUL + "Yes.")
    told = await node.ask(way, model)
    assert (told["thought"].strip(), told["text"].strip()) == (THOUGHT, "Yes.")


@pytest.mark.parametrize("model", MODELS)
async def test_an_object_comes_by_its_schema(here, node, model):
    here.say('{"city": "Paris"}')
    assert await node.ask("object", model) == {"object": {"city": "Paris"}}
    assert here.sampling.grammar


@pytest.mark.parametrize("model", MODELS)
async def test_a_call_and_its_result_go_back(here, node, model):
    here.say(CALL)
    assert await node.ask("steps", model) == {}
    assert "Rain, 12 °C" in here.prompt


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("way", ["whole", "streamed"])
async def test_a_refusal_is_an_error_with_its_status_and_words(node, way, model):
    told = await node.ask(way, model, prompt="x" * 70_000)
    assert (told["error"], told["status"]) == ("AI_APICallError", 400)
    assert "tokens" in told["message"]
