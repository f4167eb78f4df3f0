"""vLLM's extensions that benchmarks send to both of OpenAI's older endpoints."""

from tests.conformance.reading import chat_of, chunks_of, completion_chunks_of, completion_of, refused
from tests.conformance.row import OURS, REPORTED, VLLM, Section
from tests.conformance.samples import CALL, SCHEMA, THOUGHTFUL, WEATHER, chat_tools
from tests.conformance.world import CHAT, COMPLETIONS

CHATS, TEXTS = Section(CHAT), Section(COMPLETIONS)
CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}


def goes_on(here, tokens):
    """Have the model say its end first, and more behind it, which comes if nothing ends there."""
    end, more = here.text_model.stop_ids[0], here.ids("x" * tokens)
    here.answer = lambda submit: [] if end in submit.stop_ids else [end, *more][:tokens]


def rises_to(chunks, tokens):
    """Check that each chunk has a usage, none less than the one before, and the last ones all of it."""
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-2:] == [tokens, tokens]


@CHATS.row(VLLM + "ignore_eos")
async def an_answer_goes_on_to_max_tokens_whatever_the_model_says(here):
    goes_on(here, 20)
    answered = chat_of(await here.chat(max_tokens=20, ignore_eos=True))
    assert (answered.choices[0].message.content, answered.choices[0].finish_reason) == ("x" * 19, "length")
    assert answered.usage.completion_tokens == 20


@CHATS.row(VLLM + "ignore_eos: false by default")
async def it_ends_where_the_model_says_unless_that_is_to_be_ignored(here):
    goes_on(here, 20)
    for fields in ({}, {"ignore_eos": False}, {"ignore_eos": None}):
        answered = chat_of(await here.chat(max_tokens=20, **fields))
        assert (answered.choices[0].message.content, answered.choices[0].finish_reason) == ("", "stop")


@CHATS.row(OURS + "an answer held to a grammar ends where the grammar ends")
async def ignore_eos_is_refused_by_name_where_an_answer_is_held_to_a_grammar(here):
    here.say(CALL)
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    for fields in (
        {"response_format": form},
        {"response_format": {"type": "json_object"}},
        {"guided_choice": ["a", "b"]},
        {"tools": chat_tools(WEATHER, strict=True)},
        {"tools": chat_tools(), "tool_choice": "required"},
        {"tools": chat_tools(), "tool_choice": {"type": "function", "function": {"name": WEATHER["name"]}}},
    ):
        refused(await here.chat(ignore_eos=True, **fields), 400, "ignore_eos")
        chat_of(await here.chat(ignore_eos=False, **fields))
    chat_of(await here.chat(ignore_eos=True, tools=chat_tools(), response_format={"type": "text"}))


@CHATS.row(VLLM + "min_tokens")
async def a_least_number_of_tokens_is_taken_where_it_is_met_and_refused_elsewhere(here):
    goes_on(here, 20)
    for cap in ("max_tokens", "max_completion_tokens"):
        answered = chat_of(await here.chat(**{cap: 20}, min_tokens=20, ignore_eos=True))
        assert answered.usage.completion_tokens == 20
    refused(await here.chat(max_tokens=20, min_tokens=5), 400, "min_tokens")
    chat_of(await here.chat(max_tokens=20, min_tokens=0))


@CHATS.row(VLLM + "stream_options.continuous_usage_stats")
async def each_chunk_says_what_was_used_so_far(here):
    here.say(f"{THOUGHTFUL}Look:\n{CALL}")
    asked = {"tools": chat_tools(), "logprobs": True, "stream": True, "stream_options": CONTINUOUS}
    *chunks, last = chunks_of(await here.chat(**asked))
    whole = chat_of(await here.chat(tools=chat_tools()))
    assert (last.choices, last.usage) == ([], whole.usage)
    rises_to([*chunks, last], whole.usage.completion_tokens)
    first, second = chunks[0].usage, chunks[1].usage
    assert (first.completion_tokens, first.prompt_tokens) == (0, whole.usage.prompt_tokens)
    assert 0 < second.completion_tokens < whole.usage.completion_tokens
    assert any(chunk.choices[0].delta.tool_calls for chunk in chunks)


@CHATS.row(VLLM + "stream_options.continuous_usage_stats: only with include_usage")
async def without_include_usage_no_chunk_has_a_usage(here):
    for options in ({"continuous_usage_stats": True}, {**CONTINUOUS, "include_usage": False}):
        chunks = chunks_of(await here.chat(stream=True, stream_options=options))
        assert all(chunk.choices and chunk.usage is None for chunk in chunks)


@TEXTS.row(VLLM + "ignore_eos")
async def each_of_several_completions_goes_on_to_max_tokens(here):
    goes_on(here, 20)
    answered = completion_of(await here.complete(prompt=["a", "bb"], max_tokens=20, ignore_eos=True))
    assert [(choice.text, choice.finish_reason) for choice in answered.choices] == [("x" * 19, "length")] * 2
    assert answered.usage.completion_tokens == 40


@TEXTS.row(VLLM + "stream_options.continuous_usage_stats")
async def each_chunk_of_a_completion_says_what_was_used_so_far(here):
    here.say("abc")
    asked = {"prompt": ["a", "bb"], "stream": True, "stream_options": CONTINUOUS}
    *chunks, last = completion_chunks_of(await here.complete(**asked))
    rises_to([*chunks, last], 6)
    assert (last.choices, last.usage.prompt_tokens) == ([], 3)


@TEXTS.row(REPORTED + "a benchmark's first request was a 400")
async def what_a_benchmark_sends_is_taken_as_it_is(here):
    goes_on(here, 20)
    sent = {"temperature": 0.0, "repetition_penalty": 1.0, "best_of": 1, "stop": None, "logprobs": None}
    options = {"stream": True, "stream_options": CONTINUOUS, "ignore_eos": True}
    *_, last = completion_chunks_of(await here.complete(max_tokens=20, **sent, **options))
    assert last.usage.completion_tokens == 20
