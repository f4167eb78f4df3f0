"""What a worker's death means for the answers: who is blamed, who is counted, who is told what."""

import pytest
from structlog.testing import capture_logs

from proxy.admitted import RequestFailed
from shared.errors import Draining, Loading, Quarantined, Unavailable, WorkerCrashed
from shared.lane_settings import AdmissionSettings
from shared.limits import ATTEMPTS_MAX
from shared.messages import BLAMED_CAUSES, CALM, Cancel, Care, Exited, ManifestRow, Park, Submit
from tests.proxy.dispatch_world import TWO_LANES, World, events, name_of, ready_world
from tests.proxy.small_worlds import measured

KILLER, OTHER, THIRD = ((66, 6),), ((1, 2),), ((3, 4),)


@pytest.fixture
def world():
    return ready_world(lanes=TWO_LANES, resumes_max=5)


def row(admitted, index=0, answer=0):
    sequence = admitted.sequences[answer]
    return ManifestRow(sequence.name, max(1, sequence.attempt), index, False)


def submitted(world):
    return [each.sequence for each in world.sent() if isinstance(each, Submit)]


def refusals(admitted):
    return [each.refusal for each in events(admitted) if isinstance(each, RequestFailed)]


def killed_once(world, *innocents):
    """Return a killer that is on trial, after a death beside these innocents, who are done by then."""
    killer = world.admit("killer", prompts=KILLER)
    beside = [world.admit("beside", prompts=prompts) for prompts in innocents]
    world.die("memory", [row(killer), *map(row, beside)])
    world.come(2)
    for each in beside:
        each.__exit__(None, None, None)
    world.sent()
    return killer


# --- verdicts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", sorted(BLAMED_CAUSES))
def test_who_kills_the_worker_alone_after_it_was_suspected_is_quarantined(world, cause):
    killer, other = world.admit("k", prompts=KILLER), world.admit("o", prompts=OTHER)
    world.die(cause, [row(killer)])
    world.sent()
    world.come(2)
    assert submitted(world) == [name_of(other)]
    world.finish(name_of(other), 2, 0)
    assert submitted(world) == [name_of(killer)]
    world.die(cause, [row(killer)])
    (refusal,) = refusals(killer)
    assert isinstance(refusal, Quarantined)
    assert f"cause: {cause}" in refusal.message
    with pytest.raises(Quarantined):
        world.admit("again", prompts=KILLER)
    assert not refusals(other)
    assert world.dispatcher.live == 0


def test_the_quarantine_is_told_what_was_asked_by_whom_and_what_happened(world):
    killer = killed_once(world)
    exited = Exited(2, "hang", "stood still", (row(killer),))
    world.link.epoch = None
    world.dispatcher.worker_went("hang")
    world.dispatcher.worker_died(exited)
    assert world.quarantine.added == {
        killer.sequences[0].fingerprint: {
            "cause": "hang",
            "detail": "stood still",
            "key": "",
            "lane": "upper",
            "prompt_tokens": 2,
        }
    }


def test_all_that_ask_the_same_end_with_the_guilty(world):
    killer = killed_once(world)
    alike = [world.admit(str(number), prompts=KILLER, seed=number) for number in range(9)]
    other = world.admit("o", prompts=OTHER)
    assert submitted(world) == []
    world.die("crash", [row(killer)])
    assert all(isinstance(refusals(each)[0], Quarantined) for each in [killer, *alike])
    assert (world.dispatcher.live, refusals(other)) == (1, [])
    world.come(3)
    assert submitted(world) == [name_of(other)]


@pytest.mark.parametrize("cause", ["killed", "stuck_load", "cannot_load", "planned"])
def test_a_death_that_blames_nobody_makes_no_suspects(world, cause):
    admitted = [world.admit(str(number), prompts=((number,),)) for number in range(3)]
    for epoch in (2, 3):
        world.die(cause, [row(admitted[0])])
        world.come(epoch)
        assert len(submitted(world)) == 3 + 3 * (epoch == 2)
    assert world.quarantine.added == {}


def test_an_outside_kill_in_a_trial_convicts_nobody(world):
    killer = killed_once(world)
    world.die("killed", [row(killer)])
    world.come(3)
    assert world.quarantine.added == {}
    assert submitted(world) == [name_of(killer)]


def test_innocents_that_ran_beside_are_cleared_one_by_one(world):
    first, second = world.admit("1", prompts=OTHER), world.admit("2", prompts=THIRD)
    world.die("memory", [row(first), row(second)])
    world.come(2)
    world.sent()
    world.tokens(name_of(first), 2, 5, 6)
    assert [type(each) for each in world.sent()] == [Park]
    world.parked(name_of(first), 2, 2)
    assert submitted(world) == [name_of(second)]
    world.tokens(name_of(second), 2, 5, 6)
    assert submitted(world) == [name_of(first)]
    assert world.quarantine.added == {}


def test_a_death_in_a_trial_in_which_another_still_ran_convicts_nobody(world):
    """Its park got lost on the wire: the worker still had it."""
    killer = killed_once(world, OTHER)
    stray = ManifestRow("nobody knows it", 1, 0, False)
    world.die("crash", [row(killer), stray])
    assert world.quarantine.added == {}


def test_a_client_that_leaves_before_the_death_is_known_leaves_the_suspicion(world):
    """A hang is found out after seconds, and the client has less patience: this must not save a killer."""
    impatient = world.admit("k", prompts=KILLER)
    rows = [row(impatient)]
    impatient.__exit__(None, None, None)
    world.die("hang", rows)
    world.come(2)
    other, again = world.admit("o", prompts=OTHER), world.admit("k2", prompts=KILLER)
    world.finish(name_of(other), 1, 0)
    rows = [row(again)]
    again.__exit__(None, None, None)
    world.die("hang", rows)
    assert list(world.quarantine.added) == [again.sequences[0].fingerprint]
    with pytest.raises(Quarantined):
        world.admit("k3", prompts=KILLER)


def test_one_that_left_long_before_is_not_blamed_for_another_worker(world):
    left = world.admit("k", prompts=KILLER)
    rows = [row(left)]
    left.__exit__(None, None, None)
    world.die("killed")
    world.come(2)
    world.die("crash", rows)
    world.come(3)
    world.admit("1", prompts=OTHER)
    world.admit("2", prompts=KILLER)
    assert len(submitted(world)) == 3


def test_the_word_of_a_death_after_the_worker_could_not_be_reached_judges_it_all_the_same(world):
    killer = killed_once(world)
    rows, epoch = [row(killer)], world.link.epoch
    world.link.epoch = None
    world.dispatcher.worker_went("unreachable")
    world.dispatcher.worker_died(Exited(epoch, "crash", "", tuple(rows)))
    assert isinstance(refusals(killer)[0], Quarantined)


# --- what is counted ----------------------------------------------------------------------------------------


def test_planned_ends_count_for_nobody(world):
    admitted = world.admit()
    for epoch in range(2, 12):
        world.die("planned", [row(admitted)])
        world.come(epoch)
    assert (admitted.sequences[0].interruptions, world.dispatcher.live) == (0, 1)
    assert refusals(admitted) == []


@pytest.mark.parametrize("cause", ["crash", "killed"])
def test_more_deaths_than_an_answer_may_survive_end_it(cause):
    world = ready_world(resumes_max=2)
    admitted = world.admit()
    for epoch in (2, 3):
        world.die(cause)
        world.come(epoch)
        assert refusals(admitted) == []
    world.die(cause)
    (refusal,) = refusals(admitted)
    assert isinstance(refusal, WorkerCrashed)
    assert f"3 times under this request, at last: {cause}" in refusal.message


def test_what_only_waited_or_is_parked_is_not_counted():
    world = World(lanes=TWO_LANES)
    world.come(slots=1)
    low = world.admit("low", lane="lower")
    world.clock.advance(9)
    high, waiting = world.admit("high", lane="upper"), world.admit("waiting", lane="upper")
    world.parked(name_of(low), 1, 0)
    world.die("crash")
    assert [each.sequences[0].interruptions for each in (low, high, waiting)] == [0, 1, 0]


def test_a_worker_that_is_lost_and_dies_is_one_interruption(world):
    admitted = world.admit()
    epoch, world.link.epoch = world.link.epoch, None
    world.dispatcher.worker_went("unreachable")
    world.dispatcher.worker_died(Exited(epoch, "crash", "", ()))
    world.dispatcher.worker_died(Exited(epoch, "crash", "", ()))
    assert admitted.sequences[0].interruptions == 1


def test_deaths_are_counted_by_cause(world):
    world.die("memory")
    world.come(2)
    world.die("planned")
    sample = world.metrics.registry.get_sample_value
    assert sample("forebay_worker_deaths_total", {"cause": "memory"}) == 1
    assert sample("forebay_worker_deaths_total", {"cause": "planned"}) == 1


def test_the_time_from_losing_a_row_to_its_next_token_is_measured(world):
    admitted = world.admit()
    world.die("killed")
    world.clock.advance(3)
    world.come(2)
    world.tokens(name_of(admitted), 2, 5, 6)
    sample = world.metrics.registry.get_sample_value
    lane = {"lane": "upper"}
    assert sample("forebay_resume_seconds_count", lane) == 1
    assert sample("forebay_resume_seconds_sum", lane) == 3
    assert sample("forebay_resumes_total", {**lane, "key_class": ""}) == 1


def test_an_answer_that_was_begun_too_often_ends_when_it_is_parked():
    world = World(lanes=TWO_LANES)
    world.come(slots=1)
    low = world.admit("low", lane="lower")
    low.sequences[0].attempt = ATTEMPTS_MAX
    world.clock.advance(9)
    high = world.admit("high", lane="upper")
    world.parked(name_of(low), ATTEMPTS_MAX, 0)
    world.finish(name_of(high), 1, 0)
    assert isinstance(refusals(low)[0], WorkerCrashed)
    assert world.dispatcher.admission.reserved_bytes == 0


# --- care ---------------------------------------------------------------------------------------------------


def test_while_the_breaker_is_open_nothing_is_even_measured_and_all_are_told_when_to_come_back(world):
    world.die("crash")
    world.dispatcher.worker_delayed(world.clock.now() + 40)
    world.dispatcher.cautioned(Care(0, "open"))
    world.clock.advance(10)
    request = measured(prompts=OTHER)
    with pytest.raises(Unavailable) as refused, world.dispatcher.arriving(1, request.ticket):
        pytest.fail("it may not be measured")
    assert (type(refused.value), refused.value.retry_after_s) == (Unavailable, 30)
    with pytest.raises(Unavailable, match="died too fast"):
        world.dispatcher.admit(request, "r")
    world.dispatcher.cautioned(Care(0, "half_open"))
    world.admit("r")


def test_an_open_breaker_is_said_rather_than_that_the_model_was_never_loaded():
    world = World()
    world.dispatcher.cautioned(Care(0, "open"))
    with pytest.raises(Unavailable) as refused:
        world.admit()
    assert type(refused.value) is Unavailable
    world.dispatcher.cautioned(CALM)
    with pytest.raises(Loading):
        world.admit()


def test_who_goes_down_says_so_whatever_the_breaker_does(world):
    world.dispatcher.cautioned(Care(0, "open"))
    world.dispatcher.draining = True
    with pytest.raises(Draining):
        world.admit()


def test_half_open_one_runs_at_a_time_and_the_others_start_when_it_closes(world):
    world.dispatcher.cautioned(Care(0, "half_open"))
    first, second = world.admit("1"), world.admit("2")
    assert submitted(world) == [name_of(first)]
    world.dispatcher.cautioned(CALM)
    assert submitted(world) == [name_of(second)]


@pytest.mark.parametrize(("rung", "rows", "quantum"), [(0, 4, 1.0), (1, 4, 1.0), (2, 2, 0.5), (3, 1, 0.5)])
def test_rungs_give_the_worker_less_to_do(world, rung, rows, quantum):
    world.dispatcher.cautioned(Care(rung, "closed"))
    for number in range(6):
        world.admit(str(number))
    sent = world.sent()
    assert len(sent) == rows
    assert {each.quantum_ms for each in sent} == {TWO_LANES[0].prefill_quantum_ms * quantum}
    world.dispatcher.cautioned(CALM)
    assert len(world.sent()) == 4 - rows


def test_a_rung_that_was_heard_before_the_worker_came_holds_for_it():
    world = World()
    world.dispatcher.cautioned(Care(3, "closed"))
    world.come()
    world.admit("1")
    world.admit("2")
    assert len(submitted(world)) == 1


@pytest.mark.parametrize(("rung", "share"), [(0, 1.0), (1, 0.9), (2, 0.9), (3, 0.9)])
def test_rungs_leave_memory_unused_and_the_workers_own_word_counts_if_it_is_less(world, rung, share):
    world.dispatcher.cautioned(Care(rung, "closed"))
    ledger = world.dispatcher.admission.state.ledger
    assert ledger.budget_bytes == int(share * (1 << 20))
    world.progress(ping=0, budget_bytes=1000)
    assert (ledger.budget_bytes, ledger.full_bytes) == (1000, 1 << 20)
    world.progress(ping=0, budget_bytes=1 << 30)
    assert ledger.budget_bytes == int(share * (1 << 20))


def test_nothing_overcommits_on_a_rung(world):
    admission = world.dispatcher.admission
    for rung, overcommits in ((1, False), (0, True), (3, False)):
        world.dispatcher.cautioned(Care(rung, "closed"))
        assert {lane.overcommits for lane in admission.state.lanes} == {overcommits}
    third = TWO_LANES[1].model_copy(update={"name": "third"})
    world.dispatcher.reconfigure([*TWO_LANES, third], AdmissionSettings())
    assert [lane.overcommits for lane in admission.state.lanes] == [False] * 3


def test_a_short_budget_parks_what_can_be_parked_and_refuses_nobody_for_ever(world):
    low = world.admit("low", lane="lower", max_tokens=400)
    world.sent()
    world.progress(ping=0, budget_bytes=50)
    assert [each.sequence for each in world.sent()] == [name_of(low)]
    world.parked(name_of(low), 1, 0)
    big = world.admit("big", max_tokens=500)
    assert (submitted(world), refusals(big), world.dispatcher.live) == ([], [], 2)
    world.progress(ping=1, budget_bytes=1 << 20)
    assert submitted(world) == [name_of(big), name_of(low)]


def test_a_worker_that_holds_more_than_a_shrunken_budget_is_not_said_to_have_false_facts(world):
    world.progress(ping=0, budget_bytes=50)
    with capture_logs() as said:
        world.progress(ping=0, kv_bytes=60, budget_bytes=50)
    assert said == []


# --- held, and the end --------------------------------------------------------------------------------------


def test_while_held_what_runs_goes_on_and_newcomers_wait(world):
    first = world.admit("1")
    world.dispatcher.held = True
    second = world.admit("2")
    assert submitted(world) == [name_of(first)]
    world.tokens(name_of(first), 1, 5)
    assert len(events(first)) == 1
    world.dispatcher.held = False
    world.dispatcher.tick()
    assert submitted(world) == [name_of(second)]


def test_failing_all_ends_what_runs_and_what_waits_and_frees_the_rows():
    world = World()
    world.come(slots=1)
    both = [world.admit("1", choices=2), world.admit("2")]
    world.sent()
    world.dispatcher.fail_all(Draining("bye", retry_after_s=5))
    assert [{type(each) for each in refusals(admitted)} for admitted in both] == [{Draining}, {Draining}]
    assert world.sent() == [Cancel(1, name_of(both[0]))]
    assert (world.dispatcher.live, world.dispatcher.admission.reserved_bytes) == (0, 0)
    assert world.dispatcher.emptied.is_set()
