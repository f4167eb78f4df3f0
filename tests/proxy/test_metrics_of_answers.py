"""What becomes of answers and of workers, as metrics tell it by lane and key class; the clock is a test's."""

import pytest

from proxy.authenticate import Caller
from shared.errors import Unavailable
from tests.proxy.dispatch_world import TWO_LANES, World, name_of, ready_world

TEAM = Caller("k", "someone", key_class="team")
PLACE = {"lane": "plain", "key_class": "team"}


@pytest.fixture
def world():
    return ready_world()


def told(world, name, **labels):
    return world.metrics.registry.get_sample_value(f"forebay_{name}", {**PLACE, **labels})


def begun(world, **request):
    """Return an admitted request of the team's with one token, which came two seconds after it did."""
    admitted = world.admit(caller=TEAM, **request)
    world.clock.advance(2)
    world.step((name_of(admitted), 1, 0, 7))
    return admitted


def outcomes(world):
    return {each: told(world, "answers_total", outcome=each) for each in ("completed", "failed", "left")}


def wasted(world):
    return {each: told(world, "wasted_tokens_total", cause=each) for each in ("left", "failed", "recomputed")}


def test_a_first_token_is_timed_from_the_arrival_and_the_others_from_the_one_before(world):
    admitted = begun(world)
    world.clock.advance(0.04)
    world.step((name_of(admitted), 1, 1, 7))
    world.clock.advance(0.25)
    world.step((name_of(admitted), 1, 2, 7))
    assert told(world, "ttft_seconds_count") == 1
    assert told(world, "ttft_seconds_sum") == 2
    assert told(world, "inter_token_seconds_sum") == pytest.approx(0.29)
    assert told(world, "inter_token_seconds_bucket", le="0.05") == 1
    assert told(world, "inter_token_seconds_count") == 2
    assert told(world, "tokens_total") == 3


def test_a_pause_for_a_death_is_a_gap_between_tokens_and_no_second_first_token(world):
    admitted = begun(world)
    world.die("killed")
    world.clock.advance(9)
    world.come(2)
    world.step((name_of(admitted), 2, 1, 7))
    assert told(world, "ttft_seconds_count") == 1
    assert told(world, "inter_token_seconds_sum") == 9
    assert told(world, "resumes_total") == 1


def test_keys_of_other_classes_and_other_lanes_are_counted_apart():
    world = ready_world(lanes=TWO_LANES)
    for lane, caller in (("upper", TEAM), ("lower", TEAM), ("lower", Caller("o", "other"))):
        world.admit(lane, lane=lane, caller=caller)
    count = world.metrics.registry.get_sample_value
    assert count("forebay_admitted_total", {"lane": "upper", "key_class": "team"}) == 1
    assert count("forebay_admitted_total", {"lane": "lower", "key_class": "team"}) == 1
    assert count("forebay_admitted_total", {"lane": "lower", "key_class": ""}) == 1
    assert count("forebay_queue_wait_seconds_count", {"lane": "lower", "key_class": ""}) == 1


def test_a_complete_answers_tokens_are_goodput_and_its_whole_time_is_measured(world):
    admitted = begun(world)
    world.step((name_of(admitted), 1, 1, 7))
    world.clock.advance(3)
    world.finish(name_of(admitted), 1, 2)
    assert outcomes(world) == {"completed": 1, "failed": 0, "left": 0}
    assert told(world, "goodput_tokens_total") == 2
    assert told(world, "answer_seconds_sum") == 5
    assert set(wasted(world).values()) == {0}


def test_an_answer_that_a_stop_string_ends_is_complete(world):
    begun(world).stop(0)
    assert outcomes(world) == {"completed": 1, "failed": 0, "left": 0}
    assert told(world, "goodput_tokens_total") == 1


def test_a_client_that_leaves_wastes_what_its_answer_had(world):
    with begun(world):
        pass
    assert outcomes(world) == {"completed": 0, "failed": 0, "left": 1}
    assert wasted(world) == {"left": 1, "failed": 0, "recomputed": 0}
    assert told(world, "goodput_tokens_total") == told(world, "answer_seconds_count") == 0


def test_a_request_that_fails_wastes_the_tokens_of_all_its_answers(world):
    with world.admit(caller=TEAM, choices=2) as admitted:
        names = [name_of(admitted, each) for each in (0, 1)]
        world.step((names[0], 1, 0, 7), (names[1], 1, 0, 7))
        world.dispatcher.fail_all(Unavailable("it goes down", retry_after_s=1.0))
    assert outcomes(world) == {"completed": 0, "failed": 2, "left": 0}
    assert wasted(world) == {"left": 0, "failed": 2, "recomputed": 0}
    assert told(world, "refused_total", code=Unavailable.code) == 1


def test_what_is_computed_again_is_wasted_and_what_was_still_there_is_not(world):
    admitted = world.admit(caller=TEAM)
    name = name_of(admitted)
    world.step((name, 1, 0, 7), prefills=[(name, 1, 3, 5.0)])
    assert (told(world, "prefill_tokens_total"), wasted(world)["recomputed"]) == (3, 0)
    world.die("killed")
    world.come(2)
    world.step((name, 2, 1, 7), prefills=[(name, 2, 1, 5.0, 3)])
    assert (told(world, "prefill_tokens_total"), wasted(world)["recomputed"]) == (4, 1)


def test_a_requests_prompts_are_counted_once_when_the_last_of_its_answers_is_over(world):
    admitted = world.admit(caller=TEAM, choices=2)
    names = [name_of(admitted, each) for each in (0, 1)]
    world.step(prefills=[(names[0], 1, 1, 5.0, 2), (names[1], 1, 2, 5.0, 1)])
    admitted.stop(0)
    assert told(world, "prompt_tokens_total") == 0
    admitted.stop(1)
    assert told(world, "prompt_tokens_total") == 3
    assert told(world, "prompt_tokens_cached_total") == 1


def test_nothing_is_kept_of_answers_that_are_over(world):
    with begun(world):
        assert world.dispatcher._observer._place_of
    assert not world.dispatcher._observer._place_of


def test_a_steps_time_counts_if_it_made_tokens(world):
    admitted = begun(world)
    world.step(prefills=[(name_of(admitted), 1, 1, 5.0)])
    count = world.metrics.registry.get_sample_value
    assert count("forebay_step_seconds_count") == 1
    assert count("forebay_step_seconds_sum") == pytest.approx(0.02)


def test_workers_that_come_are_counted_and_the_time_without_one_is_measured():
    world = World()
    count = world.metrics.registry.get_sample_value
    world.come()
    assert (count("forebay_worker_starts_total"), count("forebay_restart_seconds_count")) == (1, 0)
    world.die("hang")
    world.clock.advance(12)
    world.come(2)
    assert (count("forebay_worker_starts_total"), count("forebay_restart_seconds_count")) == (2, 1)
    assert count("forebay_restart_seconds_sum") == 12
    assert count("forebay_worker_deaths_total", {"cause": "hang"}) == 1
