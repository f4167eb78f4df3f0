"""The worker's loop, one turn at a time, with a false channel, a false engine and a clock moved by hand."""

import pytest

from shared.codec import encode
from shared.limits import PING_INTERVAL_S, PROGRESS_INTERVAL_S
from shared.messages import (
    Cancel,
    Failed,
    Finished,
    Hello,
    Ping,
    Progress,
    Step,
    StepRow,
    Submit,
)
from shared.sampling import Sampling
from tests.worker.turned_loop import (
    EPOCH,
    HELLO,
    KV_BYTES,
    MEMORY,
    QUANTUM_MS,
    SILENCE_S,
    Turned,
    met_loop,
    submit,
)


@pytest.fixture
def met() -> Turned:
    return met_loop()


# --- the proxy --------------------------------------------------------------------------------------------


def test_hello_is_said_again_every_second_until_somebody_answers() -> None:
    turned = Turned()
    turned.turn()
    turned.turn(after_s=0.5 * PING_INTERVAL_S)
    assert turned.channel.of(Hello) == [HELLO]
    turned.turn(after_s=0.5 * PING_INTERVAL_S)
    assert turned.channel.of(Hello) == [HELLO, HELLO]
    turned.turn(Ping(EPOCH, 1), after_s=PING_INTERVAL_S)
    turned.turn(after_s=PING_INTERVAL_S)
    assert turned.channel.of(Hello) == [HELLO, HELLO]


def test_hello_is_said_as_soon_as_somebody_is_connected() -> None:
    """A socket that connects takes its time; what is sent before is dropped, and a second would be lost."""
    turned = Turned()
    turned.channel.connected = False
    turned.turn(times=2)
    turned.channel.connected = True
    turned.turn()
    assert turned.channel.of(Hello) == [HELLO]
    turned.turn()
    assert turned.channel.of(Hello) == [HELLO]
    while_connecting_s, once_connected_s = turned.channel.waited_s[0], turned.channel.waited_s[-1]
    assert while_connecting_s < once_connected_s


def test_a_proxy_that_is_silent_for_three_pings_is_given_up_with_all_its_sequences(met: Turned) -> None:
    met.turn(submit("runs", max_tokens=90), submit("prefills", range(45)), submit("waits"))
    met.turn(after_s=SILENCE_S)
    assert met.channel.of(Hello) == []
    assert met.engine.dropped == []
    met.turn(after_s=0.01)
    assert met.channel.of(Hello) == [HELLO]
    assert sorted(met.engine.dropped) == ["prefills", "runs"]
    assert met.reports[-1].running == ()
    told = len(met.channel.of(Step))
    met.turn(times=5)
    assert len(met.channel.of(Step)) == told, "an orphan speaks"


def test_pings_keep_sequences_alive(met: Turned) -> None:
    met.turn(submit("a", max_tokens=90))
    for number in range(10):
        met.turn(Ping(EPOCH, number), after_s=0.9 * SILENCE_S)
    assert met.channel.of(Hello) == []
    assert met.reports[-1].running == ("a",)


def test_a_new_proxy_is_served_after_the_old_ones_orphans_were_dropped(met: Turned) -> None:
    met.turn(submit("old", max_tokens=90))
    met.turn(after_s=2 * SILENCE_S)
    met.turn(Ping(EPOCH, 1), submit("new", max_tokens=1), times=3)
    assert met.engine.dropped == ["old", "new"]
    assert met.channel.of(Finished) == [Finished(EPOCH, "new", 1, 1, "length")]


# --- progress ---------------------------------------------------------------------------------------------


def test_the_supervisor_hears_of_every_turn(met: Turned) -> None:
    met.reports.clear()
    met.turn(times=7)
    assert len(met.reports) == 7


def test_the_proxy_hears_of_progress_once_a_second(met: Turned) -> None:
    met.turn(after_s=PROGRESS_INTERVAL_S)
    for _ in range(9):
        met.turn(after_s=0.1 * PROGRESS_INTERVAL_S)
    assert len(met.channel.of(Progress)) == 1
    met.turn(after_s=0.2 * PROGRESS_INTERVAL_S)
    assert len(met.channel.of(Progress)) == 2


def test_progress_names_what_runs_and_echoes_the_last_ping(met: Turned) -> None:
    met.turn(Ping(EPOCH, 41), submit("a"), submit("b", range(20)), submit("c"), after_s=PROGRESS_INTERVAL_S)
    [progress] = met.channel.of(Progress)
    assert progress == met.reports[-1]
    assert progress == Progress(
        epoch=EPOCH,
        step=0,
        phase="prefill",
        expected_ms=20.0,
        ping=41,
        running=("a", "b", "c"),
        kv_bytes=KV_BYTES,
        budget_bytes=HELLO.budget_bytes,
        tokens=0,
        answers=0,
        wants_recycle=False,
        memory=MEMORY,
    )


def test_progress_says_what_the_turn_is_about_before_it_is_done(met: Turned) -> None:
    met.turn(submit("a", (1,) * 60, max_tokens=2))
    assert met.reports[-1].phase == "prefill"
    met.engine.problem = RuntimeError("the device is gone")
    with pytest.raises(RuntimeError):
        met.turn()
    assert met.reports[-1].phase == "prefill"
    assert met.reports[-1].expected_ms == 40.0  # what the turn before had planned may still be under way


def test_phases_follow_the_work(met: Turned) -> None:
    met.reports.clear()
    met.turn(submit("a", (1,) * 60, max_tokens=3), times=6)
    phases = [report.phase for report in met.reports]
    assert phases == ["prefill", "prefill", "decode", "decode", "decode", "idle"]


# --- sequences --------------------------------------------------------------------------------------------


def test_all_rows_tokens_of_a_step_come_in_one_message_and_then_who_has_ended(met: Turned) -> None:
    met.turn(submit("a", max_tokens=1), submit("b", max_tokens=2), times=4)
    both, last = met.channel.of(Step)
    assert both.rows == (StepRow("a", 1, 0, 7), StepRow("b", 1, 0, 7))
    assert last.rows == (StepRow("b", 1, 1, 7),)
    assert both.step < last.step
    kinds = [type(message) for message in met.channel.sent if not isinstance(message, Progress)]
    assert kinds == [Step, Finished, Step, Finished]
    assert met.channel.of(Finished)[0] == Finished(EPOCH, "a", 1, 1, "length")


def test_a_step_is_read_only_when_the_next_one_is_under_way(met: Turned) -> None:
    met.turn(submit("a", max_tokens=3))
    assert (met.engine.under_way, met.channel.of(Step)) == (1, [])
    met.turn()
    assert (met.engine.under_way, len(met.channel.of(Step))) == (1, 1)
    met.turn(times=2)
    assert (met.engine.under_way, len(met.channel.of(Step))) == (0, 3)


def test_a_cancelled_sequence_is_dropped_and_says_no_more(met: Turned) -> None:
    met.turn(submit("a", max_tokens=50), times=3)
    told = len(met.channel.of(Step))
    met.turn(Cancel(EPOCH, "a"), times=3)
    assert met.engine.dropped == ["a"]
    assert len(met.channel.of(Step)) == told
    assert met.channel.of(Finished) == []


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (submit("bad", range(40), max_tokens=61), "101 tokens exceed the context of 100"),
        (submit("bad", (1, 50, 2)), "outside the vocabulary of 50"),
    ],
)
def test_a_sequence_that_cannot_run_fails_alone(met: Turned, bad: Submit, words: str) -> None:
    met.turn(submit("good", range(40), max_tokens=3), bad, times=6)
    [failed] = met.channel.of(Failed)
    assert (failed.sequence, failed.attempt) == ("bad", 1)
    assert words in failed.message
    assert [finished.sequence for finished in met.channel.of(Finished)] == ["good"]
    assert met.engine.dropped == ["good"]


def test_a_sequence_that_just_fits_the_context_runs(met: Turned) -> None:
    met.turn(submit("a", range(40), max_tokens=60), times=80)
    assert met.channel.of(Finished) == [Finished(EPOCH, "a", 1, 60, "length")]


def test_a_resumed_sequence_is_measured_by_what_is_still_to_come(met: Turned) -> None:
    met.turn(Submit(EPOCH, "a", 2, (1,) * 40, (2,) * 59, 60, (), Sampling(), 0, QUANTUM_MS), times=10)
    assert [step.rows for step in met.channel.of(Step)] == [(), (), (StepRow("a", 2, 59, 7),)]
    assert met.channel.of(Finished) == [Finished(EPOCH, "a", 2, 60, "length")]


def test_frames_that_are_no_words_of_this_life_are_counted_and_dropped(met: Turned) -> None:
    met.channel.incoming += [b"", b"\xc1garbage", encode(submit("zombie", epoch=EPOCH - 1))]
    met.turn(submit("a"))
    assert (met.inbox.malformed, met.inbox.foreign) == (2, 1)
    assert met.reports[-1].running == ("a",)


def test_tokens_and_answers_are_counted_and_a_stop_token_is_no_token(met: Turned) -> None:
    stops = Submit(EPOCH, "stops", 1, (1,), (), 9, (7,), Sampling(), 0, QUANTUM_MS)
    cancelled = submit("cancelled", max_tokens=50)
    met.turn(submit("a", max_tokens=3), stops, times=6)
    assert (met.reports[-1].tokens, met.reports[-1].answers) == (3, 2)
    met.turn(cancelled, times=2)
    met.turn(Cancel(EPOCH, "cancelled"), times=3)
    assert (met.reports[-1].tokens, met.reports[-1].answers) == (4, 2)


# --- the planned end --------------------------------------------------------------------------------------


def test_asked_to_end_the_loop_reads_what_is_under_way_and_sends_it(met: Turned) -> None:
    met.turn(submit("a", max_tokens=50), times=3)
    assert met.engine.under_way == 1
    told = len(met.channel.of(Step))
    met.loop.run(lambda: True)
    assert met.engine.under_way == 0
    assert len(met.channel.of(Step)) == told + 1
    assert met.reports[-1].running == ("a",), "nothing is cancelled: it goes on in the next life"


def test_asked_to_end_in_the_middle_of_a_turn_the_loop_launches_nothing_more(met: Turned) -> None:
    met.turn(submit("a", max_tokens=50))
    asked: list[bool] = []

    def ask_after_one_turn() -> bool:
        asked.append(len(asked) > 0)
        return asked[-1]

    met.loop.run(ask_after_one_turn)
    assert met.engine.calls == ["launch", "launch", "read", "read"]


# --- when to sleep ----------------------------------------------------------------------------------------


def test_an_idle_loop_waits_for_the_proxy(met: Turned) -> None:
    met.channel.waits = 0
    met.turn(times=3)
    assert met.channel.waits == 3


def test_a_busy_loop_never_waits(met: Turned) -> None:
    met.channel.waits = 0
    met.turn(submit("a", (1,) * 60, max_tokens=3), times=5)
    assert met.channel.waits == 0


def test_a_sequence_that_waits_for_a_slot_starts_in_the_turn_after_one_is_free() -> None:
    """Between the last token of one row and the first of the next the loop has work, and doesn't sleep."""
    turned = Turned(slots=1)
    turned.ping()
    turned.channel.waits = 0
    turned.turn(submit("a", max_tokens=2), submit("b", max_tokens=2), times=6)
    assert [finished.sequence for finished in turned.channel.of(Finished)] == ["a", "b"]
    assert turned.channel.waits == 0


def test_an_exception_of_the_engine_ends_the_loop(met: Turned) -> None:
    met.engine.problem = RuntimeError("the device is gone")
    met.channel.say(submit("a"))
    with pytest.raises(RuntimeError, match="the device is gone"):
        met.loop.run(lambda: False)


def test_a_steps_tokens_are_sent_before_the_next_prefill_begins(met: Turned) -> None:
    """No token waits for a prefill; without one, the next step is launched before the last is read."""
    met.turn(submit("a", (1,), 9), times=3)
    assert met.engine.calls == ["launch", "launch", "read", "launch", "read"]
    met.engine.calls.clear()
    met.turn(submit("b", (1, 2, 3), 9))
    assert met.engine.calls == ["read", "prefill", "launch"]
