"""What is told of answers and of the worker's ends: once each, in whatever order the words come."""

import asyncio
import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import structlog

from proxy.observer import Observer
from proxy.prompt_use import PromptUse
from proxy.quarantine import Quarantine
from proxy.status.history import History, Levels
from proxy.status.pages import StatusPages
from proxy.status.taker import SnapshotTaker
from proxy.worker_link import WorkerState
from shared import metrics_table as table
from shared.clock import FalseClock
from shared.errors import Draining
from shared.messages import Exited
from shared.metrics import Metrics
from tests.proxy.dispatch_world import TWO_LANES, World, name_of, ready_world

NOTHING = Levels(0, 0, 0)
HOUR_S = 3600.0


# --- ends of workers --------------------------------------------------------------------------------------


class Ends:
    """An observer that is told of a worker's comings and goings; each word comes a second after the last."""

    def __init__(self):
        self.clock = FalseClock(50.0)
        self.observer = Observer(Metrics(), self.clock, lambda: 1e9 + self.clock.now())

    def told(self, *words):
        for word in words:
            self.clock.advance(1.0)
            match word:
                case "came":
                    self.observer.worker_came()
                case "went":
                    self.observer.worker_went()
                case int():
                    self.observer.died(Exited(word, "crash", "", ()))
        return [(each.epoch, each.restart_s) for each in self.observer.deaths]

    @property
    def restarts(self):
        """Return how many there were, and how long all of them took."""
        restart = self.observer.metrics.histogram(table.RESTART)
        value = self.observer.metrics.registry.get_sample_value
        return value(f"{restart._name}_count"), value(f"{restart._name}_sum")


@pytest.mark.parametrize(
    ("words", "deaths", "restarts"),
    [
        (("came", "went", 1), [(1, None)], (0, 0)),
        (("came", "went", 1, "came"), [(1, 2.0)], (1, 2.0)),
        (("came", "went", "came", 1), [(1, 1.0)], (1, 1.0)),
        (("came", "went", "came", 1, "went", 2, "came"), [(1, 1.0), (2, 2.0)], (2, 3.0)),
        (("came", "went", 1, 2, 3, "came"), [(1, 4.0), (2, 2.0), (3, 1.0)], (1, 4.0)),
        (("came", "went", 1, "came", "went", "came"), [(1, 2.0)], (2, 3.0)),
        ((1, 2, "came"), [(1, 2.0), (2, 1.0)], (0, 0)),
        (("came", 1, "went", "came"), [(1, 0.0)], (1, 1.0)),
        (("came", "went", "went", 1, "came"), [(1, 3.0)], (1, 3.0)),
    ],
    ids=[
        "the next one isn't there yet",
        "its supervisor says so at once",
        "its supervisor says so when the next one is there",
        "a late word and then another death",
        "the next two die while they load",
        "it dies with its supervisor, who says nothing",
        "the first ones die before any was ready",
        "a word of one that nobody saw",
        "it went twice without a word",
    ],
)
def test_each_end_has_the_time_to_the_next_worker_in_whatever_order_it_is_told(words, deaths, restarts):
    ends = Ends()
    assert ends.told(*words) == deaths
    assert ends.restarts == restarts


def test_an_end_is_told_at_the_time_that_it_was_by_the_wall_clock_then():
    ends = Ends()
    ends.told("came", "went", 1)
    assert [each.at for each in ends.observer.deaths] == [1e9 + 53.0]


def test_an_end_on_purpose_is_told_among_the_ends_and_is_no_death_of_the_history():
    ends = Ends()
    for epoch, cause in ((1, "planned"), (2, "hang")):
        ends.observer.died(Exited(epoch, cause, "", ()))
    ends.observer.history.close(2.0, NOTHING)
    assert [each.cause for each in ends.observer.deaths] == ["planned", "hang"]
    assert ends.observer.history.intervals[0].deaths == 1


def test_the_ends_of_one_long_outage_are_no_more_than_the_last_twenty():
    ends = Ends()
    deaths = ends.told("came", "went", *range(1, 101), "came")
    assert [epoch for epoch, _ in deaths] == list(range(81, 101))
    assert {restart_s > 0 for _, restart_s in deaths} == {True}


# --- ends of answers --------------------------------------------------------------------------------------


def outcomes(world):
    """Return how many answers completed, failed and were left."""
    return tuple(
        sum(sample.value for sample in samples(world, table.ENDED) if sample.labels["outcome"] == outcome)
        for outcome in table.OUTCOMES
    )


def failures(world):
    return {sample.labels["code"]: sample.value for sample in samples(world, table.REFUSED)}


def samples(world, counter):
    families = world.metrics.registry.collect()
    return [each for one in families for each in one.samples if each.name == f"{counter.name}_total"]


def test_of_two_answers_one_that_its_reader_stopped_is_complete_and_the_one_left_is_left():
    world = ready_world()
    with world.admit(choices=2) as admitted:
        world.tokens(name_of(admitted), 1, 5)
        admitted.stop(0)
        admitted.stop(0)
    assert outcomes(world) == (1, 0, 1)


def test_answers_that_a_request_s_failure_takes_along_failed_and_it_is_told_once():
    world = ready_world()
    with world.admit(prompts=((5,), (6,)), choices=2):
        world.dispatcher.fail_all(Draining("over", retry_after_s=1.0))
    assert outcomes(world) == (0, 4, 0)
    assert failures(world) == {"draining": 1}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError, (0, 1, 0)),
        (ConnectionResetError, (0, 0, 1)),
        (asyncio.CancelledError, (0, 0, 1)),
    ],
    ids=["the gateway went wrong", "the client hung up", "the handler was cancelled"],
)
def test_whose_answer_the_gateway_itself_broke_off_hasn_t_left(error, told):
    world = ready_world()
    with pytest.raises(error), world.admit():
        raise error
    assert outcomes(world) == told


def test_a_full_answer_whose_worker_dies_before_it_says_so_is_complete_once():
    world = ready_world()
    with world.admit(max_tokens=2) as admitted:
        world.tokens(name_of(admitted), 1, 5, 6)
        world.die()
    assert outcomes(world) == (1, 0, 0)


def test_an_answer_that_was_parked_and_then_finished_is_told_once_and_so_are_its_tokens():
    world = World(lanes=TWO_LANES)
    world.come(budget_bytes=8)
    with world.admit("low", "lower", max_tokens=4) as low:
        world.tokens(name_of(low), 1, 5)
        with world.admit("up", "upper", max_tokens=4) as up:
            world.clock.advance(5)
            world.dispatcher.tick()
            assert low.sequences[0].park_pinged is not None, "else this tests nothing"
            world.parked(name_of(low), 1, 1)
            world.tokens(name_of(up), 1, 7)
            world.finish(name_of(up), 1, 1)
        world.tokens(name_of(low), 2, 6, index=1)
        world.finish(name_of(low), 2, 2)
    assert outcomes(world) == (2, 0, 0)
    value = world.metrics.registry.get_sample_value
    place = {"lane": "lower", "key_class": ""}
    assert value(f"{table.GOODPUT.name}_total", place) == 2
    assert value(f"{table.TOKENS.name}_total", place) == 2
    assert value(f"{table.TTFT.name}_count", place) == 1


def test_one_whom_a_death_takes_its_last_resume_failed_and_no_token_counts_twice():
    world = ready_world(resumes_max=1)
    with world.admit(max_tokens=9) as admitted:
        world.tokens(name_of(admitted), 1, 5)
        world.die(cause="hang")
        world.come(2)
        world.step((name_of(admitted), 1, 0, 5))
        world.tokens(name_of(admitted), 2, 6, index=1)
        world.die(cause="hang")
    assert outcomes(world) == (0, 1, 0)
    assert failures(world) == {"worker_crashed": 1}
    value = world.metrics.registry.get_sample_value
    assert value(f"{table.TOKENS.name}_total", {"lane": "plain", "key_class": ""}) == 2


def test_who_is_lost_twice_before_a_token_came_has_waited_since_the_first_time():
    world = ready_world()
    with world.admit(max_tokens=9) as admitted:
        world.tokens(name_of(admitted), 1, 5)
        world.die()
        world.clock.advance(3.0)
        world.come(2)
        world.die()
        world.clock.advance(4.0)
        world.come(3)
        world.tokens(name_of(admitted), 3, 6, index=1)
    value = world.metrics.registry.get_sample_value
    assert value(f"{table.RESUME.name}_sum", {"lane": "plain"}) == 7.0


def test_time_to_the_first_token_is_each_answers_own_from_the_requests_arrival():
    world = ready_world()
    world.clock.advance(10.0)
    with world.admit(choices=2) as admitted:
        world.clock.advance(1.0)
        world.tokens(name_of(admitted), 1, 5)
        world.clock.advance(2.0)
        world.tokens(name_of(admitted, 1), 1, 5)
        world.tokens(name_of(admitted), 1, 6, index=1)
    history = world.dispatcher._observer.history
    history.close(20.0, NOTHING)
    assert (history.intervals[0].ttft_p50_s, history.ttft_lately_s()[0]) == (2.0, 2.0)
    value = world.metrics.registry.get_sample_value
    assert value(f"{table.TTFT.name}_sum", {"lane": "plain", "key_class": ""}) == 4.0


# --- the history ------------------------------------------------------------------------------------------


def test_who_looks_for_what_isn_t_here_was_refused_no_answer():
    history = History()
    for code in ("route_not_found", "method_not_allowed", "queue_full", "invalid_key"):
        history.refused(code)
    history.close(2.0, NOTHING)
    assert history.intervals[0].refused == 2


def test_the_times_of_the_last_ten_seconds_count_each_answer_not_each_interval():
    history = History()
    for times_s in ([9.0] * 50, [0.1] * 100, [5.0], [6.0], [], []):
        for each in times_s:
            history.began(each)
        history.close(2.0, NOTHING)
    assert history.ttft_lately_s() == (pytest.approx(0.1), pytest.approx(0.1))


class Watched:
    """A taker of a dispatcher's world with a wall clock that may be set."""

    def __init__(self, tmp_path):
        self.world = ready_world(queue_places=1000)
        self.quarantine = Quarantine(tmp_path / "q", 1000, HOUR_S, structlog.get_logger(), self.now)
        self.world.dispatcher.quarantine = self.quarantine
        self.ahead_s = 1e6
        self.taker = SnapshotTaker(
            "small",
            SimpleNamespace(state=WorkerState("ready", 0.0)),
            self.world.dispatcher,
            self.world.dispatcher._observer,
            PromptUse,
            clock=self.world.clock,
            wall=self.now,
        )

    def now(self):
        return self.ahead_s + self.world.clock.now()

    def turn(self, count=1):
        for _ in range(count):
            self.world.clock.advance(2.0)
            self.taker.tick()

    @property
    def times(self):
        return list(self.taker.history().time)


@pytest.fixture
def watched(tmp_path):
    return Watched(tmp_path)


def test_what_was_before_the_machine_slept_stays_where_it_was(watched):
    watched.turn(2)
    before = watched.times
    watched.ahead_s += HOUR_S
    watched.turn()
    assert watched.times == [*before, before[-1] + 2.0 + HOUR_S]


def test_a_wall_clock_that_is_set_back_doesn_t_turn_the_history_round(watched):
    watched.turn(3)
    watched.ahead_s -= HOUR_S
    watched.turn(2)
    assert watched.times == [watched.now() - back_s for back_s in (8.0, 6.0, 4.0, 2.0, 0.0)]


def test_a_clock_that_is_slowly_put_right_changes_nothing_that_was_told(watched):
    watched.turn(3)
    before = watched.times
    watched.ahead_s -= 0.2
    watched.turn()
    assert watched.times[:3] == before


def test_a_loop_that_stood_still_makes_one_long_interval_and_no_false_speed(watched):
    watched.turn()
    watched.world.dispatcher._observer.history.came()
    watched.world.clock.advance(60.0)
    for _ in range(3):
        watched.taker.tick()
    view = watched.taker.history()
    assert (view.time[1] - view.time[0], view.tokens_per_s[1]) == (60.0, 0.02)


def test_rows_are_those_that_hold_one_with_those_that_are_being_parked():
    world = World(lanes=TWO_LANES)
    world.come(budget_bytes=8)
    low = world.admit("low", "lower", max_tokens=4)
    world.tokens(name_of(low), 1, 5)
    up = world.admit("up", "upper", max_tokens=4)
    world.clock.advance(5)
    world.dispatcher.tick()
    assert low.sequences[0].park_pinged is not None
    assert world.dispatcher.rows() == [("upper", up.sequences[0]), ("lower", low.sequences[0])]
    world.parked(name_of(low), 1, 1)
    assert world.dispatcher.rows() == [("upper", up.sequences[0])]


def test_a_snapshot_goes_through_nothing_that_may_be_a_hundred_thousand_long(watched, monkeypatch):
    watched.quarantine.add("a", cause="crash", detail="", key="", lane="plain", prompt_tokens=1)
    monkeypatch.setattr(watched.quarantine, "entries", pytest.fail)
    monkeypatch.setattr(watched.world.dispatcher._live, "running", pytest.fail)
    watched.world.admit(prompts=((5,),) * 20)
    taken = watched.taker.snapshot()
    assert (taken.quarantined, len(taken.rows), taken.lanes[0].queued) == (1, 4, 16)
    watched.quarantine.close()


async def test_the_history_is_put_together_once_for_each_of_its_intervals(watched, monkeypatch):
    pages = StatusPages(watched.taker)
    watched.turn()
    told = [(await pages.history(None)).body]
    with monkeypatch.context() as patch:
        patch.setattr(watched.taker, "history", pytest.fail)
        told.append((await pages.history(None)).body)
    watched.turn()
    told.append((await pages.history(None)).body)
    assert told[0] == told[1]
    assert [len(json.loads(each)["time"]) for each in told] == [1, 1, 2]


async def test_views_are_told_as_their_fields_and_no_number_is_one_that_json_lacks(watched):
    watched.turn(3)
    pages = StatusPages(watched.taker)
    for answer, view in (
        (await pages.snapshot(None), watched.taker.snapshot()),
        (await pages.history(None), watched.taker.history()),
    ):
        assert json.loads(answer.body, parse_constant=pytest.fail) == json.loads(json.dumps(asdict(view)))
