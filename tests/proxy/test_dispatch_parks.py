"""The dispatcher when rows are parked for a higher lane: asked, given up, gone on with, or lost."""

import pytest

from proxy.admitted import AnswerEnded, RequestFailed, TokenCame
from shared.limits import PARKS_MAX
from shared.messages import Cancel, Park, Submit
from tests.proxy.dispatch_world import STOP_IDS, TWO_LANES, World, events, name_of

RIPE = 64


class Parking(World):
    """One row, which a lower answer has: it got `tokens` of them, and nothing else happened yet."""

    def __init__(self, tokens=RIPE, **settings):
        super().__init__(lanes=TWO_LANES, **settings)
        self.come(slots=1)
        self.low = self.admit("low", lane="lower", max_tokens=300)
        self.name = name_of(self.low)
        self.shown = []
        self.give(*range(100, 100 + tokens))
        self.sent()

    def give(self, *tokens, attempt=1):
        self.tokens(self.name, attempt, *tokens, index=len(self.shown))
        self.shown += tokens

    def upper(self, request_id="up", **request):
        return self.admit(request_id, lane="upper", **request)

    @property
    def low_runs(self):
        return self.low.sequences[0].running

    def sent_to_park(self, high):
        """Say whether the row was parked, and given to an upper answer right after that; no more was sent."""
        park, submit = self.sent()
        return park == Park(1, self.name) and isinstance(submit, Submit) and submit.sequence == name_of(high)

    def parks_counted(self):
        place = {"lane": "lower", "key_class": ""}
        return self.metrics.registry.get_sample_value("forebay_parks_total", place) or 0


@pytest.fixture
def world():
    return Parking()


@pytest.fixture
def parking(world):
    """A world where the lower answer was asked to give its row up, and an upper one was submitted."""
    world.high = world.upper()
    assert world.sent_to_park(world.high)
    return world


# --- asking -------------------------------------------------------------------------------------------------


def test_an_upper_answer_that_finds_no_row_has_a_ripe_lower_one_parked_and_follows_at_once(world):
    """In this order: the worker gives the row up before it hears of whoever takes it."""
    high = world.upper()
    park, submit = world.sent()
    assert park == Park(1, world.name)
    assert (submit.sequence, submit.attempt, submit.emitted_ids) == (name_of(high), 1, ())
    assert high.sequences[0].running
    assert world.low_runs, "tokens of it may still come"


def test_a_row_that_is_being_parked_holds_no_bytes_any_more(world):
    alone = World(lanes=TWO_LANES)
    alone.come(slots=1)
    alone.admit("up", lane="upper")
    world.upper()
    reserved_bytes = world.dispatcher.admission.reserved_bytes
    assert reserved_bytes == alone.dispatcher.admission.reserved_bytes > 0
    world.parked(world.name, 1, RIPE)
    assert world.dispatcher.admission.reserved_bytes == reserved_bytes


def test_a_row_is_not_parked_before_it_is_ripe_by_tokens():
    world = Parking(tokens=RIPE - 1)
    high = world.upper()
    assert world.sent() == []
    world.give(7)
    assert world.sent_to_park(high)


def test_a_row_is_not_parked_before_it_is_ripe_by_time():
    world = Parking(tokens=0)
    high = world.upper()
    world.clock.advance(1.99)
    world.dispatcher.tick()
    assert world.sent() == []
    world.clock.advance(0.02)
    world.dispatcher.tick()
    assert world.sent_to_park(high)


def test_an_equal_answer_parks_nobody(world):
    world.admit("other", lane="lower")
    assert world.sent() == []


def test_an_upper_row_is_parked_for_nobody():
    world = World(lanes=TWO_LANES)
    world.come(slots=1)
    running = world.admit("a", lane="upper", max_tokens=300)
    world.tokens(name_of(running), 1, *range(100))
    world.sent()
    world.admit("b", lane="upper")
    world.admit("c", lane="lower")
    world.clock.advance(10)
    world.dispatcher.tick()
    assert world.sent() == []


def test_a_row_is_asked_once_while_it_is_being_parked(parking):
    parking.upper("more")
    parking.give(7)
    parking.dispatcher.tick()
    assert parking.sent() == []


# --- given up, and gone on with -----------------------------------------------------------------------------


def test_an_answer_that_ignores_the_models_end_still_does_when_it_goes_on():
    world = World(lanes=TWO_LANES)
    world.come(slots=1)
    low = world.admit("low", lane="lower", max_tokens=300, ignores_eos=True)
    world.tokens(name_of(low), 1, *range(RIPE))
    high = world.admit("up", lane="upper")
    world.parked(name_of(low), 1, RIPE)
    world.finish(name_of(high), 1, 0)
    first, _, upper, again = world.sent()
    assert (first.stop_ids, upper.stop_ids, again.stop_ids) == ((), STOP_IDS, ())
    assert (again.sequence, len(again.emitted_ids)) == (name_of(low), RIPE)


def test_tokens_that_come_before_the_row_is_given_up_are_kept_and_shown(parking):
    parking.give(1, 2, 3)
    parking.parked(parking.name, 1, RIPE + 3)
    assert parking.low.sequences[0].interruptions == 0
    assert parking.low.sequences[0].emitted == parking.shown
    assert events(parking.low) == [TokenCame(0, token) for token in parking.shown]


def test_a_parked_answer_goes_on_after_the_upper_one_from_the_token_it_was_at(parking):
    parking.parked(parking.name, 1, RIPE)
    assert parking.sent() == []
    assert not parking.low_runs
    parking.finish(name_of(parking.high), 1, 0)
    (again,) = parking.sent()
    assert (again.sequence, again.attempt) == (parking.name, 2)
    assert again.emitted_ids == tuple(parking.shown)
    parking.progress(parking.name, ping=parking.link.ping + 1)
    assert parking.sent() == [], "the park is over"
    parking.give(8, attempt=2)
    parking.finish(parking.name, 2, RIPE + 1)
    assert events(parking.low) == [*(TokenCame(0, token) for token in parking.shown), AnswerEnded(0, "stop")]
    assert parking.low.attempts == 2
    assert parking.dispatcher.admission.reserved_bytes == 0


def test_a_parked_answer_is_queued_before_those_of_its_lane_that_never_ran(parking):
    parking.admit("waiting", lane="lower")
    parking.parked(parking.name, 1, RIPE)
    parking.finish(name_of(parking.high), 1, 0)
    assert [submit.sequence for submit in parking.sent()] == [parking.name]


def test_an_answer_whose_place_is_not_known_yet_does_not_go_on_though_the_row_is_free(parking):
    """Tokens of it may be on their way, and those are not to be computed twice."""
    parking.finish(name_of(parking.high), 1, 0)
    assert parking.sent() == []
    parking.give(1, 2)
    parking.parked(parking.name, 1, RIPE + 2)
    (again,) = parking.sent()
    assert (again.sequence, again.attempt, again.emitted_ids) == (parking.name, 2, tuple(parking.shown))


def test_steps_of_the_attempt_that_was_parked_are_not_heard_any_more(parking):
    parking.parked(parking.name, 1, RIPE)
    before = parking.dispatcher.stale_words
    parking.tokens(parking.name, 1, 5, index=RIPE)
    parking.parked(parking.name, 1, RIPE)
    parking.finish(parking.name, 1, RIPE)
    assert parking.dispatcher.stale_words == before + 3
    assert len(parking.low.sequences[0].emitted) == RIPE
    assert parking.dispatcher.live == 2


def test_parks_are_no_interruptions_and_after_the_last_one_the_row_is_kept():
    world = Parking(resumes_max=0)
    for park in range(1, PARKS_MAX + 1):
        high = world.upper(f"up{park}")
        assert world.sent_to_park(high)
        world.parked(world.name, park, len(world.shown))
        world.finish(name_of(high), 1, 0)
        world.give(*range(RIPE), attempt=park + 1)
        world.sent()
    world.upper("last")
    world.clock.advance(100)
    world.dispatcher.tick()
    assert world.sent() == []
    assert (world.low.sequences[0].parks, world.low.sequences[0].interruptions) == (PARKS_MAX, 0)
    assert world.dispatcher.resumed == 0
    world.die()
    assert isinstance(events(world.low)[-1], RequestFailed)


def test_an_answer_that_ends_before_it_hears_of_its_park_is_complete(parking):
    parking.finish(parking.name, 1, RIPE)
    assert events(parking.low)[-1] == AnswerEnded(0, "stop")
    parking.progress(name_of(parking.high), ping=parking.link.ping + 1)
    assert parking.sent() == []
    parking.finish(name_of(parking.high), 1, 0)
    assert parking.sent() == []
    assert (parking.dispatcher.live, parking.dispatcher.admission.reserved_bytes) == (0, 0)


def test_parks_are_counted_when_they_are_over(parking):
    assert parking.parks_counted() == 0
    parking.parked(parking.name, 1, RIPE)
    assert parking.parks_counted() == 1


def test_a_submit_says_its_lanes_rank_and_quantum():
    lanes = (
        TWO_LANES[0].model_copy(update={"prefill_quantum_ms": 70.0}),
        TWO_LANES[1].model_copy(update={"prefill_quantum_ms": 30.0}),
    )
    world = World(lanes=lanes)
    world.come(slots=2)
    world.admit("a", lane="lower")
    world.admit("b", lane="upper")
    assert [(each.rank, each.quantum_ms) for each in world.sent()] == [(1, 30.0), (0, 70.0)]


# --- what the wire loses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["park", "parked"])
def test_a_park_or_its_answer_that_was_lost_is_found_by_progress_and_counts_as_parked(parking, lost):
    """A worker that hasn't heard of the park holds the answer still, and must give it up now."""
    high, low = name_of(parking.high), parking.low.sequences[0]
    parking.progress(high, *([parking.name] if lost == "park" else []), ping=parking.link.ping + 1)
    assert parking.sent() == [Cancel(1, parking.name)]
    assert (low.running, low.parks, low.interruptions) == (False, 1, 0)
    assert parking.parks_counted() == 1
    parking.finish(high, 1, 0)
    (again,) = parking.sent()
    assert (again.sequence, again.attempt, again.emitted_ids) == (parking.name, 2, tuple(parking.shown))


def test_an_answer_whose_park_was_lost_goes_on_where_the_tokens_got_to_meanwhile(parking):
    """The row that should have been given up goes on giving tokens; until the Cancel they are good ones."""
    parking.give(1, 2, 3)
    parking.progress(parking.name, name_of(parking.high), ping=parking.link.ping + 1)
    parking.tokens(parking.name, 1, 4, index=RIPE + 3)
    parking.finish(name_of(parking.high), 1, 0)
    again = parking.sent()[-1]
    assert (again.sequence, again.emitted_ids) == (parking.name, tuple(parking.shown))


@pytest.mark.parametrize("behind", [0, 1])
def test_a_worker_that_cannot_have_seen_the_park_yet_is_waited_for(parking, behind):
    held = (parking.name, name_of(parking.high))
    parking.progress(*held, ping=parking.link.ping - behind)
    assert parking.sent() == []
    assert parking.low.sequences[0].parks == 0
    parking.parked(parking.name, 1, RIPE)
    assert parking.low.sequences[0].parks == 1


def test_a_parked_that_comes_after_its_loss_was_assumed_is_not_heard(parking):
    parking.progress(ping=parking.link.ping)
    parking.progress(name_of(parking.high), ping=parking.link.ping + 1)
    before = parking.dispatcher.stale_words
    parking.parked(parking.name, 1, RIPE)
    assert parking.dispatcher.stale_words == before + 1
    assert (parking.low.sequences[0].parks, parking.parks_counted()) == (1, 1)


def test_an_answer_that_had_all_its_tokens_when_its_park_was_lost_ends_and_runs_no_more(world):
    """Its row was full before the worker heard of the park, and the word of its end was lost."""
    high = world.upper()
    world.sent()
    world.give(*range(300 - RIPE))
    world.progress(name_of(high), ping=world.link.ping + 1)
    assert events(world.low)[-1] == AnswerEnded(0, "length")
    assert world.sent() == [Cancel(1, world.name)]
    world.finish(name_of(high), 1, 0)
    assert world.sent() == []
    assert (world.dispatcher.live, world.dispatcher.admission.reserved_bytes) == (0, 0)


@pytest.mark.parametrize("missing", [1, 5])
def test_a_row_given_up_at_a_token_that_never_came_is_run_again_from_what_did(parking, missing):
    parking.parked(parking.name, 1, RIPE + missing)
    assert parking.low.sequences[0].interruptions == 1
    assert parking.low.sequences[0].parks == 0
    assert parking.sent() == [Cancel(1, parking.name)]
    parking.finish(name_of(parking.high), 1, 0)
    assert parking.sent()[0].emitted_ids == tuple(parking.shown)


def test_a_park_that_nobody_asked_for_ends_no_answer(world):
    world.parked(world.name, 1, RIPE)
    cancel, submit = world.sent()
    assert cancel == Cancel(1, world.name)
    assert (submit.sequence, submit.attempt, submit.emitted_ids) == (world.name, 2, tuple(world.shown))


# --- clients that leave and workers that die meanwhile ------------------------------------------------------


def test_a_client_that_leaves_while_its_row_is_being_parked_takes_nothing_of_the_upper_one(parking):
    reserved_bytes = parking.dispatcher.admission.reserved_bytes
    parking.low.__exit__(None, None, None)
    assert parking.sent() == [Cancel(1, parking.name)]
    parking.parked(parking.name, 1, RIPE)
    assert parking.dispatcher.live == 1
    assert parking.dispatcher.admission.reserved_bytes == reserved_bytes


def test_a_client_that_leaves_while_its_answer_waits_parked_costs_the_worker_nothing(parking):
    parking.parked(parking.name, 1, RIPE)
    parking.low.__exit__(None, None, None)
    assert parking.sent() == []
    parking.finish(name_of(parking.high), 1, 0)
    assert parking.sent() == []
    assert (parking.dispatcher.live, parking.dispatcher.admission.reserved_bytes) == (0, 0)


def test_a_row_parked_for_a_client_that_left_meanwhile_goes_on_at_once(parking):
    parking.high.__exit__(None, None, None)
    assert parking.sent() == [Cancel(1, name_of(parking.high))]
    parking.parked(parking.name, 1, RIPE)
    (submit,) = parking.sent()
    assert (submit.sequence, submit.attempt) == (parking.name, 2)


def test_a_death_while_a_row_is_being_parked_is_an_interruption_and_the_park_is_forgotten(parking):
    parking.die()
    parking.come(2, slots=1)
    (submit,) = parking.sent()
    assert (submit.sequence, submit.attempt) == (name_of(parking.high), 2)
    parking.finish(submit.sequence, 2, 0)
    (again,) = parking.sent()
    assert isinstance(again, Submit)
    assert (again.epoch, again.attempt, again.emitted_ids) == (2, 2, tuple(parking.shown))
    low = parking.low.sequences[0]
    assert (low.interruptions, low.parks, low.park_pinged) == (1, 0, None)
    parking.progress(parking.name, ping=parking.link.ping + 1)
    assert parking.sent() == []


def test_a_death_while_an_answer_waits_parked_does_not_count_for_it():
    world = Parking(resumes_max=0)
    high = world.upper()
    world.parked(world.name, 1, RIPE)
    world.sent()
    world.die()
    assert isinstance(events(high)[-1], RequestFailed)
    world.come(2, slots=1)
    (submit,) = world.sent()
    assert (submit.sequence, submit.emitted_ids) == (world.name, tuple(world.shown))
    assert world.low.sequences[0].interruptions == 0
