"""What the loop makes of beginnings that are kept: it begins behind them, waits for the disk, and tells."""

import dataclasses

import pytest

from shared.limits import PREFIX_NEWS_MAX, PROGRESS_INTERVAL_S
from shared.messages import Cancel, Hello, Message, Park, Parked, Ping, PrefillShare, Prefixes, Progress, Step
from shared.readings import PrefixReading
from tests.worker.test_scheduler import names
from tests.worker.turned_loop import EPOCH, SILENCE_S, Turned, met_loop, submit
from worker.engine.batch_engine import PrefillResult


@pytest.fixture
def met() -> Turned:
    return met_loop()


def shares(turned: Turned) -> list[PrefillShare]:
    return [share for step in turned.channel.of(Step) for share in step.prefills]


# --- beginning --------------------------------------------------------------------------------------------


def test_what_is_kept_of_a_prompt_is_not_prefilled_again(met: Turned) -> None:
    met.engine.kept = {"a": 50}
    met.turn(submit("a", (1,) * 61), times=2)
    assert shares(met) == [PrefillShare("a", 1, 10, 3.0, cached=50)]


def test_how_much_was_there_is_told_with_the_first_piece_only(met: Turned) -> None:
    met.engine.kept = {"a": 5}
    met.turn(submit("a", (1,) * 91), times=4)
    assert [(share.tokens, share.cached) for share in shares(met)] == [(40, 5), (40, 0), (5, 0)]


def test_what_is_all_there_decodes_at_once_and_is_told_without_a_piece(met: Turned) -> None:
    met.engine.kept = {"a": 60}
    met.turn(submit("a", (1,) * 61), times=2)
    assert met.engine.calls == ["launch", "launch", "read"]
    [step] = met.channel.of(Step)
    assert step.prefills == (PrefillShare("a", 1, 0, 0.0, cached=60),)
    assert names(met.engine.steps[0]) == ["a"]
    met.turn(times=4)
    assert len(shares(met)) == 1


def test_of_a_prompt_of_one_token_there_is_nothing_to_tell(met: Turned) -> None:
    met.turn(submit("a"), times=6)
    assert met.engine.begun == ["a"]
    assert shares(met) == []


def test_each_attempt_tells_what_it_found(met: Turned) -> None:
    met.turn(submit("a", (1,) * 31, max_tokens=9))
    met.turn(Park(EPOCH, "a"))
    met.engine.kept = {"a": 20}
    met.turn(dataclasses.replace(submit("a", (1,) * 31, max_tokens=9), attempt=2), times=2)
    assert [(share.attempt, share.tokens, share.cached) for share in shares(met)] == [(1, 30, 0), (2, 10, 20)]


def test_what_was_there_is_told_before_a_sequence_is_parked(met: Turned) -> None:
    met.engine.kept = {"a": 60}
    met.turn(submit("a", (1,) * 61, max_tokens=9))
    met.turn(Park(EPOCH, "a"))
    told = [message for message in met.channel.sent if isinstance(message, Step | Parked)]
    assert [type(message) for message in told] == [Step, Parked]


def test_nobody_begins_while_a_step_is_under_way_and_who_left_is_dropped_before(met: Turned) -> None:
    """Rows may be copied from, and what those hold who left is room for those who come."""
    met.turn(submit("a", max_tokens=9), submit("b", max_tokens=9), times=3)
    assert met.engine.under_way
    dropped_before: list[list[str]] = []
    begin = met.engine.begin
    met.engine.begin = lambda one: (dropped_before.append([*met.engine.dropped]), begin(one))[1]  # type: ignore[method-assign]  # for this one
    met.turn(Cancel(EPOCH, "a"), submit("c"))
    assert met.engine.begun == ["a", "b", "c"]
    assert dropped_before == [["a"]]


def test_a_newcomer_during_a_lower_lanes_prefill_begins_behind_what_is_kept_too(met: Turned) -> None:
    prefill, words = met.engine.prefill, [submit("chat", (1,) * 31)]

    def prefill_and_hear(chunks: object) -> PrefillResult:
        while words:
            met.channel.say(words.pop())
        return prefill(chunks)  # type: ignore[arg-type]  # they are chunks

    met.engine.prefill = prefill_and_hear  # type: ignore[method-assign]  # for this one
    met.engine.kept = {"chat": 30}
    met.turn(dataclasses.replace(submit("low", (1,) * 31), rank=1))
    assert met.engine.calls == ["prefill", "launch"]
    assert names(met.engine.steps[-1]) == ["low", "chat"]


def test_prompts_that_begin_alike_are_computed_one_after_the_other() -> None:
    turned = Turned(share_tokens=64)
    turned.ping()
    turned.turn(submit("a", (1,) * 91), submit("b", (1,) * 91))
    assert turned.engine.begun == ["a"]
    turned.turn(times=2)
    assert turned.engine.begun == ["a", "b"]


# --- a death while it begins ------------------------------------------------------------------------------


def test_whose_beginning_is_made_ready_is_written_down_before(met: Turned) -> None:
    met.turn(submit("row", max_tokens=90), times=2)
    begin = met.engine.begin

    def begin_or_die(sequence: object) -> None:
        begin(sequence)  # type: ignore[arg-type]  # it is one
        raise MemoryError("a copy too many")

    met.engine.begin = begin_or_die  # type: ignore[assignment]  # for this one
    met.channel.say(submit("new", (1,) * 31))
    with pytest.raises(MemoryError):
        met.loop.turn()
    assert [(row.sequence, row.prefilling) for row in met.manifest[-1]] == [("new", True)]


# --- while the disk is read -------------------------------------------------------------------------------


def test_while_only_the_disk_is_waited_for_the_loop_sleeps_a_moment_at_a_time(met: Turned) -> None:
    met.engine.kept = {"a": None}
    met.channel.waited_s.clear()
    met.turn(submit("a", (1,) * 31), times=5)
    assert met.engine.calls == []
    assert met.reports[-1].running == ("a",)
    assert met.reports[-1].phase == "idle"
    assert len(met.channel.waited_s) == 5
    assert 0 < max(met.channel.waited_s) <= 0.01
    assert met.manifest[-1] == [], "nothing runs, and so nothing is to blame"


def test_as_soon_as_it_is_read_the_sequence_begins_behind_it(met: Turned) -> None:
    met.engine.kept = {"a": None}
    met.turn(submit("a", (1,) * 31), times=3)
    met.engine.kept = {"a": 20}
    met.channel.waits = 0
    met.turn(times=2)
    assert met.channel.waits == 0
    assert shares(met) == [PrefillShare("a", 1, 10, 3.0, cached=20)]
    met.turn(times=9)
    assert met.channel.waited_s[-1] > 0.01, "nobody waits for the disk any more"


def test_rows_go_on_while_another_one_waits_for_the_disk(met: Turned) -> None:
    met.turn(submit("row", max_tokens=90))
    met.engine.kept = {"a": None}
    met.channel.waits = 0
    told = len(met.channel.of(Step))
    met.turn(submit("a", (1,) * 31), times=6)
    assert len(met.channel.of(Step)) == told + 6
    assert met.channel.waits == 0


def test_a_prompt_in_pieces_is_not_slowed_down_by_one_that_waits_for_the_disk(met: Turned) -> None:
    met.engine.kept = {"a": None}
    met.channel.waits = 0
    met.turn(submit("a", (1,) * 31), submit("b", (1,) * 91), times=3)
    assert met.channel.waits == 0
    assert [share.sequence for share in shares(met)][:2] == ["b", "b"]


def test_one_that_waits_for_the_disk_can_be_cancelled(met: Turned) -> None:
    met.engine.kept = {"a": None}
    met.turn(submit("a", (1,) * 31))
    met.turn(Cancel(EPOCH, "a"), times=2)
    assert met.engine.dropped == ["a"]
    assert met.reports[-1].running == ()


# --- what is told -----------------------------------------------------------------------------------------


def told(turned: Turned) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(message.added, message.gone) for message in turned.channel.of(Prefixes)]


def test_what_is_kept_anew_and_what_no_more_is_told_once(met: Turned) -> None:
    met.engine.news = ([1, 2, 3], [4])
    met.turn(times=3)
    assert told(met) == [((1, 2, 3), (4,))]
    assert {message.epoch for message in met.channel.of(Prefixes)} == {EPOCH}


@pytest.mark.parametrize("gone", [0, 1, 2 * PREFIX_NEWS_MAX + 1])
def test_more_news_than_a_message_holds_come_in_several(met: Turned, gone: int) -> None:
    news = [*range(PREFIX_NEWS_MAX + 2)], [*range(9, 9 + gone)]
    met.engine.news = news
    met.turn()
    assert len(told(met)) == max(2, -(-gone // PREFIX_NEWS_MAX))
    assert [name for added, _ in told(met) for name in added] == news[0]
    assert [name for _, went in told(met) for name in went] == news[1]


def test_after_each_hello_all_is_told_anew(met: Turned) -> None:
    met.engine.names, met.engine.news = [5, 6], ([6], [7])
    met.turn(after_s=2 * SILENCE_S)
    met.turn(after_s=SILENCE_S)
    said: list[Message] = [each for each in met.channel.sent if isinstance(each, Hello | Prefixes)]
    assert [type(message) for message in said] == [Hello, Prefixes] * 2
    assert told(met) == [((5, 6), ())] * 2


def test_a_hello_that_nobody_could_hear_is_followed_by_nothing(met: Turned) -> None:
    met.engine.names = [5, 6]
    met.channel.connected = False
    met.turn(after_s=2 * SILENCE_S)
    met.channel.connected = True
    met.turn(Ping(EPOCH, 2))
    assert told(met) == []


def test_progress_says_how_much_is_kept(met: Turned) -> None:
    met.engine.prefixes = PrefixReading(kept_bytes=3, shared_bytes=2, blocks=1)
    met.turn(after_s=PROGRESS_INTERVAL_S)
    assert met.channel.of(Progress)[-1].prefixes == met.engine.prefixes
