"""Which lane a request gets, and within which bounds: what it asks for, never above its key's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from proxy.authenticate import ANONYMOUS, Caller
from proxy.lane_choice import LANE_HEADER, LaneChoice
from proxy.request import Cap, IdsPrompt, Parsed
from shared.errors import InvalidRequest
from shared.lane_settings import BATCH, INTERACTIVE, LaneSettings
from shared.sampling import Sampling

TOP = LaneSettings(name="top", tiers=("priority",), deadline_s=5)
MIDDLE = LaneSettings(name="middle", tiers=("default", "auto"), deadline_s=50)
LOW = LaneSettings(name="low", tiers=("flex",), deadline_s=500)
SILENT = LaneSettings(name="silent", deadline_s=5000)
LANES = (TOP, MIDDLE, LOW, SILENT)
RANKS = {lane.name: rank for rank, lane in enumerate(LANES)}
TIERS = {"priority": 0, "default": 1, "auto": 1, "flex": 2}


def parsed(tier=None):
    return Parsed(
        endpoint="chat",
        model="m",
        prompts=(IdsPrompt((1,)),),
        choices=1,
        max_tokens=None,
        sampling=Sampling(seed=0),
        stops=(),
        stream=False,
        include_usage=False,
        service_tier=tier,
    )


def key(**bounds):
    return Caller("abcd1234", "ci", **bounds)


def ticket(lanes=LANES, caller=ANONYMOUS, tier=None, context_tokens=1000, **headers):
    named = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    return LaneChoice(lanes, context_tokens).ticket(caller, parsed(tier), named)


def refused(**asked):
    with pytest.raises(InvalidRequest) as problem:
        ticket(**asked)
    return problem.value


@pytest.mark.parametrize("tier", [None, "auto", "default"])
def test_where_no_lane_takes_the_tiers_that_clients_send_by_default_the_first_serves_them(tier):
    assert ticket(lanes=(SILENT, LOW), tier=tier).lane is SILENT


# --- the lane -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("private", "salt"), [(True, "abcd1234"), (False, "")])
def test_a_ticket_has_its_callers_salt(private, salt):
    assert ticket(caller=key(private_prefixes=private)).salt == salt


@given(
    ceiling=st.sampled_from([None, *RANKS]),
    header=st.sampled_from([None, *RANKS]),
    tier=st.sampled_from([None, *TIERS]),
)
def test_no_header_and_no_tier_raises_a_key_above_its_lane(ceiling, header, tier):
    headers = {} if header is None else {"x_forebay_lane": header}
    served = RANKS[ticket(caller=key(lane=ceiling), tier=tier, **headers).lane.name]
    highest = 0 if ceiling is None else RANKS[ceiling]
    assert served >= highest
    asked = RANKS[header] if header is not None else TIERS[tier] if tier is not None else 0
    assert served == max(asked, highest)


@pytest.mark.parametrize(
    ("tier", "lane"), [(None, 0), ("default", 0), ("auto", 0), ("priority", 0), ("flex", 1)]
)
def test_the_built_in_lanes_take_the_vendors_tiers(tier, lane):
    built_in = (INTERACTIVE, BATCH)
    assert ticket(built_in, tier=tier).lane is built_in[lane]


def test_the_header_counts_before_the_tier_and_in_any_case():
    assert ticket(tier="priority", x_forebay_lane="low").lane is LOW
    assert ticket(tier="flex", X_Forebay_Lane="top").lane is TOP


def test_a_lane_without_tiers_is_had_by_its_name_alone():
    assert ticket(x_forebay_lane="silent").lane is SILENT
    assert SILENT.answer_tier == "silent"


@pytest.mark.parametrize("name", ["", "Top", "top ", "nosuch", "top,low", "x" * 5000])
def test_an_unknown_lane_is_refused_and_the_known_are_named(name):
    problem = refused(x_forebay_lane=name, tier="flex")
    assert problem.param == LANE_HEADER
    assert "top, middle, low, silent" in problem.message
    assert len(problem.message) < 200


@pytest.mark.parametrize("tier", ["", "FLEX", "scale", "silent", "x" * 5000])
def test_an_unknown_tier_is_refused_and_the_known_are_named(tier):
    problem = refused(tier=tier)
    assert problem.param == "service_tier"
    assert "auto, default, priority, flex" in problem.message
    assert len(problem.message) < 200


def test_an_unknown_lane_is_refused_also_where_the_key_is_for_the_lowest_one():
    assert refused(caller=key(lane="silent"), x_forebay_lane="nosuch").param == LANE_HEADER


def test_a_key_whose_lane_is_gone_gets_the_lowest_and_not_the_highest():
    assert ticket(caller=key(lane="gone"), x_forebay_lane="top").lane is SILENT


# --- bounds -------------------------------------------------------------------------------------------------

CAPS = st.one_of(st.none(), st.integers(16, 2000))


@given(model=st.integers(16, 2000), lane=CAPS, own=CAPS)
def test_the_least_of_the_contexts_counts_and_says_whose_it_is(model, lane, own):
    lanes = (TOP.model_copy(update={"context_tokens": lane}),)
    cap = ticket(lanes, key(context_tokens=own), context_tokens=model).context
    given_caps = {"This model": model, "The lane 'top'": lane, "This API key": own}
    assert cap.tokens == min(tokens for tokens in given_caps.values() if tokens is not None)
    assert given_caps[cap.owner] == cap.tokens


@given(lane=CAPS, own=CAPS)
def test_the_least_of_the_answers_bounds_counts_and_the_default_keeps_within_it(lane, own):
    lanes = (TOP.model_copy(update={"max_tokens": lane, "max_tokens_default": 500}),)
    found = ticket(lanes, key(max_tokens=own))
    given_caps = {"The lane 'top'": lane, "This API key": own}
    said = [tokens for tokens in given_caps.values() if tokens is not None]
    if not said:
        assert found.max_tokens is None
        assert found.max_tokens_default == 500
    else:
        assert found.max_tokens.tokens == min(said)
        assert given_caps[found.max_tokens.owner] == min(said)
        assert found.max_tokens_default == min(500, *said)


def test_the_bounds_are_those_of_the_lane_that_serves_not_of_the_one_asked_for():
    lanes = (
        TOP.model_copy(update={"max_tokens": 9, "context_tokens": 99}),
        LOW.model_copy(update={"max_tokens": 7, "context_tokens": 77}),
    )
    found = ticket(lanes, key(lane="low"), x_forebay_lane="top")
    assert (found.context, found.max_tokens) == (Cap(77, "The lane 'low'"), Cap(7, "The lane 'low'"))
    assert found.deadline_s == LOW.deadline_s


# --- deadlines ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wished", "deadline_s"), [("1", 0.001), ("4999", 4.999), ("2500.5", 2.5005), ("5000", 5), ("1e9", 5)]
)
def test_a_client_may_shorten_its_lanes_deadline_and_not_lengthen_it(wished, deadline_s):
    assert ticket(x_slo_ttft_ms=wished).deadline_s == pytest.approx(deadline_s)


@pytest.mark.parametrize("wished", ["", "0", "-1", "nan", "inf", "1e400", "soon", "1,000", "5s", "0x10"])
def test_a_deadline_that_is_no_number_over_zero_is_refused(wished):
    assert refused(x_slo_ttft_ms=wished).param == "x-slo-ttft-ms"
