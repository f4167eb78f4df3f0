"""/v1/models, /v1/embeddings, /tokenize and /detokenize, and the API's description."""

from jsonschema import Draft202012Validator

from tests.conformance.reading import embedding_of, model_of, refused
from tests.conformance.row import OPENAI, OURS, VLLM, Section
from tests.conformance.samples import chat_tools
from tests.conformance.world import (
    CHAT,
    COMPLETIONS,
    CONTEXT_TOKENS,
    COUNT,
    DETOKENIZE,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    TOKENIZE,
    chat,
    user,
)

MODELS = Section("/v1/models")
TOKENS = Section(TOKENIZE)
REST = Section("the rest")


@MODELS.row(OPENAI + "list models")
async def the_models_are_listed(here):
    body = (await here.get("/v1/models")).body
    assert body["object"] == "list"
    assert "small" in [model_of(each).id for each in body["data"]]


@MODELS.row(OPENAI + "retrieve model")
async def a_model_is_told_by_its_name(here):
    assert model_of((await here.get("/v1/models/small")).body).id == "small"
    refused(await here.get("/v1/models/gpt-4"), 404, "model", "model_not_found")


@MODELS.row(OURS + "what is true of a model is told with it")
async def a_model_comes_with_what_it_can(here):
    facts = (await here.get("/v1/models/small")).body["forebay"]
    assert facts["context_tokens"] == CONTEXT_TOKENS
    assert facts["batches"] is True
    assert "kv_bits" in facts
    assert all("max_tokens" in lane for lane in facts["lanes"].values())


@MODELS.row(OURS + "how a model's answers are read is told with it")
async def a_model_comes_with_the_format_of_its_answers(here):
    assert here.text_model.format.name in str((await here.get("/v1/models/small")).body["forebay"])


@MODELS.row(OPENAI + "embeddings")
async def embeddings_are_refused_by_a_model_that_has_none(here):
    answered = await here.post(EMBEDDINGS, {"model": "small", "input": "x"})
    if answered.status == 200:
        assert embedding_of(answered).data
    else:
        assert "embedding" in refused(answered, 400)


async def tokenized(here, **body):
    answered = await here.post(TOKENIZE, {"model": "small", **body})
    assert answered.status == 200, answered.raw
    return answered.body


@TOKENS.row(VLLM + "tokenizer API, a prompt")
async def a_prompt_is_tokenized(here):
    body = await tokenized(here, prompt="hé")
    assert body["tokens"] == here.ids("hé")
    assert (body["count"], body["max_model_len"]) == (3, CONTEXT_TOKENS)


@TOKENS.row(VLLM + "tokenizer API, messages")
async def messages_are_tokenized_as_they_would_be_answered(here):
    for fields in ({}, {"tools": chat_tools()}):
        assert (await here.post(CHAT, chat(**fields))).status == 200
        body = await tokenized(here, messages=[user("Hi")], **fields)
        assert body["tokens"] == list(here.submits[-1].prompt_ids)


@TOKENS.row(VLLM + "detokenizer API")
async def tokens_are_text_again(here):
    ids = (await tokenized(here, prompt="hélo 漢字 😀"))["tokens"]
    answered = await here.post(DETOKENIZE, {"model": "small", "tokens": ids})
    assert (answered.status, answered.body["prompt"]) == (200, "hélo 漢字 😀")


@TOKENS.row(OURS + "bad fields are refused by name")
async def what_cant_be_tokenized_is_refused_by_name(here):
    for body, param in (
        ({"prompt": 5}, "prompt"),
        ({"messages": []}, "messages"),
        ({"prompt": "x", "banana": 1}, "banana"),
    ):
        refused(await here.post(TOKENIZE, {"model": "small", **body}), 400, param)
    for tokens in ("x", [-1], [1 << 40], ["a"]):
        answered = await here.post(DETOKENIZE, {"model": "small", "tokens": tokens})
        refused(answered, 400)
        assert answered.error["param"].startswith("tokens")
    refused(await here.post(TOKENIZE, {"model": "gpt-4", "prompt": "x"}), 404, "model")


@REST.row("OpenAPI specification 3.1")
async def the_api_is_described_with_every_route(here):
    described = (await here.get("/openapi.json")).body
    assert described["openapi"].startswith("3.1")
    for path in (CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, MESSAGES, COUNT, TOKENIZE, DETOKENIZE):
        assert "post" in described["paths"][path], path
    assert "get" in described["paths"]["/v1/models"]
    for schema in described["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


@REST.row("OpenAPI specification 3.1: references")
async def every_reference_in_the_description_leads_somewhere(here):
    described = (await here.get("/openapi.json")).body

    def references(value):
        if isinstance(value, dict):
            yield from (each for name, each in value.items() if name == "$ref" and isinstance(each, str))
            for each in value.values():
                yield from references(each)
        elif isinstance(value, list):
            for each in value:
                yield from references(each)

    for reference in set(references(described)):
        place = described
        for step in reference.removeprefix("#/").split("/"):
            place = place[step.replace("~1", "/").replace("~0", "~")]


@REST.row(OURS + "a page to read the description on")
async def the_description_can_be_read_by_people(here):
    answered = await here.get("/docs")
    assert answered.status == 200
    assert answered.headers["Content-Type"].startswith("text/html")
    assert b"/v1/chat/completions" in answered.raw or b"openapi.json" in answered.raw
    assert b"https://" not in answered.raw, "the page needs nothing from elsewhere"
