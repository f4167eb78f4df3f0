"""The published description: whole, true of what is parsed, and the page that shows it."""

import json
import re

import jsonschema
import pytest
from jsonschema import Draft202012Validator

from proxy.admin_routes import gives_orders
from proxy.docs_page import PAGE
from proxy.openapi import description, schemas_of
from proxy.openapi_table import OPERATIONS
from tests.proxy.small_gateway import chat, completion, gateway

VALID = {
    "ChatRequest": [
        chat(),
        chat(temperature=None, stop=["a"], user="u", stream=True, stream_options={"include_usage": True}),
    ],
    "CompletionRequest": [
        completion(),
        completion(prompt=[1, 2], logprobs=3),
        completion(ignore_eos=True, min_tokens=5, max_tokens=5),
        completion(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}),
    ],
    "MessageRequest": [chat(max_tokens=5), chat(max_tokens=5, system="Be brief", stop_sequences=["a"])],
    "TokenizeRequest": [{"prompt": "a"}, {"prompt": "a", "add_special_tokens": False}],
    "TokenizeChatRequest": [{"messages": chat()["messages"]}, chat(return_token_strs=True)],
    "DetokenizeRequest": [{"tokens": [1, 2]}],
}
INVALID = {
    "ChatRequest": [
        chat(temperature=3),
        chat(n=0),
        chat(no_such=1),
        chat(messages=[]),
        chat(max_tokens="5"),
        {"model": "a"},
    ],
    "CompletionRequest": [completion(logit_bias=5), completion(top_p=0), completion(stop=5)],
    "MessageRequest": [chat(), chat(max_tokens=0)],
    "TokenizeRequest": [{}, {"prompt": 5}],
    "DetokenizeRequest": [{"tokens": [-1]}, {"tokens": ["a"]}],
}


@pytest.fixture(scope="module")
def told():
    return description()


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path) as running:
        yield running


def validator(told, name):
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": told["components"]})


def pointers(value):
    """Yield every $ref in a value."""
    if isinstance(value, dict):
        yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else ())
        for each in value.values():
            yield from pointers(each)
    elif isinstance(value, list):
        for each in value:
            yield from pointers(each)


def test_every_schema_is_one_and_every_reference_leads_somewhere(told):
    schemas = told["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    names = {pointer.removeprefix("#/components/schemas/") for pointer in pointers(told)}
    assert names <= schemas.keys()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in schemas)


def test_every_operation_is_complete(told):
    assert told["openapi"].startswith("3.1.")
    seen = [each["operationId"] for methods in told["paths"].values() for each in methods.values()]
    assert sorted(seen) == sorted({each.name for each in OPERATIONS})
    for path, methods in told["paths"].items():
        for each in methods.values():
            assert set(re.findall(r"{(\w+)}", path)) == {
                one["name"] for one in each["parameters"] if one["in"] == "path"
            }
            assert {"200", "400"} <= each["responses"].keys()


@pytest.mark.parametrize("name", VALID)
def test_what_the_description_allows_is_what_is_parsed(told, name):
    for body in VALID[name]:
        validator(told, name).validate(body)


@pytest.mark.parametrize("name", INVALID)
def test_what_the_parser_refuses_by_shape_the_description_refuses(told, name):
    for body in INVALID[name]:
        with pytest.raises(jsonschema.ValidationError):
            validator(told, name).validate(body)


def test_a_new_field_is_described_without_further_ado():
    class More(OPERATIONS[0].fields):
        harmless = OPERATIONS[0].fields.harmless | {"nothing_at_all"}
        brand_new: int = 5

    found = schemas_of("More", More)["More"]["properties"]
    assert found["brand_new"] == {
        "default": 5,
        "title": "Brand New",
        "anyOf": [{"type": "integer"}, {"type": "null"}],
    }
    assert "ignored" in found["nothing_at_all"]["description"]


def served(here):
    """Yield (method, path) of every public URL but HEAD's, which come with GET's, orders and assets."""
    for route in here.proxy.app.router.routes():
        path = route.resource.canonical if route.resource else ""
        is_asset = path.startswith("/status/assets/")
        if route.method != "HEAD" and not gives_orders(path) and not is_asset:
            yield route.method.lower(), path


async def test_every_url_that_is_served_is_described_and_the_other_way_round(here):
    assert sorted(served(here)) == sorted((each.method, each.path) for each in OPERATIONS)


async def test_the_description_and_the_page_are_open_to_everybody(tmp_path):
    async with gateway(tmp_path) as here:
        here.add_key("one")
        await here.proxy.policy.reload(lambda *_: None)
        assert (await here.get("/v1/models")).status == 401
        answered = await here.get("/openapi.json")
        assert (answered.status, answered.body) == (200, json.loads(json.dumps(description())))
        page = await here.get("/docs")
        assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert page.raw.decode() == PAGE


async def test_the_page_asks_no_other_host_and_lets_nothing_else_run(here):
    policy = (await here.get("/docs")).headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"(src|href|url|@import)\s*[=(]|https?:|//\w", PAGE.replace("default-src", ""))


async def test_a_models_facts_say_what_its_text_side_can_do(here):
    await here.start_worker()
    facts = (await here.get("/v1/models/small")).body["forebay"]
    assert facts["format"]["name"] == here.proxy.measurer._text_model.format.name
    assert (facts["chat"], facts["tools"]) == (True, False)
    assert (facts["reasoning_switch"], facts["reasoning_efforts"]) == (False, [])
    assert "/tokenize" in facts["endpoints"]
    assert "/v1/chat/completions" in facts["endpoints"]
    assert "json_schema" in facts["structured_output"]
