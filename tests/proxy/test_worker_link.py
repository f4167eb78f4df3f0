"""The proxy's end of the wire: which life of the worker is heard, and what becomes of the others' words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.codec import encode
from shared.messages import (
    CALM,
    BackingOff,
    Cancel,
    Care,
    Exited,
    Failed,
    Finished,
    Park,
    Parked,
    Ping,
    Prefixes,
    Progress,
    Starting,
    Step,
    StepRow,
    Submit,
)
from shared.readings import MemoryReading
from tests.proxy.link_world import STARTED_S, World
from tests.proxy.small_worlds import hello
from tests.shared.wire_samples import SAMPLES


@pytest.fixture
def world():
    return World()


def step(epoch, token=7):
    return Step(epoch, 1, 20.0, 20.0, (StepRow("a", 1, 0, token),), ())


def progress(epoch, ping=0):
    return Progress(epoch, 1, "idle", 0.0, ping, (), 0, 0, 0, 0, False, MemoryReading(1, 2, 3, 4))


WORDS = [
    step(1),
    Finished(1, "a", 1, 1, "stop"),
    Failed(1, "a", 1, "no"),
    Parked(1, "a", 1, 3),
    progress(1),
    Prefixes(1, (1, 2), (3,)),
]


# --- who is heard -------------------------------------------------------------------------------------------


def test_a_worker_is_there_from_its_hello_on(world):
    assert (world.status, world.link.epoch) == ("absent", None)
    world.worker_says(hello(1))
    assert (world.status, world.link.epoch) == ("ready", 1)
    assert world.news() == [("came", 1)]


@pytest.mark.parametrize("word", WORDS, ids=lambda word: type(word).__name__)
def test_what_the_current_worker_says_is_passed_on(world, word):
    world.worker_says(hello(1))
    world.news()
    world.worker_says(word)
    assert world.news() == [word]


@pytest.mark.parametrize("word", WORDS, ids=lambda word: type(word).__name__)
def test_what_any_other_epoch_says_is_not_heard(world, word):
    world.worker_says(word)
    world.worker_says(hello(2))
    world.news()
    world.worker_says(word)
    assert world.news() == []
    assert world.link.state.progress is None


def test_the_last_progress_is_kept(world):
    world.worker_says(hello(1))
    world.worker_says(progress(1))
    assert world.link.state.progress == progress(1)


def test_a_worker_that_serves_another_model_is_not_taken(world):
    world.worker_says(hello(1, fingerprint="e" * 16))
    assert (world.status, world.news()) == ("absent", [])


def test_a_newer_workers_hello_takes_the_place_of_the_one_before(world):
    world.worker_says(hello(1))
    world.worker_says(hello(2))
    assert world.news() == [("came", 1), ("went", "restarted"), ("came", 2)]
    world.worker_says(step(1))
    world.worker_says(hello(1))
    assert (world.news(), world.link.epoch) == ([], 2)


def test_an_older_lifes_hello_or_start_that_comes_late_changes_nothing(world):
    """Even if nobody said that it exited."""
    world.worker_says(hello(2))
    world.news()
    world.worker_says(hello(1))
    world.supervisor_says(Starting(1, CALM))
    assert (world.news(), world.link.epoch) == ([], 2)


def test_an_older_life_is_taken_once_the_newer_one_is_gone(world):
    """As after a clock was set back; or nothing would ever be served again."""
    world.worker_says(hello(2))
    world.supervisor_says(Exited(2, "crash", "", ()))
    world.worker_says(hello(1))
    assert world.link.epoch == 1


def test_another_models_hello_leaves_the_current_worker_alone(world):
    world.worker_says(hello(1))
    world.news()
    world.worker_says(hello(2, fingerprint="e" * 16))
    assert (world.news(), world.link.epoch) == ([], 1)


def test_a_hello_said_again_means_that_what_ran_is_lost(world):
    """The worker thought the proxy was gone, and cancelled everything."""
    world.worker_says(hello(1))
    world.worker_says(hello(1))
    assert world.news() == [("came", 1), ("went", "restarted"), ("came", 1)]
    world.worker_says(step(1))
    assert world.news() == [step(1)]


def test_a_worker_that_exited_is_never_heard_again(world):
    world.worker_says(hello(1))
    world.supervisor_says(Exited(1, "crash", "signal 11", ()))
    assert world.news() == [("came", 1), ("went", "crash"), ("died", 1, "crash")]
    world.worker_says(step(1))
    world.worker_says(hello(1))
    assert (world.news(), world.status, world.link.epoch) == ([], "restarting", None)


# --- the supervisor -----------------------------------------------------------------------------------------


def test_a_life_begins_by_loading(world):
    world.supervisor_says(Starting(1, CALM))
    assert world.status == "loading"
    world.worker_says(hello(1))
    world.supervisor_says(Starting(1, CALM))
    assert (world.status, world.news()) == ("ready", [("came", 1)])


def test_another_life_that_starts_ends_the_current_one(world):
    world.worker_says(hello(1))
    world.supervisor_says(Starting(2, CALM))
    assert world.news() == [("came", 1), ("went", "replaced")]
    assert world.status == "loading"
    world.worker_says(hello(1))
    assert (world.status, world.news()) == ("loading", [])


def test_an_exit_said_twice_counts_once(world):
    world.worker_says(hello(1))
    for _ in range(2):
        world.supervisor_says(Exited(1, "memory", "out of memory", ()))
    assert world.news() == [("came", 1), ("went", "memory"), ("died", 1, "memory")]
    state = world.link.state
    assert (state.deaths, state.last_cause, state.last_detail) == (1, "memory", "out of memory")


def test_an_old_lifes_exit_does_not_harm_the_current_one(world):
    world.worker_says(hello(2))
    world.news()
    world.supervisor_says(Exited(1, "hang", "", ()))
    assert (world.status, world.link.epoch, world.news()) == ("ready", 2, [("died", 1, "hang")])
    assert world.link.state.deaths == 1


def test_a_life_that_ends_while_loading_is_seen(world):
    world.supervisor_says(Starting(1, CALM))
    world.supervisor_says(Exited(1, "cannot_load", "no such file", ()))
    assert (world.status, world.link.state.last_cause) == ("restarting", "cannot_load")
    world.supervisor_says(Starting(2, CALM))
    assert world.status == "loading"


def test_the_time_of_the_next_start_is_kept_until_it_comes(world):
    world.supervisor_says(Exited(1, "crash", "", ()))
    world.clock.advance(1.0)
    world.supervisor_says(BackingOff(1, 4.0, CALM))
    assert world.link.state.retry_at == STARTED_S + 5.0
    assert world.news() == [("died", 1, "crash"), ("delayed", STARTED_S + 5.0)]
    world.supervisor_says(Starting(2, CALM))
    assert world.link.state.retry_at is None


def test_backing_off_means_nothing_while_a_worker_is_ready(world):
    world.worker_says(hello(2))
    world.supervisor_says(BackingOff(1, 4.0, CALM))
    assert (world.status, world.link.state.retry_at) == ("ready", None)


def test_a_status_is_as_old_as_its_beginning(world):
    world.supervisor_says(Starting(1, CALM))
    world.clock.advance(3.0)
    world.supervisor_says(Starting(1, CALM))
    assert world.link.state.since == STARTED_S
    world.worker_says(hello(1))
    assert world.link.state.since == STARTED_S + 3.0


# --- deaths, and the supervisor's care ----------------------------------------------------------------------


def test_whose_fault_a_death_was_is_said_once_what_ran_has_been_taken_back(world):
    world.worker_says(hello(1))
    world.news()
    world.supervisor_says(Exited(1, "memory", "", ()))
    assert world.news() == [("went", "memory"), ("died", 1, "memory")]


def test_a_death_is_judged_though_the_worker_could_not_be_reached_before(world):
    world.worker_says(hello(1))
    world.link._lose("unreachable", retire=False)
    world.news()
    world.supervisor_says(Exited(1, "hang", "", ()))
    assert world.news() == [("died", 1, "hang")]
    assert (world.status, world.link.state.deaths) == ("restarting", 1)


def test_how_a_worker_ended_is_told_though_it_could_not_be_reached_before(world):
    """Being out of reach is no cause, and often seen first: the wire notices before the supervisor does."""
    world.worker_says(hello(1))
    world.link._lose("unreachable", retire=False)
    world.supervisor_says(Exited(1, "memory", "it had no more", ()))
    assert (world.link.state.last_cause, world.link.state.last_detail) == ("memory", "it had no more")


def test_a_death_is_judged_once_however_often_it_is_said(world):
    world.worker_says(hello(1))
    world.supervisor_says(Exited(1, "crash", "", ()))
    world.news()
    world.supervisor_says(Exited(1, "crash", "", ()))
    assert world.news() == []


@pytest.mark.parametrize("word", [lambda care: Starting(1, care), lambda care: BackingOff(1, 1.0, care)])
def test_the_supervisors_care_is_passed_on_when_it_changes(world, word):
    world.supervisor_says(word(CALM))
    world.news()
    for care in (Care(1, "closed"), Care(1, "closed"), Care(1, "open"), CALM):
        world.supervisor_says(word(care))
    heard = [each for each in world.news() if each[0] == "care"]
    assert heard == [("care", 1, "closed"), ("care", 1, "open"), ("care", 0, "closed")]
    assert world.link.state.care == CALM


def test_care_is_heard_while_a_worker_is_ready_and_outlives_it(world):
    world.supervisor_says(Starting(1, Care(2, "half_open")))
    world.worker_says(hello(1))
    world.supervisor_says(Starting(1, Care(2, "closed")))
    assert (world.status, world.link.state.care) == ("ready", Care(2, "closed"))
    world.supervisor_says(Exited(1, "memory", "", ()))
    assert world.link.state.care == Care(2, "closed")


def test_when_the_breaker_opens_it_is_known_at_once_when_the_next_start_is_due(world):
    world.supervisor_says(Exited(1, "crash", "", ()))
    world.news()
    world.supervisor_says(BackingOff(1, 60.0, Care(0, "open")))
    assert world.news() == [("care", 0, "open"), ("delayed", STARTED_S + 60.0)]


# --- what can't be read, or comes from nobody ---------------------------------------------------------------


def test_frames_that_cannot_be_read_are_counted_and_change_nothing(world):
    world.worker_says(hello(1))
    world.news()
    for identity in (b"w-0-1", b"s-0", b"", b"x"):
        for frame in (b"", b"\xff", encode(step(1))[:-1]):
            world.link.take(identity, frame)
    assert world.link.dropped_frames == 12
    assert (world.news(), world.link.epoch) == ([], 1)


@pytest.mark.parametrize("identity", [b"", b"x", b"w", b"s", b"\x00\x01", b"W-0-1"])
@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_strangers_are_not_heard(world, identity, message):
    world.link.take(identity, encode(message))
    assert (world.status, world.news()) == ("absent", [])


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_supervisor_cannot_speak_for_a_worker_nor_a_worker_for_a_supervisor(world, message):
    world.worker_says(hello(3))
    world.news()
    if isinstance(message, Starting | Exited | BackingOff | Cancel | Park | Ping | Submit):
        world.link.take(b"w-0-3", encode(message))
    else:
        world.link.take(b"s-0", encode(message))
    assert (world.status, world.link.epoch, world.news()) == ("ready", 3, [])


EPOCHS = st.integers(1, 4)
SPEECHES = st.one_of(
    EPOCHS.map(lambda epoch: (f"w-0-{epoch}", hello(epoch))),
    EPOCHS.map(lambda epoch: (f"w-0-{epoch}", step(epoch))),
    EPOCHS.map(lambda epoch: ("s-0", Starting(epoch, CALM))),
    EPOCHS.map(lambda epoch: ("s-0", Exited(epoch, "crash", "", ()))),
    EPOCHS.map(lambda epoch: ("s-0", BackingOff(epoch, 1.0, CALM))),
)


@given(st.lists(SPEECHES, max_size=20))
def test_in_whatever_order_the_words_come_workers_come_and_go_in_turn_and_the_dead_stay_dead(speeches):
    world = World()
    exited = set()
    there = None
    for identity, message in speeches:
        world.link.take(identity.encode(), encode(message))
        for word in world.news():
            match word:
                case ("came", epoch):
                    assert there is None
                    assert epoch not in exited
                    there = epoch
                case ("went", _):
                    assert there is not None
                    there = None
                case Step():
                    assert word.epoch == there
        if isinstance(message, Exited):
            exited.add(message.epoch)
        assert world.link.epoch == there
        assert (world.status == "ready") == (there is not None)
        assert there not in exited
