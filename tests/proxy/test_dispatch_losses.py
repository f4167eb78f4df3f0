"""The dispatcher when something is lost: the worker, a client, or a word on the wire."""

import pytest

from proxy.admitted import AnswerEnded, RequestFailed, TokenCame
from shared.errors import ContextTooLong, WorkerCrashed
from shared.messages import Cancel, Submit
from tests.proxy.dispatch_world import World, events, name_of, ready_world


@pytest.fixture
def world():
    return ready_world()


# --- deaths -------------------------------------------------------------------------------------------------


def test_after_a_death_answers_go_on_from_the_token_they_stopped_at(world):
    admitted = world.admit()
    world.tokens(name_of(admitted), 1, 70, 71)
    world.die()
    world.sent()
    world.come(2)
    (submit,) = world.sent()
    assert (submit.epoch, submit.attempt, submit.emitted_ids) == (2, 2, (70, 71))
    world.tokens(name_of(admitted), 2, 72, index=2)
    world.finish(name_of(admitted), 2, 3)
    tokens = [TokenCame(0, token) for token in (70, 71, 72)]
    assert events(admitted) == [*tokens, AnswerEnded(0, "stop")]
    assert admitted.attempts == 2
    assert world.dispatcher.resumed == 1


def test_orphans_go_before_those_who_waited():
    world = World()
    world.come(slots=2)
    names = [name_of(world.admit(request_id)) for request_id in "abc"]
    world.die()
    world.sent()
    world.come(2, slots=3)
    assert [submit.sequence for submit in world.sent()] == names


def test_words_that_a_dead_worker_left_are_not_heard(world):
    admitted = world.admit()
    world.die()
    world.come(2)
    world.tokens(name_of(admitted), 1, 70)
    assert events(admitted) == []


def test_an_answer_is_interrupted_twice_and_no_more(world):
    admitted = world.admit()
    for epoch in (2, 3):
        world.die()
        assert events(admitted) == []
        world.come(epoch)
    world.die("memory")
    (failed,) = events(admitted)
    assert isinstance(failed, RequestFailed)
    assert isinstance(failed.refusal, WorkerCrashed)
    assert "3 times" in failed.refusal.message
    assert "memory" in failed.refusal.message
    assert 1 <= failed.refusal.retry_after_s <= 60
    assert (world.dispatcher.live, world.dispatcher.admission.queued) == (0, 0)


@pytest.mark.parametrize("resumes", [0, 1, 8])
def test_how_often_an_answer_is_resumed_is_the_operators_to_say(resumes):
    world = World(resumes_max=resumes)
    world.come()
    admitted = world.admit()
    for death in range(resumes + 1):
        assert events(admitted) == []
        world.die()
        world.come(death + 2)
    assert isinstance(events(admitted)[0], RequestFailed)


def test_a_death_does_not_count_for_those_who_only_waited():
    world = World(resumes_max=0)
    world.come(slots=1)
    one, other = world.admit("a"), world.admit("b")
    world.die()
    assert isinstance(events(one)[0], RequestFailed)
    assert events(other) == []
    world.come(2, slots=1)
    assert world.sent()[-1].sequence == name_of(other)


def test_an_answer_whose_end_alone_was_lost_is_complete(world):
    admitted = world.admit(max_tokens=2)
    world.tokens(name_of(admitted), 1, 70, 71)
    world.die()
    assert events(admitted) == [TokenCame(0, 70), TokenCame(0, 71), AnswerEnded(0, "length")]
    assert world.dispatcher.live == 0


def test_a_worker_that_comes_back_smaller_refuses_what_no_longer_fits(world):
    large = world.admit("large", prompts=((5,) * 30,), max_tokens=30)
    small = world.admit("small", prompts=((5,),), max_tokens=4)
    world.die()
    world.sent()
    world.come(2, budget_bytes=40)
    (failed,) = events(large)
    assert isinstance(failed.refusal, ContextTooLong)
    assert [submit.sequence for submit in world.sent()] == [name_of(small)]


def test_the_time_of_a_restart_is_what_newcomers_are_told():
    world = World(resumes_max=0)
    world.come()
    world.admit()
    world.die()
    world.clock.advance(30.0)
    world.come(2)
    admitted = world.admit()
    world.die()
    assert events(admitted)[0].refusal.retry_after_s == 20.0  # halfway from the 10 s unseen


# --- clients that leave -------------------------------------------------------------------------------------


def test_a_client_that_leaves_gives_its_row_and_bytes_back(world):
    with world.admit() as admitted:
        world.sent()
    assert world.sent() == [Cancel(1, name_of(admitted))]
    assert (world.dispatcher.live, world.dispatcher.admission.reserved_bytes) == (0, 0)
    assert world.dispatcher.emptied.is_set()


def test_leaving_twice_is_leaving_once(world):
    admitted = world.admit(choices=2)
    admitted.stop(0)
    world.sent()
    for _ in range(2):
        admitted.__exit__(None, None, None)
    assert world.sent() == [Cancel(1, name_of(admitted, 1))]


def test_a_client_that_leaves_the_queue_costs_the_worker_nothing():
    world = World()
    world.come(slots=1)
    world.admit("a")
    waiting = world.admit("b")
    world.sent()
    waiting.__exit__(None, None, None)
    assert world.sent() == []
    assert (world.dispatcher.live, world.dispatcher.admission.queued) == (1, 0)


def test_a_client_that_leaves_while_the_worker_is_gone_costs_the_next_one_nothing(world):
    with world.admit():
        world.die()
        world.sent()
    world.come(2)
    assert world.sent() == []
    assert (world.dispatcher.live, world.dispatcher.admission.reserved_bytes) == (0, 0)


def test_whoever_waits_starts_when_somebody_leaves():
    world = World()
    world.come(slots=1)
    with world.admit("a"):
        waiting = world.admit("b")
        world.sent()
    assert [type(message) for message in world.sent()] == [Cancel, Submit]
    assert waiting.sequences[0].running


def test_a_complete_answer_needs_no_cancel(world):
    with world.admit() as admitted:
        world.sent()
        world.finish(name_of(admitted), 1, 0)
    assert world.sent() == []


# --- what the wire lost -------------------------------------------------------------------------------------


def test_an_answer_that_the_worker_does_not_hold_is_run_again(world):
    admitted = world.admit()
    world.tokens(name_of(admitted), 1, 70)
    world.sent()
    world.progress(ping=world.link.ping + 1)
    cancel, submit = world.sent()
    assert cancel == Cancel(1, name_of(admitted))
    assert (submit.attempt, submit.emitted_ids) == (2, (70,))


@pytest.mark.parametrize("behind", [0, 1])
def test_a_worker_that_cannot_have_seen_the_submit_yet_has_lost_nothing(world, behind):
    """Its Progress echoes a ping that was sent before the submit."""
    world.admit()
    world.sent()
    world.progress(ping=world.link.ping - behind)
    assert world.sent() == []


def test_what_the_worker_holds_and_should_is_left_alone(world):
    admitted = world.admit()
    world.sent()
    world.progress(name_of(admitted), ping=world.link.ping + 5)
    assert world.sent() == []


def test_what_the_worker_holds_and_nobody_wants_is_cancelled(world):
    world.progress("gone", ping=0)
    assert world.sent() == [Cancel(1, "gone")]


def test_those_who_wait_are_not_missed(world):
    waiting = World()
    waiting.come(slots=1)
    held = waiting.admit("a")
    waiting.admit("b")
    waiting.sent()
    waiting.progress(name_of(held), ping=waiting.link.ping + 1)
    assert waiting.sent() == []
