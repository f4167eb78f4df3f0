"""What makes two requests the same: the prompt, the cap and how it is drawn, but neither seed nor choice."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.fingerprint import fingerprint, fingerprints
from shared.sampling import LogitBias, Sampling

PLAIN = Sampling(temperature=0.7, top_p=0.9, top_k=20, min_p=0.1, seed=3)
IDS = st.lists(st.integers(0, (1 << 20) - 1), min_size=1, max_size=6).map(tuple)


def test_it_is_the_same_in_every_version_for_it_is_kept_in_a_file():
    assert fingerprint((1, 2), 4, Sampling()) == fingerprint((1, 2), 4, Sampling()) == "02b9d8dd201e77e5"


@pytest.mark.parametrize("changes", [{"seed": 4}, {"choice": 1}])
def test_a_client_that_tries_again_asks_the_same_whatever_seed_is_drawn_for_it(changes):
    assert fingerprint((1, 2), 4, replace(PLAIN, **changes)) == fingerprint((1, 2), 4, PLAIN)


@pytest.mark.parametrize(
    "changes",
    [
        *({"temperature": 0.8}, {"top_p": 0.8}, {"top_k": 21}, {"min_p": 0.2}, {"temperature": 0.0}),
        *({"repetition_penalty": 1.1}, {"presence_penalty": 1.1}, {"frequency_penalty": 1.1}),
        *({"logit_bias": (LogitBias(5, 1.0),)}, {"top_logprobs": 0}, {"top_logprobs": 5}),
        {"grammar": 'start: "a"'},
    ],
)
def test_another_way_to_draw_is_another_request(changes):
    assert fingerprint((1, 2), 4, replace(PLAIN, **changes)) != fingerprint((1, 2), 4, PLAIN)


def test_the_options_tell_requests_apart_by_name_and_value():
    options = [
        {},
        *({"presence_penalty": 0.5}, {"frequency_penalty": 0.5}, {"repetition_penalty": 0.5}),
        *({"logit_bias": (LogitBias(token, bias),)} for token in (5, 6) for bias in (0.0, 1.0)),
        {"logit_bias": (LogitBias(5, 1.0), LogitBias(6, 1.0))},
        *({"top_logprobs": tops} for tops in (0, 1)),
        *({"grammar": f'start: "{word}"'} for word in ("a", "b")),
        {"grammar": 'start: "a"', "top_logprobs": 0},
    ]
    prints = {fingerprint((1, 2), 4, replace(PLAIN, **each)) for each in options}
    assert len(prints) == len(options)


def test_one_that_goes_on_behind_the_models_end_is_another_request():
    plain = fingerprint((1, 2), 4, PLAIN)
    assert fingerprint((1, 2), 4, PLAIN, ignores_eos=True) != plain
    assert fingerprint((1, 2), 4, PLAIN, ignores_eos=False) == plain
    held = replace(PLAIN, top_logprobs=1)
    assert fingerprint((1, 2), 4, held, ignores_eos=True) != fingerprint((1, 2), 4, held)


@pytest.mark.parametrize("ignores_eos", [False, True])
@pytest.mark.parametrize("changes", [{}, {"logit_bias": (LogitBias(5, 1.0),), "top_logprobs": 2}])
def test_the_prompts_of_one_request_have_each_the_one_they_would_have_alone(changes, ignores_eos):
    drawn = replace(PLAIN, **changes)
    prompts, caps = [(1, 2), (1, 2), (3,)], [4, 5, 4]
    alone = tuple(
        fingerprint(ids, cap, drawn, ignores_eos=ignores_eos) for ids, cap in zip(prompts, caps, strict=True)
    )
    assert fingerprints(prompts, caps, drawn, ignores_eos=ignores_eos) == alone
    assert len(set(alone)) == 3


@given(IDS, st.integers(1, 5000), IDS, st.integers(1, 5000))
def test_two_prompts_or_caps_are_two_requests(ids, cap, other_ids, other_cap):
    same = fingerprint(ids, cap, PLAIN) == fingerprint(other_ids, other_cap, PLAIN)
    assert same == ((ids, cap) == (other_ids, other_cap))


@pytest.mark.parametrize("others", [(2, 1), (1,), (1, 2, 0), (0, 1, 2), (1 + (2 << 16),), (1, 2, 2)])
def test_order_length_and_size_of_ids_tell_prompts_apart(others):
    assert fingerprint(others, 4, PLAIN) != fingerprint((1, 2), 4, PLAIN)
