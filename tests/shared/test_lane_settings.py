"""Lanes: what those of built-in names have, and which can stand side by side."""

import pytest
from pydantic import ValidationError

from shared.lane_settings import BATCH, INTERACTIVE, AdmissionSettings, LaneProblem, LaneSettings, check_lanes
from shared.limits import LANES_MAX


def test_the_built_in_lanes_are_what_is_documented():
    assert INTERACTIVE.tiers == ("default", "auto", "priority")
    assert (INTERACTIVE.reserved_slots, INTERACTIVE.reserved_mb) == (1, None)
    assert (INTERACTIVE.deadline_s, INTERACTIVE.target_wait_s, INTERACTIVE.ages_after_s) == (30.0, 2.0, 10.0)
    assert (INTERACTIVE.prefill_quantum_ms, INTERACTIVE.parkable) == (250.0, False)
    assert BATCH.tiers == ("flex",)
    assert (BATCH.reserved_slots, BATCH.deadline_s, BATCH.target_wait_s) == (0, 300.0, None)
    assert (BATCH.prefill_quantum_ms, BATCH.parkable) == (150.0, True)
    check_lanes((INTERACTIVE, BATCH))


def test_a_built_in_lanes_own_settings_win_one_by_one():
    lane = LaneSettings(name="batch", tiers=("slow",))
    assert (lane.tiers, lane.prefill_quantum_ms) == (("slow",), 150.0)
    assert LaneSettings(name="interactive", parkable=True).parkable


def test_a_lane_of_another_name_has_the_plain_defaults():
    lane = LaneSettings(name="night")
    assert (lane.tiers, lane.reserved_slots, lane.parkable, lane.max_tokens) == ((), 0, True, None)


@pytest.mark.parametrize(
    ("lane", "tier"),
    [(INTERACTIVE, "default"), (BATCH, "flex"), (LaneSettings(name="night"), "night")],
)
def test_answers_say_the_lanes_first_tier_or_its_name(lane, tier):
    assert lane.answer_tier == tier


@pytest.mark.parametrize("name", ["", "A", "1a", "a b", "ä", "a" * 33, 5, None])
def test_a_name_that_would_not_do_in_a_header_is_refused(name):
    with pytest.raises(ValueError, match="name"):
        LaneSettings(name=name)


def test_a_lane_is_what_it_was_made_as():
    with pytest.raises(ValueError, match="frozen"):
        BATCH.parkable = False
    with pytest.raises(ValueError, match="key_queue_share"):
        AdmissionSettings(key_queue_share=1.5)


def lanes(count, **settings):
    return [LaneSettings(name=f"lane-{number}", **settings) for number in range(count)]


def test_as_many_lanes_as_the_wire_has_ranks_for_can_stand_side_by_side():
    check_lanes(lanes(1))
    check_lanes(lanes(LANES_MAX))
    for count in (0, LANES_MAX + 1):
        with pytest.raises(LaneProblem, match=f"not {count}"):
            check_lanes(lanes(count))


def test_a_name_or_a_tier_belongs_to_one_lane():
    with pytest.raises(LaneProblem, match="name 'lane-0'"):
        check_lanes([*lanes(2), *lanes(1)])
    with pytest.raises(LaneProblem, match="service tier 'x'"):
        check_lanes(lanes(2, tiers=("x",)))
    with pytest.raises(LaneProblem, match="service tier 'x'"):
        check_lanes(lanes(1, tiers=("x", "x")))


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e9])
def test_a_target_is_a_number_that_json_can_tell(seconds):
    with pytest.raises(ValidationError):
        LaneSettings(name="odd", target_wait_s=seconds)
