"""/v1/responses over HTTP, read by the official client: whole, streamed, with tools, gone on from."""

import json

import openai
import pytest
from pydantic import BaseModel

from tests.proxy.responses_world import (
    RESPONSES,
    asking,
    checked_events,
    checked_response,
    client,
    prompt_text,
    responses_gateway,
    says,
)
from tests.proxy.small_gateway import NAME
from tests.waiting import until

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "of a town",
    "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
}
THINKS_SAYS_CALLS = '~a town~I look. @weather{"town":"Bern"}@'


def without_ids(response):
    """Return a response as far as two answers to the same request have it in common."""
    text = json.dumps({**response, "created_at": 0})
    return json.loads(text.replace(response["id"].removeprefix("resp_"), "ID"))


async def test_a_whole_body_is_what_the_official_package_demands(tmp_path):
    async with responses_gateway(tmp_path, "~hm~hélo") as here:
        answered = await here.post(RESPONSES, asking(max_output_tokens=50, metadata={"a": "b"}))
        response = checked_response(answered.body)
        assert response.output_text == "hélo"
        assert [item.type for item in response.output] == ["reasoning", "message"]
        assert response.output[0].content[0].text == "hm"
        assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
        assert (response.max_output_tokens, response.metadata, response.store) == (50, {"a": "b"}, True)
        usage = response.usage
        assert (usage.input_tokens, usage.output_tokens) == (len("user:Hi\n"), len("~hm~hélo".encode()))
        assert usage.output_tokens_details.reasoning_tokens == len("~hm")
        assert prompt_text(here) == "user:Hi\n"


async def test_a_stream_ends_with_what_a_whole_body_is(tmp_path):
    async with responses_gateway(tmp_path) as here:
        for text in ("", "hélo 漢字", "~only a thought~", THINKS_SAYS_CALLS, "~cut", "@weather{"):
            for most in (100, 4):
                says(here, text)
                body = asking(max_output_tokens=most, tools=[WEATHER], seed=1)
                whole = (await here.post(RESPONSES, body)).body
                events = checked_events(await here.post(RESPONSES, {**body, "stream": True}))
                last = events[-1]["response"]
                checked_response(whole)
                assert without_ids(last) == without_ids(whole)
                cut = len(text.encode()) >= most
                assert whole["status"] == ("incomplete" if cut else "completed")
                assert whole["incomplete_details"] == ({"reason": "max_output_tokens"} if cut else None)
                assert events[-1]["type"] == f"response.{whole['status']}"


async def test_the_events_of_each_kind_of_item_come_in_order(tmp_path):
    async with responses_gateway(tmp_path, THINKS_SAYS_CALLS) as here:
        events = checked_events(await here.post(RESPONSES, asking(tools=[WEATHER], stream=True)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    once = [kind for place, kind in enumerate(kinds) if kinds[place - 1 : place] != [kind]]
    assert once == [
        "created",
        "in_progress",
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
        "output_item.done",
        "completed",
    ]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    assert events[0]["response"]["usage"] is None


async def test_the_official_client_puts_a_stream_together(tmp_path):
    async with responses_gateway(tmp_path, THINKS_SAYS_CALLS) as here, client(here) as official:
        async with official.responses.stream(
            model=NAME, input="Hi", tools=[{**WEATHER, "strict": False}]
        ) as s:
            snapshots = [event.snapshot async for event in s if event.type == "response.output_text.delta"]
            response = await s.get_final_response()
        assert snapshots[-1] == response.output_text == "I look. "
        call = response.output[-1]
        assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"town":"Bern"}')


async def test_a_call_is_answered_in_the_next_request(tmp_path):
    async with responses_gateway(tmp_path, THINKS_SAYS_CALLS) as here, client(here) as official:
        asked = {"model": NAME, "tools": [WEATHER], "instructions": "Be brief."}
        first = await official.responses.create(input="Where?", **asked)
        says(here, "Snow.")
        call = first.output[-1]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "snow"}
        second = await official.responses.create(input=[result], previous_response_id=first.id, **asked)
        kept = prompt_text(here)
        assert kept == (
            'weather\nsystem:Be brief.\nuser:Where?\nassistant:[a town]I look. !weather{"town": "Bern"}\n'
            f"tool({call.call_id} weather):snow\n"
        )
        assert second.output_text == "Snow."
        assert second.previous_response_id == first.id
        given = [{"role": "user", "content": "Where?"}, *(item.to_dict() for item in first.output), result]
        await official.responses.create(input=given, store=False, **asked)
        assert prompt_text(here) == kept


async def test_instructions_are_not_carried_over(tmp_path):
    async with responses_gateway(tmp_path, "A") as here, client(here) as official:
        first = await official.responses.create(model=NAME, input="1", instructions="Be brief.")
        second = await official.responses.create(model=NAME, input="2", previous_response_id=first.id)
        assert prompt_text(here) == "user:1\nassistant:A\nuser:2\n"
        assert second.instructions is None


async def test_a_conversation_goes_on_from_a_streamed_answer(tmp_path):
    async with responses_gateway(tmp_path, "A") as here, client(here) as official:
        stream = await official.responses.create(model=NAME, input="1", stream=True)
        events = [event async for event in stream]
        id_ = events[-1].response.id
        await official.responses.create(model=NAME, input="2", previous_response_id=id_)
        assert prompt_text(here) == "user:1\nassistant:A\nuser:2\n"


async def test_a_conversation_outlives_the_responses_it_came_by(tmp_path):
    async with responses_gateway(tmp_path, "A") as here, client(here) as official:
        first = await official.responses.create(model=NAME, input="1")
        second = await official.responses.create(model=NAME, input="2", previous_response_id=first.id)
        await official.responses.delete(first.id)
        await official.responses.create(model=NAME, input="3", previous_response_id=second.id)
        assert prompt_text(here) == "user:1\nassistant:A\nuser:2\nassistant:A\nuser:3\n"


async def test_an_item_is_referred_to(tmp_path):
    async with responses_gateway(tmp_path, "A") as here:
        first = (await here.post(RESPONSES, asking("1"))).body
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        again = [{"role": "user", "content": "1"}, reference, {"role": "user", "content": "2"}]
        assert (await here.post(RESPONSES, asking(again))).status == 200
        assert prompt_text(here) == "user:1\nassistant:A\nuser:2\n"
        wrong = await here.post(RESPONSES, asking([{"id": "msg_1"}]))
        assert (wrong.status, wrong.error["param"]) == (400, "input.0.id")


async def test_what_is_not_kept_cannot_be_gone_on_from(tmp_path):
    async with responses_gateway(tmp_path, "A") as here, client(here) as official:
        unkept = await official.responses.create(model=NAME, input="1", store=False)
        for id_ in (unkept.id, "resp_1"):
            with pytest.raises(openai.BadRequestError) as refused:
                await official.responses.create(model=NAME, input="2", previous_response_id=id_)
            assert refused.value.code == "previous_response_not_found"
            assert refused.value.param == "previous_response_id"


async def test_a_response_is_another_keys_secret(tmp_path):
    async with responses_gateway(tmp_path, "A") as here:
        mine, other = here.add_key("mine"), here.add_key("other")
        await here.proxy.admin.reload()
        id_ = (await here.post(RESPONSES, asking(), headers=mine)).body["id"]
        assert (await here.get(f"{RESPONSES}/{id_}", headers=mine)).status == 200
        assert (await here.get(f"{RESPONSES}/{id_}", headers=other)).status == 404
        assert (await here.get(f"{RESPONSES}/{id_}")).status == 401
        async with here.session.delete(f"{RESPONSES}/{id_}", headers=other) as refused:
            assert refused.status == 404
        going_on = await here.post(RESPONSES, asking(previous_response_id=id_), headers=other)
        assert going_on.error["code"] == "previous_response_not_found"
        item = {"id": f"msg_{id_.removeprefix('resp_')}0000"}
        assert (await here.post(RESPONSES, asking([item]), headers=other)).status == 400
        assert (await here.post(RESPONSES, asking([item]), headers=mine)).status == 200


async def test_a_kept_response_is_read_listed_and_deleted(tmp_path):
    async with responses_gateway(tmp_path, "A") as here, client(here) as official:
        first = await official.responses.create(model=NAME, input="1")
        second = await official.responses.create(model=NAME, input="2", previous_response_id=first.id)
        assert await official.responses.retrieve(second.id) == second
        page = await official.responses.input_items.list(second.id, order="asc", limit=2)
        assert [item.content[0].text for item in page.data] == ["1", "A"]
        assert page.has_more
        listed = [
            item.content[0].text async for item in official.responses.input_items.list(second.id, limit=1)
        ]
        assert listed == ["2", "A", "1"]
        await official.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError):
            await official.responses.retrieve(second.id)


async def test_only_what_runs_in_the_background_is_cancelled(tmp_path):
    async with responses_gateway(tmp_path, "A") as here, client(here) as official:
        kept = await official.responses.create(model=NAME, input="1")
        with pytest.raises(openai.BadRequestError):
            await official.responses.cancel(kept.id)
        with pytest.raises(openai.NotFoundError):
            await official.responses.cancel("resp_1")


async def test_an_answer_that_was_cut_off_by_its_client_is_not_kept(tmp_path):
    async with responses_gateway(tmp_path, "hello") as here:
        here.worker.pause_at = 2
        async with here.session.post(RESPONSES, json=asking(stream=True)) as response:
            assert response.status == 200
            await response.content.readuntil(b"response.created")
        here.worker.pause_at = None
        await here.idle()
        assert len(here.proxy.responses) == 0


async def test_the_official_client_parses_a_structured_answer(tmp_path):
    class Town(BaseModel):
        name: str

    async with responses_gateway(tmp_path, '{"name":"Bern"}') as here, client(here) as official:
        response = await official.responses.parse(model=NAME, input="Hi", text_format=Town)
        assert response.output_parsed == Town(name="Bern")


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_are_the_texts(tmp_path, stream):
    async with responses_gateway(tmp_path, "hé") as here:
        body = asking(include=["message.output_text.logprobs"], top_logprobs=2, stream=stream)
        answered = await here.post(RESPONSES, body)
        if stream:
            events = checked_events(answered)
            deltas = [event for event in events if event["type"] == "response.output_text.delta"]
            response, streamed = events[-1]["response"], [e for d in deltas for e in d["logprobs"]]
        else:
            response = streamed = answered.body
        (part,) = response["output"][0]["content"]
        checked_response(response)
        if stream:
            assert streamed == part["logprobs"]
        assert b"".join(bytes(entry["bytes"]) for entry in part["logprobs"]) == "hé".encode()
        assert {len(entry["top_logprobs"]) for entry in part["logprobs"]} == {2}


async def test_a_custom_tool_is_called_with_text(tmp_path):
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    patch = {"type": "custom", "name": "apply_patch", "description": "edits", "format": grammar}
    async with responses_gateway(tmp_path, '@apply_patch{"input":"*** \\"x\\""}@') as here:
        body = asking(tools=[patch], tool_choice={"type": "custom", "name": "apply_patch"}, seed=1)
        whole = (await here.post(RESPONSES, body)).body
        events = checked_events(await here.post(RESPONSES, {**body, "stream": True}))
        checked_response(whole)
        (call,) = whole["output"]
        assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", '*** "x"')
        assert without_ids(events[-1]["response"]) == without_ids(whole)
        result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "ok"}
        going_on = asking([result], tools=[patch], previous_response_id=whole["id"])
        assert (await here.post(RESPONSES, going_on)).status == 200
        assert f"tool({call['call_id']} apply_patch):ok" in prompt_text(here)


async def test_a_function_of_a_namespace_is_called_by_its_own_name(tmp_path):
    space = {"type": "namespace", "name": "mcp__files", "description": "files", "tools": [WEATHER]}
    async with responses_gateway(tmp_path, '@mcp__files__weather{"town":"Bern"}@') as here:
        whole = (await here.post(RESPONSES, asking(tools=[space]))).body
        checked_response(whole)
        (call,) = whole["output"]
        assert (call["namespace"], call["name"]) == ("mcp__files", "weather")
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "snow"}
        given = [{"role": "user", "content": "Hi"}, call, result]
        assert (await here.post(RESPONSES, asking(given, tools=[space]))).status == 200
        assert '!mcp__files__weather{"town": "Bern"}' in prompt_text(here)


async def test_a_thought_comes_back_from_clients_that_keep_only_what_is_encrypted(tmp_path):
    async with responses_gateway(tmp_path, "~hm~A") as here:
        body = asking("1", include=["reasoning.encrypted_content"], store=False)
        thought, said = (await here.post(RESPONSES, body)).body["output"]
        lean = {key: value for key, value in thought.items() if key not in ("content", "status")}
        assert (await here.post(RESPONSES, asking([lean, said], store=False))).status == 200
        assert prompt_text(here) == "assistant:[hm]A\n"


async def test_embeddings_are_refused_once_they_are_asked_for_rightly(tmp_path):
    async with responses_gateway(tmp_path) as here, client(here) as official:
        with pytest.raises(openai.BadRequestError, match="makes text and no embeddings"):
            await official.embeddings.create(model=NAME, input=["a", "b"])
        with pytest.raises(openai.NotFoundError):
            await official.embeddings.create(model="other", input="a")
        wrong = await here.post("/v1/embeddings", {"model": NAME, "input": []})
        assert (wrong.status, wrong.error["param"]) == (400, "input")


async def test_what_is_too_long_is_named_as_this_endpoint_calls_it(tmp_path):
    async with responses_gateway(tmp_path) as here:
        long = await here.post(RESPONSES, asking("x" * 5000))
        assert (long.status, long.error["code"]) == (400, "context_length_exceeded")
        assert long.error["param"] == "input"
        much = await here.post(RESPONSES, asking(max_output_tokens=5000))
        assert much.error["param"] == "max_output_tokens"


async def test_a_stream_whose_worker_dies_for_good_ends_with_a_failed_response_in_its_turn(tmp_path):
    async with responses_gateway(tmp_path, "hélo") as here:
        here.worker.pause_at = 2
        asked = here.asking(RESPONSES, asking(stream=True))
        await until(lambda: here.live and here.paused_at(2))
        here.answer = lambda _submit: "it can't go on"
        await here.replace_worker()
        events = checked_events(await asked)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"]["message"]
