"""Grammars on a request's way: put into its sampling where it is measured, refused before it is queued."""

import pytest

from proxy.grammars.composer import Composer
from proxy.measure import Measurer
from proxy.request import ChatPrompt, Tool, ToolUse
from proxy.text_model import TextModel
from shared.config import ProxySettings
from shared.errors import InvalidRequest
from shared.lane_settings import LaneSettings
from tests.proxy.grammars.small_answers import Writer, request, shape
from tests.proxy.small_tokenizers import CHATML, byte_level, write_folder
from tests.proxy.small_worlds import ticket

TICKET = ticket(LaneSettings(name="plain", max_tokens_default=4), context_tokens=64)
CHAT = (ChatPrompt(({"role": "user", "content": "Hi"},)),)


@pytest.fixture
def measurer(tmp_path):
    folder = write_folder(tmp_path, byte_level(), chat_template=CHATML)
    measurer = Measurer(TextModel.load(folder), folder, ProxySettings())
    yield measurer
    measurer.close()


async def test_a_measured_request_has_its_grammar_and_a_fingerprint_by_it(measurer):
    plain = request(prompts=CHAT)
    free = await measurer.measure(plain, TICKET)
    held = await measurer.measure(request(prompts=CHAT, shape=shape("choice", '["a"]')), TICKET)
    other = await measurer.measure(request(prompts=CHAT, shape=shape("choice", '["b"]')), TICKET)
    assert free.parsed is plain
    assert '"a"' in held.parsed.sampling.grammar
    assert len({each.fingerprints for each in (free, held, other)}) == 3


async def test_what_cannot_be_held_to_is_not_measured(measurer):
    with pytest.raises(InvalidRequest) as refused:
        await measurer.measure(request(prompts=CHAT, shape=shape("regex", "(")), TICKET)
    assert refused.value.param == "response_format"


def test_the_same_request_has_the_same_grammar_on_any_run():
    asked = {"tools": ToolUse((Tool("f"), Tool("g")), "required"), "shape": shape("json_object")}
    assert Writer("hermes").grammar(**asked) == Writer("hermes").grammar(**asked)


def test_ids_that_the_model_has_not_are_in_no_grammar():
    writer = Writer("think")
    beyond = writer.tokenizer.get_vocab_size()
    writer.model.stop_ids = (writer.stop, beyond)
    asked = {"shape": shape("json_object")}
    composed = Composer(writer.model, beyond).grammar(request(**asked), thinks=False)
    assert composed == writer.grammar(**asked)
