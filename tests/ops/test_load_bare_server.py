"""The server that does the least: it answers as the proxy does, at a pace, and notes when it sent."""

import io
import json

import pytest

from ops.load import bare_server
from ops.load.bare_server import BareServer, Pieces, Request, chunked, pieces, read_request
from ops.load.client import Client
from ops.load.processes import bare_server as running
from ops.load.records import Ask
from ops.load.token_path import added_s, own_part, sent_times
from shared.clock import FalseClock

POST = (
    b'POST /v1/chat/completions HTTP/1.1\r\nX-Request-Id: a-1\r\nContent-Length: 17\r\n\r\n{"max_tokens": 3}'
)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("cut", range(len(POST)))
def test_a_request_is_read_once_it_is_whole(cut):
    assert read_request(POST[:cut]) is None
    assert read_request(POST + POST[:cut]) == (Request("a-1", 3), POST[:cut])


def test_a_request_without_a_body_wants_no_tokens():
    assert read_request(GET) == (Request("", 0), b"")


def test_a_chunk_has_its_length_in_hexadecimal_before_it():
    assert chunked(b"x" * 27) == b"1b\r\n" + b"x" * 27 + b"\r\n"


class Wire:
    """A connection's writing end: what was written, each with the moment; writing takes a second."""

    def __init__(self, clock):
        self._clock = clock
        self.written = []

    def write(self, data):
        self._clock.advance(1.0)
        self.written.append(data)


class World:
    def __init__(self, groups=1, streams=(), tokens=2):
        self.clock = FalseClock(100.0)
        self._log = io.StringIO()
        self.server = BareServer(self._make, groups, self._log, self.clock.now)
        self.wires = [self.ask(name, tokens) for name in streams]

    def _make(self, tokens):
        return Pieces(b"opening", b"token", b"ending of %d" % tokens)

    def ask(self, name, tokens):
        wire = Wire(self.clock)
        self.server.begin(Request(name, tokens), wire)
        return wire

    @property
    def counts(self):
        return [wire.written.count(b"token") for wire in self.wires]

    @property
    def log(self):
        return [json.loads(line) for line in self._log.getvalue().splitlines()]


def test_a_beat_gives_every_stream_a_token_with_the_time_before_the_first():
    world = World(streams="abc")
    began = world.clock.now()
    world.server.beat()
    world.server.beat()
    assert [entry["sequence"] for entry in world.log] == ["a", "b", "c"]
    assert {entry["first_index"] for entry in world.log} == {0}
    assert [entry["sent_at"] for entry in world.log] == [[began, began + 3.0]] * 3


def test_a_stream_has_its_tokens_between_opening_and_ending_and_nothing_more():
    world = World(streams="a")
    for _ in range(4):
        world.server.beat()
    assert world.wires[0].written == [b"opening", b"token", b"token", b"ending of 2"]
    assert world.server.streams == {}


def test_groups_take_turns_and_each_stream_has_a_token_in_every_round():
    world = World(groups=3, streams="abcdef", tokens=9)
    seen = []
    for _ in range(6):
        world.server.beat()
        seen.append(world.counts)
    assert seen[0] == [1, 0, 0, 1, 0, 0]
    assert seen[1] == [1, 1, 0, 1, 1, 0]
    assert seen[2] == [1] * 6
    assert seen[5] == [2] * 6


def test_a_connection_that_is_lost_leaves_its_times_and_gets_nothing_more():
    world = World(streams="ab", tokens=5)
    world.server.beat()
    world.server.drop(world.wires[0])
    world.server.drop(Wire(world.clock))
    world.server.beat()
    assert [(entry["sequence"], len(entry["sent_at"])) for entry in world.log] == [("a", 1)]
    assert world.counts == [1, 2]


def test_who_asks_for_no_tokens_is_told_that_the_server_lives():
    world = World()
    wire = world.ask("", 0)
    assert wire.written == [bare_server._HEALTHY]
    assert world.server.streams == {}


def test_a_token_is_as_long_as_the_proxys():
    made = pieces("small", "f" * 16, " water", 3)
    head, event = made.token.split(b"\r\n", 1)
    assert int(head, 16) == len(event) - 2
    body = json.loads(event.removeprefix(b"data: "))
    assert body["choices"][0]["delta"] == {"content": " water"}
    assert body["usage"] is None
    assert len(body["id"]) == len("chatcmpl-") + 24
    assert made.ending.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_the_proxys_own_part_is_what_it_has_more_in_the_median_of_all_repeats():
    served = [{"p50_s": 0.004, "p99_s": 0.5, "cpu_s_per_token": cpu_s} for cpu_s in (40e-6, 50e-6, 90e-6)]
    bare = [{"p50_s": 0.001, "p99_s": None, "cpu_s_per_token": cpu_s} for cpu_s in (None, 10e-6, 20e-6)]
    assert own_part(served, bare) == {
        "p50_s": pytest.approx(0.003),
        "p99_s": None,
        "cpu_s_per_token": pytest.approx(35e-6),
    }


async def test_the_process_answers_the_client_and_its_log_joins_what_came(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "vocab_size": 64, "eos_token_id": 0}')
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).touch()
    with running(tmp_path, tmp_path / "home", 1.0, 2) as server:
        async with Client(server.port, "small", label="bare") as client:
            for _ in range(2):  # The second on the first one's connection.
                await client.ask(Ask("Hello.", 5))
            records = client.take()
    assert [(record.outcome, record.tokens, len(record.text_times)) for record in records] == [
        ("completed", 5, 5)
    ] * 2
    with server.sent_log.open() as lines:
        added, unjoined = added_s(records, sent_times(lines))
    assert unjoined == 0
    assert added
    assert min(added) > 0
    assert (tmp_path / "home" / "bare.log").read_text() == ""
