"""A model's text side: templates as Hugging Face's renderer would show them, and ids that end an answer."""

import json
from datetime import UTC, datetime

import pytest
from tokenizers import processors

from proxy.request import ChatPrompt
from proxy.text_model import TextModel
from shared.errors import InvalidRequest, ModelError
from tests.proxy.small_tokenizers import CHATML, byte_level, write_folder

HI = ({"role": "user", "content": "Hi"},)


def load(path, tokenizer=None, **config):
    return TextModel.load(write_folder(path, tokenizer, **config), lambda: datetime(2026, 3, 1, tzinfo=UTC))


def rendered(model, messages=HI):
    """Return what the template says; the small tokenizer's decode hides only special tokens."""
    return model.decode(model.encode_chat(ChatPrompt(tuple(messages))).ids)


def test_a_chat_is_encoded_with_its_special_tokens(tmp_path):
    tokenizer = byte_level()
    ids = load(tmp_path, tokenizer, chat_template=CHATML).encode_chat(ChatPrompt(HI)).ids
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(list(ids), skip_special_tokens=False) == text
    assert ids[0] == tokenizer.token_to_id("<|im_start|>")


def test_the_template_brings_its_own_beginning_and_a_plain_text_gets_the_tokenizers(tmp_path):
    tokenizer = byte_level()
    begin = tokenizer.token_to_id("<|im_start|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", begin)]
    )
    model = load(tmp_path, tokenizer, chat_template="{{ messages[0].content }}")
    assert model.encode_text("Hi") == (begin, *model.encode_chat(ChatPrompt(HI)).ids)


def test_a_plain_text_comes_back_and_special_tokens_are_not_shown(tmp_path):
    tokenizer = byte_level()
    model = load(tmp_path, tokenizer)
    assert model.decode(model.encode_text("漢字 😀")) == "漢字 😀"
    assert model.decode((tokenizer.token_to_id("<|im_end|>"), *model.encode_text("a"), 999_999)) == "a"


def test_truncation_and_padding_left_in_the_tokenizer_are_switched_off(tmp_path):
    tokenizer = byte_level()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=10)
    assert len(load(tmp_path, tokenizer).encode_text("abcde")) == 5


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        ("{% for m in messages %}{% continue %}x{% endfor %}y", "y"),
        ("{% for m in messages %}x{% break %}{% endfor %}", "x"),
        ("{{ {'a': '<é>', 'b': [1]} | tojson }}", '{"a": "<é>", "b": [1]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1) }}", '{\n "b": 1,\n "a": 2\n}'),
        ("{{ strftime_now('%d %b %Y') }}", "01 Mar 2026"),
        ("{{ bos_token }}|{{ eos_token }}|{{ sep_token }}", "[B]|[E]|"),
        ("{% if tools %}t{% else %}none{% endif %}", "none"),
        ("{% if not add_generation_prompt is defined or add_generation_prompt %}g{% endif %}", "g"),
        ("{% generation %}{{ messages[0]['content'] }}{% endgeneration %}", "Hi"),
        ("{{ messages[1:] | length }}{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}", "02"),
        ("{{ messages[0].content.strip() ~ '<b>' }}", "Hi<b>"),
    ],
)
def test_templates_find_what_they_expect(tmp_path, template, text):
    words = {"bos_token": {"content": "[B]", "lstrip": False}, "eos_token": "[E]", "sep_token": None}
    assert rendered(load(tmp_path, chat_template=template, **words)) == text


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[0].content.nothing.more }}",
        "{{ messages[0].content + 5 }}",
        "{{ messages[99].content }}",
        "{{ 1 // 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{{ messages | tojson(sort_keys=5, indent='x' * 2, separators=3) }}",
    ],
)
def test_messages_that_the_template_cannot_render_are_the_clients_fault(tmp_path, template):
    """The sandbox's refusals are among them: a template reaches neither Python nor a billion loops."""
    model = load(tmp_path, chat_template=template)
    with pytest.raises(InvalidRequest, match="chat template can't render") as refusal:
        model.encode_chat(ChatPrompt(HI))
    assert refusal.value.param == "messages"


def test_a_templates_own_complaint_reaches_the_client(tmp_path):
    model = load(tmp_path, chat_template="{{ raise_exception('Roles must alternate.') }}")
    with pytest.raises(InvalidRequest, match=r"Roles must alternate\.$"):
        model.encode_chat(ChatPrompt(HI))


def test_a_model_without_a_template_takes_no_chat(tmp_path):
    with pytest.raises(InvalidRequest, match="no chat template") as refusal:
        load(tmp_path).encode_chat(ChatPrompt(HI))
    assert refusal.value.param == "messages"


def test_the_template_named_default_is_taken_from_a_list(tmp_path):
    templates = [{"name": "rag", "template": "rag"}, {"name": "default", "template": "this"}]
    assert rendered(load(tmp_path, chat_template=templates)) == "this"


def test_a_list_without_a_default_template_is_no_template(tmp_path):
    with pytest.raises(InvalidRequest, match="no chat template"):
        load(tmp_path, chat_template=[{"name": "rag", "template": "rag"}]).encode_chat(ChatPrompt(HI))


def test_the_templates_own_file_wins(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("file", "utf-8")
    assert rendered(load(tmp_path, chat_template="configuration")) == "file"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"\xff"),
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"\xff"),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", json.dumps({"chat_template": 5}).encode()),
        ("tokenizer_config.json", json.dumps({"chat_template": "{% for %}"}).encode()),
        ("chat_template.jinja", b"{% if %}"),
        ("chat_template.jinja", b"\xff"),
    ],
)
def test_a_folder_that_cannot_be_read_is_named(tmp_path, file, content):
    folder = write_folder(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ModelError, match=tmp_path.name):
        TextModel.load(folder)


def test_a_folder_without_a_tokenizer_configuration_is_served(tmp_path):
    folder = write_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert TextModel.load(folder).encode_text("a")


def test_stop_ids_are_the_models_the_tokenizers_and_the_known_ends_of_a_turn(tmp_path):
    """<|end|> is special in this tokenizer, too, but ends no turn in every family."""
    tokenizer = byte_level()
    write_folder(tmp_path, tokenizer)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}', "utf-8")
    model = load(tmp_path, tokenizer, eos_token="a")
    named = [tokenizer.token_to_id(word) for word in ("a", "<|endoftext|>", "<|im_end|>")]
    assert model.stop_ids == tuple(sorted([7, 8, *named]))


def test_an_end_of_turn_that_is_no_special_token_is_a_word(tmp_path):
    tokenizer = byte_level()
    tokenizer.add_tokens(["<|eot_id|>", "<end_of_turn>"])
    assert load(tmp_path, tokenizer).stop_ids == load(tmp_path / "without").stop_ids


def test_ids_beyond_the_models_vocabulary_stop_nothing(tmp_path):
    folder = write_folder(tmp_path, byte_level())
    config = {"vocab_size": 100, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    assert TextModel.load(type(folder).read(tmp_path)).stop_ids == ()
