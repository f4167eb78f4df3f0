"""/v1/chat/completions: the answer, its stream, and what says how it is drawn and ended."""

import asyncio

from tests.conformance.reading import chat_of, chunks_of, refused
from tests.conformance.row import CHAT, OPENAI, OURS, REPORTED, VLLM, Section
from tests.conformance.world import CHAT as PATH
from tests.conformance.world import CONTEXT_TOKENS, SAID, chat, user
from tests.waiting import until

SECTION = Section(PATH)
row = SECTION.row


def text_of(chunks, index=0):
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def reason_of(chunks, index=0):
    """Return why a choice ended: said once, in its last chunk."""
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.index == index]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    return reasons[-1]


@row(CHAT + "the chat completion object")
async def a_whole_answer_is_a_chat_completion(here):
    answered = chat_of(await here.chat())
    (choice,) = answered.choices
    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", SAID)
    assert (choice.finish_reason, choice.message.tool_calls, choice.logprobs) == ("stop", None, None)
    assert answered.id.startswith("chatcmpl-")
    assert answered.created > 1_700_000_000
    assert answered.model == "small"


@row(CHAT + "the chat completion chunk object")
async def a_stream_is_of_chunks_with_one_id_a_role_first_and_one_reason_last(here):
    chunks = chunks_of(await here.chat(stream=True))
    assert len({(chunk.id, chunk.created, chunk.model, chunk.system_fingerprint) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (text_of(chunks), reason_of(chunks)) == (SAID, "stop")


@row(CHAT + "usage")
async def usage_adds_up_and_has_its_details(here):
    here.worker.cached = lambda _submit: 5
    usage = chat_of(await here.chat()).usage
    assert usage.prompt_tokens == len(here.submits[0].prompt_ids)
    assert usage.completion_tokens == len(here.ids(SAID))
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == 5


@row(CHAT + "stream_options.include_usage")
async def a_streams_usage_is_its_last_chunk_without_choices_and_null_before(here):
    whole = chat_of(await here.chat())
    *chunks, last = chunks_of(await here.chat(stream=True, stream_options={"include_usage": True}))
    assert (last.choices, last.usage) == ([], whole.usage)
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


@row(REPORTED + "stream_options {} or false ended the stream without [DONE], or with a usage")
async def a_streams_usage_comes_only_when_it_is_asked_for(here):
    for options in ({}, None, {"include_usage": False}):
        chunks = chunks_of(await here.chat(stream=True, stream_options=options))
        assert all(chunk.choices and chunk.usage is None for chunk in chunks)


@row(CHAT + "stream_options: only when stream is true")
async def stream_options_without_a_stream_are_refused(here):
    refused(await here.chat(stream_options={"include_usage": True}), 400, "stream_options")


@row(CHAT + "n")
async def several_choices_have_an_index_each_and_noise_of_their_own(here):
    here.say("a", "b", "c")
    answered = chat_of(await here.chat(n=3, seed=7))
    assert [(choice.index, choice.message.content) for choice in answered.choices] == list(enumerate("abc"))
    assert {(each.sampling.seed, each.sampling.choice) for each in here.submits} == {(7, 0), (7, 1), (7, 2)}


@row(CHAT + "n, stream")
async def several_choices_are_streamed_beside_each_other_each_under_its_index(here):
    here.say("abc", "de")
    chunks = chunks_of(await here.chat(n=2, stream=True))
    assert [(text_of(chunks, index), reason_of(chunks, index)) for index in (0, 1)] == [
        ("abc", "stop"),
        ("de", "stop"),
    ]


@row(REPORTED + "n was ignored, and rows of a client that left ran on")
async def all_choices_are_cancelled_when_the_client_leaves(here):
    here.worker.pause_at = 1
    asked = here.asking(PATH, chat(n=2, stream=True))
    await until(lambda: len(here.worker.rows) == 2 and here.worker.paused_at(1))
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await until(lambda: len(here.worker.cancelled) == 2)


@row(CHAT + "stop: up to 4 sequences")
async def up_to_four_stops_end_the_text_before_the_first_match(here):
    here.say("one two three")
    for stop in ("two", ["zz", "three", "two", "o t"]):
        whole = chat_of(await here.chat(stop=stop)).choices[0]
        chunks = chunks_of(await here.chat(stop=stop, stream=True))
        assert (whole.message.content, whole.finish_reason) == ("one ", "stop")
        assert (text_of(chunks), reason_of(chunks)) == ("one ", "stop")


@row(CHAT + "stop: up to 4 sequences")
async def five_stops_are_refused(here):
    refused(await here.chat(stop=list("abcde")), 400, "stop")


@row(REPORTED + "a stop inside a word mangled the text, and the model went on")
async def a_stop_across_tokens_leaves_the_text_before_it_whole_and_ends_the_work(here):
    here.say("a cat cat sat and sat and sat")
    for stop, shown in (("at ", "a c"), (["cat c", "cat"], "a ")):
        assert chat_of(await here.chat(stop=stop)).choices[0].message.content == shown
        assert text_of(chunks_of(await here.chat(stop=stop, stream=True))) == shown
    here.say("a EN")
    assert chat_of(await here.chat(stop="END")).choices[0].message.content == "a EN", "it wasn't one"


@row(REPORTED + "a stop of a wrong type or of nothing killed a thread")
async def stops_that_are_no_strings_or_empty_are_refused(here):
    for stop in (5, [""], "", [5], {"a": 1}, [["a"]]):
        refused(await here.chat(stop=stop), 400, "stop")


@row(CHAT + "max_completion_tokens")
async def an_answer_that_is_cut_says_length(here):
    for field in ("max_tokens", "max_completion_tokens"):
        choice = chat_of(await here.chat(**{field: 3})).choices[0]
        assert (choice.message.content, choice.finish_reason) == ("hé", "length")
        assert reason_of(chunks_of(await here.chat(stream=True, **{field: 3}))) == "length"
    refused(await here.chat(max_tokens=3, max_completion_tokens=4), 400, "max_completion_tokens")


@row(REPORTED + "characters cut by max_tokens were invalid UTF-8")
async def half_a_character_is_never_sent(here):
    here.say("漢字é😀")
    for cap in range(1, 13):
        text = chat_of(await here.chat(max_tokens=cap)).choices[0].message.content
        assert "漢字é😀".startswith(text.rstrip("\ufffd")), cap
        assert text.count("\ufffd") <= 1, cap
        assert text_of(chunks_of(await here.chat(max_tokens=cap, stream=True))) == text


@row(REPORTED + "an empty answer was no answer")
async def an_empty_answer_is_an_empty_text(here):
    here.say("")
    choice = chat_of(await here.chat()).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("", "stop")
    assert reason_of(chunks_of(await here.chat(stream=True))) == "stop"


@row(CHAT + "temperature, top_p, presence_penalty, frequency_penalty, seed")
async def sampling_fields_reach_the_worker(here):
    fields = {"temperature": 0.5, "top_p": 0.9, "presence_penalty": -1, "frequency_penalty": 2, "seed": 3}
    chat_of(await here.chat(**fields))
    assert {name: getattr(here.sampling, name) for name in fields} == fields


@row(CHAT + "temperature, top_p, penalties, n, top_logprobs: their ranges")
async def numbers_out_of_range_are_refused_by_name(here):
    bad = {
        "temperature": (-0.1, 2.1, "1", True),
        "top_p": (-0.1, 1.1),
        "presence_penalty": (-2.1, 2.1),
        "frequency_penalty": (-2.1, 2.1),
        "n": (0, -1, 1.5, 10_000),
        "max_tokens": (0, -1, 1.5, 1 << 40),
        "top_logprobs": (-1, 21),
        "seed": (2**70, 1.5),
    }
    for field, values in bad.items():
        for value in values:
            refused(await here.chat(**{"logprobs": True, field: value}), 400, field)
    assert here.submits == []


@row(REPORTED + "top_k 100000 or a negative seed killed the worker")
async def odd_numbers_that_are_allowed_are_answered(here):
    for fields in ({"top_k": 100_000, "temperature": 0.7}, {"top_k": -1}, {"seed": -1}, {"temperature": 0}):
        chat_of(await here.chat(**fields))


@row(CHAT + "seed: best effort to be deterministic")
async def a_seed_makes_the_same_noise_and_none_makes_another(here):
    for fields in ({"seed": 5}, {"seed": 5}, {}, {}):
        chat_of(await here.chat(**fields))
    seeds = [each.sampling.seed for each in here.submits]
    assert seeds[:2] == [5, 5]
    assert seeds[2] != seeds[3]


@row(CHAT + "logit_bias")
async def biases_reach_the_worker_and_tokens_that_arent_there_are_refused(here):
    chat_of(await here.chat(logit_bias={"5": -100, "7": 1.5}))
    assert [(each.token, each.bias) for each in here.sampling.logit_bias] == [(5, -100), (7, 1.5)]
    refused(await here.chat(logit_bias={"999999": 5}), 400, "logit_bias")
    for bias in ({"5": 101}, {"a": 1}, {"-1": 1}, [5]):
        assert "logit_bias" in refused(await here.chat(logit_bias=bias), 400)


@row(CHAT + "logprobs, top_logprobs")
async def log_probabilities_are_there_token_by_token_with_their_alternatives(here):
    choice = chat_of(await here.chat(logprobs=True, top_logprobs=3)).choices[0]
    assert b"".join(bytes(each.bytes) for each in choice.logprobs.content) == SAID.encode()
    assert all(len(each.top_logprobs) == 3 for each in choice.logprobs.content)
    bare = chat_of(await here.chat(logprobs=True)).choices[0]
    assert all(each.top_logprobs == [] for each in bare.logprobs.content)


@row(CHAT + "logprobs, stream")
async def log_probabilities_are_streamed_as_they_are_whole(here):
    whole = chat_of(await here.chat(logprobs=True, top_logprobs=2)).choices[0].logprobs.content
    chunks = chunks_of(await here.chat(logprobs=True, top_logprobs=2, stream=True))
    entries = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs]
    assert [each for entry in entries for each in entry.content] == whole


@row(CHAT + "top_logprobs: logprobs must be true")
async def alternatives_without_log_probabilities_are_refused(here):
    refused(await here.chat(top_logprobs=2), 400, "top_logprobs")


@row(OPENAI + "errors, context_length_exceeded")
async def too_long_a_prompt_is_refused_with_both_numbers(here):
    said = refused(
        await here.chat(messages=[user("x" * CONTEXT_TOKENS)]), 400, code="context_length_exceeded"
    )
    assert str(CONTEXT_TOKENS) in said
    assert len([word for word in said.replace(",", "").split() if word.strip(".").isdigit()]) >= 2


@row(REPORTED + "too long a prompt waited in the queue before it was refused")
async def too_long_a_prompt_is_refused_at_once_while_the_server_is_busy(here):
    here.worker.pause_at = 1
    busy = [here.asking(PATH, chat()) for _ in range(20)]
    await until(lambda: here.live == 20)
    long = chat(messages=[user("x" * CONTEXT_TOKENS)])
    refused(await here.post(PATH, long), 400, code="context_length_exceeded")
    assert not any(task.done() for task in busy)
    here.worker.pause_at = None
    assert {(await task).status for task in busy} == {200}


@row(REPORTED + "an answer at the very limit crashed")
async def a_prompt_and_answer_that_just_fit_are_answered_and_one_token_more_is_refused(here):
    chat_of(await here.chat())
    room = CONTEXT_TOKENS - len(here.submits[0].prompt_ids)
    assert chat_of(await here.chat(max_tokens=room)).choices[0].finish_reason == "stop"
    said = refused(await here.chat(max_tokens=room + 1), 400, code="context_length_exceeded")
    assert str(CONTEXT_TOKENS) in said


@row(CHAT + "messages: roles")
async def developer_messages_are_system_messages(here):
    developer = {"role": "developer", "content": "Be brief."}
    chat_of(await here.chat(messages=[developer, user("Hi")]))
    assert "<|im_start|>system\nBe brief." in here.prompt


@row(CHAT + "messages: content parts")
async def text_parts_are_put_together(here):
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assistant = {"role": "assistant", "content": [{"type": "text", "text": "three"}]}
    chat_of(await here.chat(messages=[user(parts), assistant, user("x")]))
    assert "one two" in here.prompt
    assert "three" in here.prompt


@row(CHAT + "messages: image, audio and file parts")
async def images_audio_and_files_are_refused_by_a_text_model(here):
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f"}},
    ]
    for part in parts:
        said = refused(await here.chat(messages=[user([part])]), 400, "messages.0.content.0.type")
        assert "text" in said


@row(REPORTED + "messages [] was a 404")
async def messages_that_are_none_are_refused_by_name(here):
    for messages in ([], ..., None, "Hi", [{}], [{"role": "user"}], [{"role": "king", "content": "x"}]):
        answered = await here.chat(messages=messages)
        refused(answered, 400)
        assert answered.error["param"].startswith("messages")


@row(CHAT + "user, metadata, store, safety_identifier, prompt_cache_key")
async def fields_that_change_no_token_are_accepted(here):
    chat_of(
        await here.chat(
            user="u",
            metadata={"a": "b"},
            store=False,
            safety_identifier="s",
            prompt_cache_key="k",
            parallel_tool_calls=True,
        )
    )


@row(OURS + "an unknown field is refused, with the nearest name")
async def an_unknown_field_is_refused_by_name(here):
    assert "temperature" in refused(await here.chat(temprature=1), 400, "temprature")


@row(OURS + "what would change the answer and isn't honoured is refused")
async def fields_that_cant_be_honoured_are_refused_unless_they_ask_for_nothing(here):
    asked = {
        "audio": {"voice": "a", "format": "wav"},
        "modalities": ["audio"],
        "web_search_options": {},
    }
    for field, value in asked.items():
        assert field in refused(await here.chat(**{field: value}), 400)
    chat_of(await here.chat(audio=None, modalities=["text"], prediction=None, logit_bias=None))


@row(CHAT + "service_tier")
async def the_tier_that_served_is_told_and_an_unknown_one_refused(here):
    assert chat_of(await here.chat(service_tier="auto")).service_tier == "default"
    assert chat_of(await here.chat(service_tier="flex")).service_tier == "flex"
    assert {chunk.service_tier for chunk in chunks_of(await here.chat(stream=True))} == {"default"}
    refused(await here.chat(service_tier="banana"), 400, "service_tier")


@row(CHAT + "system_fingerprint: the backend's configuration")
async def the_fingerprint_stays_while_nothing_changes_and_is_anothers_for_another_worker(here):
    first, second = [chat_of(await here.chat()).system_fingerprint for _ in range(2)]
    assert first == second
    assert first
    await here.replace_worker()
    assert chat_of(await here.chat()).system_fingerprint != first


@row(CHAT + "model: errors")
async def an_unknown_model_is_a_404(here):
    refused(await here.chat(model="gpt-4"), 404, "model", "model_not_found")
    for model in (..., "", 5, None):
        refused(await here.chat(model=model), 400, "model")


@row(REPORTED + "a refused stream was a 200 with an error inside")
async def a_refused_stream_has_the_status_of_its_error(here):
    refused(await here.chat(stream=True, temperature=9), 400, "temperature")
    refused(await here.chat(stream=True, model="x"), 404, "model")


@row(OPENAI + "debugging requests: x-request-id")
async def every_answer_has_a_request_id(here):
    for fields in ({}, {"stream": True}, {"n": 0}):
        answered = await here.chat(**fields)
        assert answered.headers["x-request-id"]


@row(OURS + "the sampling that local models' clients send")
async def top_k_min_p_and_repetition_penalty_are_taken(here):
    fields = {"top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1}
    chat_of(await here.chat(**fields))
    assert {name: getattr(here.sampling, name) for name in fields} == fields


@row(VLLM + "continue_final_message")
async def an_assistants_last_message_can_be_gone_on_with(here):
    messages = [user("x"), {"role": "assistant", "content": "The answer is"}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    assert chat_of(await here.chat(messages=messages, **fields)).choices[0].message.content == SAID
    assert here.prompt.endswith("The answer is")


@row(CHAT + "messages: name")
async def names_in_messages_are_accepted(here):
    chat_of(await here.chat(messages=[{**user("Hi"), "name": "Ann"}]))


@row(REPORTED + "a template sent by a client hung the server")
async def a_client_cant_send_a_template_or_make_one_run_for_ever(here):
    refused(await here.chat(chat_template="{% for a in range(10**9) %}x{% endfor %}"), 400, "chat_template")
    for options in ({"messages": []}, {"a": {"b": 1}}, {str(n): 1 for n in range(100)}, 5):
        answered = await here.chat(chat_template_kwargs=options)
        refused(answered, 400)
        assert answered.error["param"].startswith("chat_template_kwargs")
