"""/v1/completions."""

from tests.conformance.reading import completion_chunks_of, completion_of, refused
from tests.conformance.row import COMPLETIONS, OURS, REPORTED, Section
from tests.conformance.world import COMPLETIONS as PATH
from tests.conformance.world import SAID

SECTION = Section(PATH)
row = SECTION.row


def text_of(chunks, index=0):
    return "".join(choice.text for chunk in chunks for choice in chunk.choices if choice.index == index)


@row(COMPLETIONS + "the completion object")
async def a_whole_answer_is_a_completion(here):
    answered = completion_of(await here.complete())
    (choice,) = answered.choices
    assert (choice.index, choice.text, choice.finish_reason, choice.logprobs) == (0, SAID, "stop", None)
    assert answered.id.startswith("cmpl-")
    usage = answered.usage
    assert usage.prompt_tokens == len("Hi")
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


@row(COMPLETIONS + "stream")
async def a_stream_is_of_completions_and_says_the_same(here):
    options = {"include_usage": True}
    *chunks, last = completion_chunks_of(await here.complete(stream=True, stream_options=options))
    assert text_of(chunks) == SAID
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert (last.choices, last.usage.completion_tokens) == ([], len(here.ids(SAID)))


@row(REPORTED + "a list of prompts killed a thread")
async def a_list_of_prompts_is_answered_each_by_its_choice(here):
    here.answer = lambda submit: here.ids(f"{len(submit.prompt_ids)}")
    answered = completion_of(await here.complete(prompt=["a", "bb"]))
    assert [(choice.index, choice.text) for choice in answered.choices] == [(0, "1"), (1, "2")]


@row(COMPLETIONS + "n")
async def n_choices_are_made_of_each_prompt_in_order(here):
    here.answer = lambda submit: here.ids(f"{len(submit.prompt_ids)}/{submit.sampling.choice}")
    answered = completion_of(await here.complete(prompt=["a", "bb"], n=2))
    assert [choice.text for choice in answered.choices] == ["1/0", "1/1", "2/0", "2/1"]


@row(COMPLETIONS + "prompt: tokens, or lists of tokens")
async def prompts_may_be_token_ids(here):
    ids = here.ids("abc")
    completion_of(await here.complete(prompt=ids))
    assert list(here.submits[-1].prompt_ids) == ids
    assert len(completion_of(await here.complete(prompt=[ids, ids[:1]])).choices) == 2


@row(REPORTED + "an empty prompt killed a thread, and the server was gone")
async def prompts_that_are_none_are_refused_by_name(here):
    for prompt in ("", [], [""], [[]], ..., None, 5, [1, "a"], {"a": 1}, [-1], [1 << 40], [1 << 19]):
        answered = await here.complete(prompt=prompt)
        refused(answered, 400)
        assert answered.error["param"].split(".")[0] == "prompt"
    completion_of(await here.complete())


@row(COMPLETIONS + "logprobs: the object of four lists")
async def log_probabilities_are_four_lists_of_one_length(here):
    logprobs = completion_of(await here.complete(logprobs=2)).choices[0].logprobs
    lists = (logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, logprobs.text_offset)
    assert {len(each) for each in lists} == {len(here.ids(SAID))}
    chunks = completion_chunks_of(await here.complete(logprobs=2, stream=True))
    entries = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert [token for entry in entries for token in entry.tokens] == logprobs.tokens
    refused(await here.complete(logprobs=21), 400, "logprobs")


@row(COMPLETIONS + "stop")
async def a_stop_ends_the_text(here):
    here.say("one two")
    choice = completion_of(await here.complete(stop=" t")).choices[0]
    assert (choice.text, choice.finish_reason) == ("one", "stop")
    assert text_of(completion_chunks_of(await here.complete(stop=" t", stream=True))) == "one"


@row(COMPLETIONS + "max_tokens")
async def an_answer_that_is_cut_says_length(here):
    choice = completion_of(await here.complete(max_tokens=3)).choices[0]
    assert (choice.text, choice.finish_reason) == ("hé", "length")


@row(COMPLETIONS + "echo")
async def with_echo_the_prompt_comes_before_the_text(here):
    assert completion_of(await here.complete(echo=True)).choices[0].text == "Hi" + SAID
    assert text_of(completion_chunks_of(await here.complete(echo=True, stream=True))) == "Hi" + SAID


@row(COMPLETIONS + "suffix: only of models that insert")
async def a_suffix_is_refused_by_a_model_that_cant_insert(here):
    refused(await here.complete(suffix="end"), 400, "suffix")
    completion_of(await here.complete(suffix=None))


@row(COMPLETIONS + "best_of")
async def the_best_of_more_than_are_given_is_refused(here):
    refused(await here.complete(best_of=3), 400, "best_of")
    completion_of(await here.complete(best_of=1))


@row(OURS + "what a model writes in a completion is its text")
async def markup_is_text_here(here):
    text = '<think>x</think><tool_call>{"name": "a", "arguments": {}}</tool_call>'
    here.say(text)
    assert completion_of(await here.complete()).choices[0].text == text
    assert text_of(completion_chunks_of(await here.complete(stream=True))) == text


@row(REPORTED + "the same prompt again, and then without its last token, killed a thread")
async def the_same_prompt_again_and_a_shorter_one_are_answered(here):
    ids = here.ids("abcd")
    for prompt in (ids, ids, ids[:-1]):
        completion_of(await here.complete(prompt=prompt))


@row(COMPLETIONS + "seed, temperature, penalties: their ranges")
async def numbers_out_of_range_are_refused_by_name(here):
    for field, value in (("seed", 2**70), ("temperature", 3), ("top_p", 0), ("n", 0), ("max_tokens", 0)):
        refused(await here.complete(**{field: value}), 400, field)
