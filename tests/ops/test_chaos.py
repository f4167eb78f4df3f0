"""The chaos scenarios' own judgement: checks, timelines, slopes and tables, each tried without a process."""

import asyncio
import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.chaos import checks, down, exhaustion, faults, poison, proxy_death, soak, traffic
from ops.chaos.client import Client, _Hearing, _wait_s
from ops.chaos.poisoned_worker import holds
from ops.chaos.said import Ask, Refused, Said, mixed_asks
from ops.chaos.slope import slope, thinned
from ops.chaos.timeline import Fault, account, by_kind
from ops.chaos.watch import live_problems
from shared.messages import ManifestRow
from tests.waiting import until
from worker.journal import Life

TEXTS = {0: "one two three", 1: "four"}


def said(text="one two three", endings=("done",), *, ask=0, times=(), **changes):
    values = {"reasons": ("length",), "sent_at": 0.0, "ended_at": 100.0} | changes
    leaves, lane = 1 if endings == ("left",) else None, values.pop("lane", "interactive")
    return Said(
        ask=Ask(ask, "Hello.", 8, lane, leaves_after=leaves),
        text=text,
        endings=endings,
        piece_times=tuple(times),
        **values,
    )


def refused(status=503, retry_after_s=2.0, code="overloaded"):
    return Refused(status, code, 0.001, retry_after_s)


# --- answers ----------------------------------------------------------------------------------------------


def test_an_answer_that_ends_once_and_says_the_same_is_right():
    whole = said(endings=("body",))
    assert checks.answer_problems([said(), whole, said("one two", ("left",), reasons=())], TEXTS) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (said(endings=("done", "more")), "done, more"),
        (said(endings=("done", "done")), "done, done"),
        (said(endings=("error worker_crashed",)), "error worker_crashed"),
        (said(endings=("broken ClientPayloadError",)), "broken"),
        (said(endings=("refused 503 x",)), "refused 503"),
        (said(reasons=()), "0 finish reasons"),
        (said(reasons=("length", "stop")), "2 finish reasons"),
        (said("one three"), "at character 5, 'hree' instead of 'wo three'"),
        (said("one two"), "another text"),
        (said("one two three three"), "another text"),
        (said("one one", ("left",)), "another beginning"),
        (said(ask=1), "another text"),
    ],
)
def test_an_answer_that_is_cut_doubled_torn_or_mixed_up_is_found(wrong, words):
    (problem,) = checks.answer_problems([said(), wrong], TEXTS)
    assert words in problem
    assert f"request {wrong.ask.number}" in problem


def test_requests_are_counted_by_their_last_end_and_by_what_refused_them():
    ends = [said(), said(endings=("broken X", "done")), said(endings=("left",)), said(refusals=(refused(),))]
    assert checks.counted(ends, checks.Difference(1, 2)) == {
        "requests": 4,
        "endings": {"done": 3, "left": 1},
        "refusals": {"503 overloaded": 1},
        "tokens_lost": 1,
        "tokens_added": 2,
    }


def test_many_problems_of_a_kind_are_counted_not_listed():
    problems = checks.answer_problems([said("x")] * 9, TEXTS)
    assert len(problems) == 6
    assert problems[-1] == "and 4 more of the kind"


@given(st.lists(st.integers(0, 3), max_size=12), st.data())
def test_tokens_lost_and_added_are_those_that_were_taken_out_and_put_in(ids, data):
    assert checks.difference(ids, ids) == checks.Difference(0, 0)
    place = data.draw(st.integers(0, len(ids)))
    assert checks.difference(ids, [*ids[:place], 9, *ids[place:]]) == checks.Difference(0, 1)
    if place < len(ids):
        assert checks.difference(ids, ids[:place] + ids[place + 1 :]) == checks.Difference(1, 0)


def test_differences_are_those_of_whole_answers_only():
    all_of_them = [said("one three"), said("one", ("left",)), said("onetwo", ("error x",)), said()]
    assert checks.differences(all_of_them, TEXTS, lambda text: [*map(ord, text)]) == checks.Difference(4, 0)


def test_refusals_must_say_when_to_come_back_within_their_bounds():
    good = said(refusals=(refused(), refused(429, 60.0), refused(422, None), refused(0, None)))
    assert checks.refusal_problems([good]) == []
    bad = said(refusals=(refused(503, None), refused(429, 61.0), refused(503, 0.5)))
    assert len(checks.refusal_problems([bad])) == 3


def test_what_is_held_at_the_end_is_named():
    rest = {"live": 0, "queued": 0, "reserved_bytes": 0, "suspects": 0}
    assert checks.rest_problems(rest) == []
    assert checks.rest_problems({**rest, "reserved_bytes": 7}) == ["reserved_bytes is 7 at the end"]
    assert len(checks.rest_problems({})) == 4


def test_liveness_that_failed_once_or_was_never_asked_is_a_problem():
    assert live_problems({200: 9}) == []
    assert "503" in live_problems({200: 9, 503: 1})[0]
    assert live_problems({})


# --- what the client hears --------------------------------------------------------------------------------


def chunk(text, reason="null"):
    return b'data: {"choices":[{"delta":{"content":"%b"},"finish_reason":%b}]}' % (text, reason.encode())


def heard(*events):
    hearing = _Hearing(Ask(0, "Hello.", 8))
    for event in events:
        hearing.take_event(event)
    return hearing.said(0.0, ())


def test_a_stream_is_put_together_and_its_comments_are_no_text():
    usage = b'data: {"choices":[],"usage":{"completion_tokens":3}}'
    whole = heard(
        chunk(b"one "), b": keep-alive", chunk(b"two"), chunk(b"", '"stop"'), usage, b"data: [DONE]"
    )
    assert (whole.text, whole.tokens, whole.reasons) == ("one two", 3, ("stop",))
    assert len(whole.piece_times) == 2
    assert whole.completed


def test_every_claim_to_be_the_end_and_all_that_follows_it_is_noted():
    done, error = b"data: [DONE]", b'data: {"error":{"code":"worker_crashed"}}'
    assert heard(chunk(b"x"), done, done).endings == ("done", "more")
    assert heard(error, chunk(b"x")).endings == ("error worker_crashed", "more")
    assert heard(chunk(b"x")).endings == ("broken without an end",)


@pytest.mark.parametrize(
    ("status", "advice", "wait_s"),
    [(503, None, 2.0), (422, None, None), (503, "false", None), (422, "true", 2.0), (500, None, 2.0)],
)
def test_a_refusal_is_tried_again_as_it_is_told_or_by_its_status(status, advice, wait_s):
    headers = {} if advice is None else {"x-should-retry": advice}
    assert _wait_s(refused(status), headers) == wait_s


def test_the_asks_of_a_seed_are_the_same_again_and_of_all_sorts():
    asks = mixed_asks(5, 16, (8, 20))
    assert asks == mixed_asks(5, 16, (8, 20))
    assert asks != mixed_asks(6, 16, (8, 20))
    assert {ask.lane for ask in asks} == {"interactive", "batch"}
    assert {ask.stream for ask in asks} == {True, False}
    assert {ask.seed is None for ask in asks} == {True, False}
    assert all(8 <= ask.max_tokens <= 20 for ask in asks)


def test_some_clients_leave_in_the_middle_of_a_stream_and_none_where_that_is_not_wanted():
    asks = mixed_asks(1, 16, (8, 20))
    draw = traffic.again_and_again(asks, random.Random(1))
    drawn = [draw() for _ in range(300)]
    leaving = [ask for ask in drawn if ask.leaves_after is not None]
    assert leaving
    assert all(ask.stream and 1 <= ask.leaves_after < ask.max_tokens for ask in leaving)
    stays = traffic.again_and_again(asks, random.Random(1), leaves=0.0)
    assert all(stays().leaves_after is None for _ in range(100))


# --- what faults did --------------------------------------------------------------------------------------


def life(epoch, spawned_at, ready_after_s=2.0, ended_at=None, cause="killed", **changes):
    return Life(
        port=1,
        epoch=epoch,
        spawned_at=datetime.fromtimestamp(spawned_at, UTC),
        ready_after_s=ready_after_s,
        ended_at=None if ended_at is None else datetime.fromtimestamp(ended_at, UTC),
        cause=None if ended_at is None else cause,
        **changes,
    )


def test_a_fault_is_given_the_life_it_ended_and_the_streams_that_went_on():
    lives = [life(1, 0.0, ended_at=20.5), life(2, 21.5)]
    streams = [
        said(times=(10.0, 19.0, 20.25, 25.0, 26.0)),
        said("one two", times=(10.0, 24.0)),
        said("one", ("left",), times=(10.0, 25.0)),
        said(times=(30.0,)),
        said(times=(10.0,), ended_at=15.0),
    ]
    found = account([Fault("SIGKILL", 20.0, 24.0)], lives, streams, TEXTS)
    (effect,) = found.effects
    assert (effect.detect_s, effect.waited_s, effect.load_s, effect.ready_s) == (0.5, 1.0, 2.0, 3.5)
    assert effect.next_token_s == (("interactive", 5.0), ("interactive", 4.0))
    assert effect.pause_s == (4.75, 14.0)
    assert (effect.streams, effect.resumed) == (2, 1)
    assert (found.uncaused, found.without_effect) == ([], [])
    figures = by_kind(found.effects)
    assert figures["SIGKILL"] == figures["all"]
    assert figures["all"]["resumed_share"] == 0.5
    assert figures["all"]["next_token_of_lane_s"]["interactive"]["max"] == 5.0
    assert figures["all"]["causes"] == ["killed"]


def test_a_death_that_nobody_caused_and_a_fault_that_did_nothing_are_found():
    lives = [life(1, 0.0, ended_at=10.0, cause="hang"), life(2, 11.0, ended_at=30.5), life(3, 31.0)]
    found = account([Fault("SIGKILL", 30.0, 34.0)], lives, [], TEXTS)
    assert found.uncaused == [1]
    assert found.without_effect == []
    assert account([Fault("SIGTERM", 40.0, 44.0)], lives, [], TEXTS).without_effect == ["SIGTERM"]
    never_back = [life(1, 0.0, ended_at=20.0), life(2, 21.0, ready_after_s=None)]
    assert account([Fault("SIGKILL", 19.0, 60.0)], never_back, [], TEXTS).without_effect == ["SIGKILL"]


def test_a_pause_ends_no_life_and_a_supervisor_takes_one_with_it_that_no_journal_saw_end():
    lives = [life(1, 0.0), life(2, 21.0)]
    pause = Fault(faults.PAUSE, 5.0, 7.0, kills=False)
    supervisor = Fault(faults.SUPERVISOR, 20.0, 24.0, unseen=True)
    found = account([pause, supervisor], lives, [said(times=(4.0, 7.5), lane="batch")], TEXTS)
    assert (found.uncaused, found.without_effect) == ([], [])
    assert found.effects[0].next_token_s == (("batch", 2.5),)
    assert found.effects[0].cause is None
    assert (found.effects[1].detect_s, found.effects[1].ready_s) == (None, 3.0)
    killed_by_it = [life(1, 0.0, ended_at=6.0, cause="hang"), life(2, 7.0)]
    assert account([pause], killed_by_it, [], TEXTS).uncaused == [1]


def test_a_death_that_was_taken_for_another_is_found():
    ends = [life(1, 0.0, ended_at=20.5), life(2, 21.5)]
    blamed = [life(1, 0.0, ended_at=20.5, cause="memory"), life(2, 21.5)]
    for kind in ("SIGKILL", "SIGABRT"):
        assert faults.cause_problems(account([Fault(kind, 20.0, 24.0)], ends, [], TEXTS).effects) == []
        (problem,) = faults.cause_problems(account([Fault(kind, 20.0, 24.0)], blamed, [], TEXTS).effects)
        assert problem == f"a {kind} was taken for memory"
    assert faults.cause_problems(account([Fault("SIGTERM", 20.0, 24.0)], ends, [], TEXTS).effects)


def test_each_bag_of_faults_has_every_kind_once_and_ends_with_the_supervisor():
    drawn = faults.in_bags(random.Random(3))
    size = len(faults.SIGNALS) + 3
    bags = [[next(drawn) for _ in range(size)] for _ in range(3)]
    wanted = sorted([*faults.SIGNALS, faults.PAUSE, faults.RESTART, faults.SUPERVISOR])
    assert all(sorted(bag) == wanted and bag[-1] == faults.SUPERVISOR for bag in bags)
    assert bags[0] != bags[1]


# --- slopes and goodput -----------------------------------------------------------------------------------


@given(st.floats(-5, 5), st.floats(-100, 100))
def test_the_slope_of_a_straight_line_is_its_own_and_certain(per_s, start):
    times = [float(number) for number in range(20)]
    fitted = slope(times, [start + per_s * time for time in times])
    assert fitted.per_s == pytest.approx(per_s, abs=1e-9)
    assert fitted.error_per_s == pytest.approx(0, abs=1e-9)


def test_noise_makes_a_slope_uncertain_by_what_the_formula_says():
    """Five points, residuals +1, -2, +2, -2, +1 around a level: sum of squares 14, spread of times 10."""
    fitted = slope([0, 1, 2, 3, 4], [1, -2, 2, -2, 1])
    assert fitted.per_s == 0
    assert fitted.error_per_s == pytest.approx((14 / 3 / 10) ** 0.5)
    assert slope([0, 1], [0, 1]) is None
    assert slope([1, 1, 1], [0, 1, 2]) is None


def test_samples_are_thinned_to_the_means_of_their_stretches():
    assert thinned([(0, 1), (1, 3), (2, 5)], 2) == [(0.5, 2), (2, 5)]
    assert thinned([], 4) == []


def test_goodput_counts_what_came_in_time_of_answers_that_came_to_their_end():
    whole = said(times=(1.0, 2.0, 3.0, 4.0), tokens=8)
    cut = said(endings=("error x",), times=(2.0,), tokens=9)
    assert soak.goodput([whole, cut, said(tokens=5)], 2.0, 4.0) == 2.0


@pytest.mark.parametrize("seconds", [60.0, 120.0, 300.0, 1200.0])
def test_half_of_a_soak_has_a_death_a_minute_and_the_other_half_none(seconds):
    planned = soak.blocks(seconds, random.Random(1))
    assert planned[0].begin == 0
    assert planned[-1].end == pytest.approx(seconds)
    assert {bool(block.deaths) for block in planned} == {True, False}
    assert sum(bool(block.deaths) for block in planned) == len(planned) // 2
    for block in planned:
        assert all(block.begin < death < block.end for death in block.deaths)
    if seconds >= 1200:
        assert all(len(block.deaths) == 2 for block in planned if block.deaths)


def test_growth_is_measured_after_the_warm_up():
    warm = [soak.Sample(float(at), 100 << 20, 9, 3) for at in range(20)]
    grown = [soak.Sample(20.0 + at, (200 << 20) + at * 1024, 9, 3) for at in range(80)]
    figures = soak.growth(warm + grown)
    assert figures["mib_per_hour"] == pytest.approx(3600 / 1024, rel=1e-6)
    assert figures["resident_mib"]["begin"] == 200
    assert figures["descriptors"] == {"begin": 9, "end": 9}
    assert soak.growth([])["mib_per_hour"] is None


# --- verdicts of the scenarios ----------------------------------------------------------------------------

QUARANTINED = "refused 422 request_quarantined"


def test_a_large_request_may_kill_twice_and_is_refused_then():
    lives = [
        life(1, 0, ended_at=5, cause="memory", rung=1, rows=(ManifestRow("a", 1, 0, True),)),
        life(2, 6, ended_at=9, cause="memory", rung=2),
        life(3, 10),
    ]
    guilty, again = said("", ("error request_quarantined",)), said("", (QUARANTINED,))
    assert exhaustion.death_problems(lives) == []
    assert exhaustion.large_problems(guilty, again, lives) == []
    assert exhaustion.large_problems(guilty, said("", ("done",)), lives)
    assert exhaustion.large_problems(said(), again, lives)
    assert exhaustion.large_problems(said("", ("error worker_crashed",)), again, lives)
    assert exhaustion.death_problems([*lives, life(4, 20, ended_at=21, cause="memory", rung=3)])
    assert exhaustion.death_problems([life(1, 0)])
    assert "killed" in exhaustion.death_problems([life(1, 0, ended_at=5, rung=1)])[0]
    assert exhaustion.death_problems([life(1, 0, ended_at=5, cause="memory", rung=0)])


def test_a_poisoned_request_gets_a_422_at_once_after_its_second_death_and_no_retry():
    lives = [life(1, 0, ended_at=5, cause="memory"), life(2, 6, ended_at=9, cause="memory"), life(3, 10)]
    no = refused(422, None, "request_quarantined")
    first = poison.Sent(("error request_quarantined",), (), 0)
    later = poison.Sent((QUARANTINED,), (no,), 2)
    assert poison.poison_problems([first, later], [no], lives) == []
    retried = poison.Sent((QUARANTINED,), (no, no), 2)
    assert "tried again" in poison.poison_problems([first, retried], [no], lives)[0]
    wrong = poison.Sent(("error worker_crashed",), (), 2)
    assert "error worker_crashed" in poison.poison_problems([first, wrong], [no], lives)[0]
    assert "503" in poison.poison_problems([first], [refused()], lives)[0]
    assert "never refused" in poison.poison_problems([first], [], lives)[0]
    assert "3 times" in poison.poison_problems([], [no], [*lives, life(4, 1, ended_at=2, cause="memory")])[0]
    hung = [life(1, 0, ended_at=5, cause="hang"), life(2, 6)]
    assert "hang" in poison.poison_problems([], [no], hung)[0]


def test_poison_is_found_wherever_it_stands_in_a_prompt():
    assert holds((1, 2, 3), (1, 2))
    assert holds((1, 2, 3), (2, 3))
    assert not holds((1, 2, 3), (3, 2))
    assert not holds((1,), (1, 2))


def test_nobody_there_means_one_503_with_a_time_to_come_back():
    good = said("", ("refused 503 x",), refusals=(refused(),))
    assert down.down_problems([good, good]) == []
    queued = said()
    late = said("", ("refused 503 x",), refusals=(refused(503, None),))
    other = said("", ("refused 500 x",), refusals=(refused(500),))
    assert len(down.down_problems([good, queued, late, other])) == 3
    assert down.figures_of([good, other])["answers"] == {"503 overloaded": 1, "500 overloaded": 1}


def test_a_proxy_death_must_leave_the_model_loaded_and_no_orphan_running():
    good = proxy_death.Death(3.0, 3.5, same_epoch=True, still_busy=False, broken=8)
    assert proxy_death.death_problems([good]) == []
    reloaded = proxy_death.Death(3.0, 3.5, same_epoch=False, still_busy=False, broken=8)
    busy = proxy_death.Death(None, 3.5, same_epoch=True, still_busy=True, broken=8)
    idle = proxy_death.Death(3.0, 3.5, same_epoch=True, still_busy=False, broken=0)
    assert len(proxy_death.death_problems([good, reloaded, busy, idle])) == 3
    assert proxy_death.death_problems([])


async def test_a_request_that_never_ends_is_counted_as_one(unused_tcp_port_factory):
    """Nobody listens, so it is tried again and again until its client is cancelled."""
    async with Client(unused_tcp_port_factory(), "m", label="x") as client:
        asking = asyncio.create_task(client.ask(Ask(0, "Hello.", 8)))
        await until(lambda: client.live == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        (one,) = client.said
        assert one.endings[-1] == "given up waiting for"
        assert len(checks.answer_problems([one], TEXTS)) == 1
        assert client.live == 0
