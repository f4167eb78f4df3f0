"""A model's format is known once it is loaded, shown in the list of models, and named by a setting."""

import pytest

from proxy.text_model import TextModel
from shared.errors import ModelError
from tests.proxy.formats.samples import CITY, TOOLS, call, read
from tests.proxy.small_gateway import gateway
from tests.proxy.small_tokenizers import byte_level, write_folder

TEMPLATE = "{{ messages[0].content }}[TOOL_CALLS][ARGS]<think>"


def loaded(path, name=""):
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["[TOOL_CALLS]", "[ARGS]"])
    return tokenizer, TextModel.load(
        write_folder(path, tokenizer, chat_template=TEMPLATE), answer_format=name
    )


def test_a_model_writes_as_its_template_does_and_its_special_marks_are_seen(tmp_path):
    tokenizer, model = loaded(tmp_path)
    assert model.format.name == "mistral"
    ids = tokenizer.encode(f"[TOOL_CALLS]get_weather[ARGS]{CITY}<|end|>").ids
    text = model.decoder(model.format)(ids)
    assert read(model.format.reader(False, TOOLS), [text]) == [call(CITY)]
    assert model.format.words == {word: tokenizer.token_to_id(word) for word in ("[TOOL_CALLS]", "[ARGS]")}


def test_a_setting_names_another_format(tmp_path):
    assert loaded(tmp_path, "hermes")[1].format.name == "hermes"
    with pytest.raises(ModelError, match="answer_format"):
        loaded(tmp_path, "nosuch")


async def test_the_list_of_models_tells_the_format(tmp_path):
    async with gateway(tmp_path, answer_format="hermes") as here:
        (model,) = (await here.get("/v1/models")).body["data"]
    assert model["forebay"]["format"] == {"name": "hermes", "thinks": False, "calls_tools": True}
