"""The dispatcher: every token once and in order, each request's places, and who is let in."""

import pytest

from proxy.admitted import AnswerEnded, TokenCame
from shared.errors import Draining, InvalidRequest, Loading, Overloaded
from shared.messages import Cancel, Failed, RowLogprobs, Submit
from tests.proxy.dispatch_world import STOP_IDS, World, events, name_of, ready_world


@pytest.fixture
def world():
    return ready_world()


# --- tokens -------------------------------------------------------------------------------------------------


def test_an_answer_is_submitted_whole_and_its_tokens_come_in_order(world):
    admitted = world.admit(prompts=((5, 6, 7),), max_tokens=3, seed=11)
    (submit,) = world.sent()
    assert submit == Submit(
        1, name_of(admitted), 1, (5, 6, 7), (), 3, STOP_IDS, admitted.measured.parsed.sampling, 0, 250.0
    )
    world.tokens(name_of(admitted), 1, 70, 71, 72)
    world.finish(name_of(admitted), 1, 3, "length")
    assert events(admitted) == [*(TokenCame(0, token) for token in (70, 71, 72)), AnswerEnded(0, "length")]
    assert (world.dispatcher.live, world.dispatcher.admission.reserved_bytes) == (0, 0)


def test_one_step_feeds_every_row(world):
    one, other = world.admit("a"), world.admit("b")
    world.step((name_of(one), 1, 0, 70), (name_of(other), 1, 0, 80))
    assert (events(one), events(other)) == ([TokenCame(0, 70)], [TokenCame(0, 80)])


def test_a_token_that_comes_twice_is_shown_once(world):
    admitted = world.admit()
    world.tokens(name_of(admitted), 1, 70, 71)
    world.tokens(name_of(admitted), 1, 70, 71)
    assert events(admitted) == [TokenCame(0, 70), TokenCame(0, 71)]
    assert world.dispatcher.stale_words == 2


def test_a_tokens_log_probabilities_come_with_it_and_only_with_it(world):
    one, other = world.admit("a"), world.admit("b")
    record = RowLogprobs(1, -0.5, (80, 81), (-0.5, -1.5))
    world.step((name_of(one), 1, 0, 70), (name_of(other), 1, 0, 80), logprobs=[record])
    assert (events(one), events(other)) == ([TokenCame(0, 70)], [TokenCame(0, 80, record)])


def test_log_probabilities_of_a_token_that_comes_twice_or_after_a_resume_come_once(world):
    admitted = world.admit()
    first, second = RowLogprobs(0, -0.25, (), ()), RowLogprobs(0, -0.5, (), ())
    for _ in range(2):
        world.step((name_of(admitted), 1, 0, 70), logprobs=[first])
    world.die()
    world.come(2)
    world.step((name_of(admitted), 2, 0, 70), logprobs=[first])
    world.step((name_of(admitted), 2, 1, 71), logprobs=[second])
    assert events(admitted) == [TokenCame(0, 70, first), TokenCame(0, 71, second)]


def test_a_stale_row_keeps_its_log_probabilities_from_its_neighbours(world):
    admitted = world.admit()
    records = [RowLogprobs(place, -1.0 - place, (), ()) for place in (1, 0)]
    world.step(("nobody", 1, 0, 60), (name_of(admitted), 1, 0, 70), logprobs=records)
    assert events(admitted) == [TokenCame(0, 70, records[0])]


@pytest.mark.parametrize(("known", "attempt"), [(True, 2), (False, 1)])
def test_words_of_other_attempts_and_of_unknown_answers_are_not_heard(world, known, attempt):
    admitted = world.admit()
    name = name_of(admitted) if known else "nobody"
    world.tokens(name, attempt, 70)
    world.finish(name, attempt, 0)
    world.dispatcher.failed(Failed(1, name, attempt, "no"))
    assert events(admitted) == []
    assert world.dispatcher.live == 1


@pytest.mark.parametrize(("ignores_eos", "stop_ids"), [(False, STOP_IDS), (True, ())])
def test_what_may_end_an_answer_is_the_same_after_a_worker_s_death(world, ignores_eos, stop_ids):
    admitted = world.admit(ignores_eos=ignores_eos)
    world.tokens(name_of(admitted), 1, STOP_IDS[0] + 1)
    world.die()
    world.come(2)
    first, again = world.sent()
    assert (first.stop_ids, again.stop_ids, again.emitted_ids) == (stop_ids, stop_ids, (STOP_IDS[0] + 1,))


def test_more_tokens_than_were_asked_for_are_not_shown(world):
    admitted = world.admit(max_tokens=2)
    world.tokens(name_of(admitted), 1, 70, 71, 72)
    world.die()
    assert events(admitted) == [TokenCame(0, 70), TokenCame(0, 71), AnswerEnded(0, "length")]


def test_a_gap_has_the_answer_run_again_from_what_it_has(world):
    admitted = world.admit()
    world.sent()
    world.tokens(name_of(admitted), 1, 70, 71)
    world.tokens(name_of(admitted), 1, 73, index=3)
    cancel, submit = world.sent()
    assert cancel == Cancel(1, name_of(admitted))
    assert (submit.attempt, submit.emitted_ids) == (2, (70, 71))
    world.tokens(name_of(admitted), 1, 72, index=2)
    world.tokens(name_of(admitted), 2, 74, index=2)
    assert events(admitted) == [TokenCame(0, token) for token in (70, 71, 74)]


@pytest.mark.parametrize("index", [0, 1, 3])
def test_an_end_at_another_token_than_the_next_has_the_answer_run_again(world, index):
    admitted = world.admit()
    world.sent()
    world.tokens(name_of(admitted), 1, 70, 71)
    world.finish(name_of(admitted), 1, index)
    _, submit = world.sent()
    assert (submit.attempt, submit.emitted_ids) == (2, (70, 71))
    assert events(admitted) == [TokenCame(0, 70), TokenCame(0, 71)]


def test_what_the_worker_cannot_run_is_refused_with_its_words(world):
    admitted = world.admit()
    world.dispatcher.failed(Failed(1, name_of(admitted), 1, "no such token"))
    (failed,) = events(admitted)
    assert isinstance(failed.refusal, InvalidRequest)
    assert failed.refusal.message == "no such token"
    assert (world.dispatcher.live, world.dispatcher.admission.reserved_bytes) == (0, 0)


# --- several answers ----------------------------------------------------------------------------------------


def test_two_answers_to_each_of_two_prompts_are_four_sequences(world):
    admitted = world.admit(prompts=((5,), (6,)), choices=2, seed=3)
    submits = world.sent()
    assert [submit.prompt_ids for submit in submits] == [(5,), (5,), (6,), (6,)]
    assert [submit.sampling.choice for submit in submits] == [0, 1, 0, 1]
    assert {submit.sampling.seed for submit in submits} == {3}
    assert [sequence.answer for sequence in admitted.sequences] == [0, 1, 2, 3]
    for answer, submit in enumerate(submits):
        world.tokens(submit.sequence, 1, 70 + answer)
    assert events(admitted) == [TokenCame(answer, 70 + answer) for answer in range(4)]


def test_requests_of_the_same_id_do_not_meet(world):
    """The id is the client's to choose."""
    one, other = world.admit("same"), world.admit("same")
    assert name_of(one) != name_of(other)
    world.tokens(name_of(one), 1, 70)
    world.tokens(name_of(other), 1, 80)
    assert (events(one), events(other)) == ([TokenCame(0, 70)], [TokenCame(0, 80)])


def test_a_stopped_answer_leaves_its_brothers_alone(world):
    admitted = world.admit(choices=2)
    world.sent()
    admitted.stop(0)
    assert world.sent() == [Cancel(1, name_of(admitted, 0))]
    world.tokens(name_of(admitted, 0), 1, 70)
    world.tokens(name_of(admitted, 1), 1, 71)
    assert events(admitted) == [TokenCame(1, 71)]


def test_a_request_finds_places_for_all_its_answers_or_none():
    world = World(queue_places=3)
    world.come(slots=1)
    world.admit("runs")
    world.sent()
    world.admit("two", choices=2)
    with pytest.raises(Overloaded):
        world.admit("two more", choices=2)
    assert (world.dispatcher.live, world.dispatcher.admission.queued) == (3, 2)
    world.admit("one", choices=1)
    assert (world.dispatcher.live, world.dispatcher.admission.queued) == (4, 3)


# --- the door -----------------------------------------------------------------------------------------------


def test_nothing_is_taken_before_the_first_worker_came():
    world = World()
    with pytest.raises(Loading) as refusal:
        world.admit()
    assert refusal.value.retry_after_s == 10.0
    assert world.dispatcher.live == 0


def test_while_a_worker_restarts_requests_wait(world):
    world.die()
    admitted = world.admit()
    assert (world.dispatcher.admission.queued, admitted.queue_ms, admitted.attempts) == (1, 0, 0)
    world.clock.advance(2.5)
    world.come(2)
    assert (world.dispatcher.admission.queued, admitted.queue_ms, admitted.attempts) == (0, 2500, 1)


def test_a_server_that_goes_down_takes_nothing_and_finishes_what_it_has(world):
    admitted = world.admit()
    world.dispatcher.draining = True
    with pytest.raises(Draining):
        world.admit()
    assert not world.dispatcher.emptied.is_set()
    world.tokens(name_of(admitted), 1, 70)
    world.finish(name_of(admitted), 1, 1)
    assert events(admitted)[-1] == AnswerEnded(0, "stop")
    assert world.dispatcher.emptied.is_set()
