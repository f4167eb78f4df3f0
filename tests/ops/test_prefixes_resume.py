"""What a worker tells of prefills, and what is made of it after a kill."""

import json

import pytest

from ops.prefixes.client import Said
from ops.prefixes.plan import NotMeasured
from ops.prefixes.resume import resumed
from ops.prefixes.telling_worker import Told, read_told, telling
from shared.messages import Submit
from shared.sampling import Sampling
from tests.worker.workbench import FalseChannel
from worker.plan import Chunk
from worker.sequence import Sequence

KILLED_AT = 100.0


def told(at: float, attempt: int = 2, cached: int = 0, tokens: int = 0) -> Told:
    return Told(at, "s", attempt, 301, cached, tokens)


def answer(*texts_at: float) -> Said:
    return Said(90.0, texts_at=list(texts_at))


def test_what_was_prefilled_after_a_kill_counts_and_what_came_before_does_not():
    lines = [
        told(91.0, attempt=1),
        told(92.0, attempt=1, tokens=290),
        told(103.0, cached=256),
        told(104.0, cached=256, tokens=30),
        told(105.0, cached=256, tokens=14),
    ]
    # The text at 100.2 had left the old worker before it died.
    assert resumed(answer(95.0, 100.2, 106.5, 107.0), KILLED_AT, lines) == {
        "length_tokens": 300.0,
        "cached_tokens": 256.0,
        "computed_tokens": 44.0,
        "tail_tokens": 300 % 64,
        "allowed_tokens": 64 + 300 % 64,
        "began_s": 3.0,
        "next_token_s": 6.5,
        "from_begin_s": 3.5,
    }


def test_of_several_attempts_after_a_kill_the_last_one_counts():
    lines = [told(103.0), told(104.0, tokens=100), told(108.0, attempt=3), told(109.0, attempt=3, tokens=300)]
    found = resumed(answer(110.0), KILLED_AT, lines)
    assert (found["computed_tokens"], found["next_token_s"]) == (300.0, 10.0)


def test_an_answer_that_did_not_go_on_is_said_in_words():
    with pytest.raises(NotMeasured, match="had ended"):
        resumed(answer(95.0), KILLED_AT, [told(91.0, attempt=1)])
    with pytest.raises(NotMeasured, match="no text came"):
        resumed(answer(95.0), KILLED_AT, [told(103.0)])


def test_a_worker_tells_the_file_what_it_tells_the_proxy(tmp_path):
    file = tmp_path / "told.jsonl"
    channel = FalseChannel()
    outbox = telling(file)(channel, 1)
    submit = Submit(1, "s", 2, tuple(range(10)), (), 5, (), Sampling(), 0, 250.0)
    sequence = Sequence.of(submit, 0.0)
    sequence.begin(4)
    outbox.note_begun(sequence)
    outbox.note_prefills([Chunk(sequence, 4, 3), Chunk(sequence, 7, 2)], [1.0, 1.0])
    outbox.send_prefills(1)
    assert [(each.length, each.cached, each.tokens) for each in read_told(file)] == [
        (10, 4, 0),
        (10, 4, 3),
        (10, 4, 2),
    ]
    [step] = channel.sent
    assert [(share.tokens, share.cached) for share in step.prefills] == [(3, 4), (2, 0)]


def test_a_line_that_a_death_has_cut_is_left_out(tmp_path):
    file = tmp_path / "told.jsonl"
    whole = json.dumps({"at": 1, "sequence": "s", "attempt": 1, "length": 3, "cached": 0, "tokens": 2})
    file.write_text(f'{whole}\n{{"at": 2, "sequ')
    assert [each.at for each in read_told(file)] == [1]
