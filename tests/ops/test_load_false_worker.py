"""The worker without a model, against a proxy's end of the wire that the test plays."""

import asyncio
import io
import json
import tempfile
from dataclasses import replace

import pytest

from ops.load import processes
from ops.load.false_worker import FalseWorker, Manner, hello_of
from ops.load.processes import FalseWorkerOptions, started
from shared.channel import DealerChannel, RouterChannel
from shared.clock import FalseClock
from shared.codec import decode, encode
from shared.messages import Cancel, Finished, Hello, Park, Parked, Ping, Progress, Step, Submit
from shared.model_folder import ModelFolder
from shared.sampling import Sampling
from tests.waiting import until

EPOCH = 5
TOKEN = 7
SUBMIT = Submit(
    epoch=EPOCH,
    sequence="a-1/1/0",
    attempt=1,
    prompt_ids=(1, 2),
    emitted_ids=(),
    max_tokens=4,
    stop_ids=(0,),
    sampling=Sampling(temperature=0.0),
    rank=0,
    quantum_ms=100.0,
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "vocab_size": 64, "eos_token_id": 0}')
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).touch()
    return ModelFolder.read(tmp_path)


@pytest.fixture
def endpoint():
    """A socket's place with a path short enough, whatever the tests' own folder is called."""
    with tempfile.TemporaryDirectory(prefix="fb") as place:
        yield f"ipc://{place}/wire"


@pytest.fixture
async def router(endpoint):
    channel = RouterChannel(endpoint)
    yield channel
    channel.close()


class World:
    """A false worker that turns only when the test does, and all that it said, but for its reports."""

    def __init__(self, router, endpoint, folder, manner=None):
        self.clock = FalseClock(100.0)
        self.sent_log = io.StringIO()
        self.said = []
        self.reports = []
        self._router = router
        self._identity = b""
        self._dealer = DealerChannel(endpoint, b"w-0-5")
        hello = hello_of(folder, slots=4, step_ms=20.0, epoch=EPOCH)
        self.worker = FalseWorker(
            self._dealer, hello, manner or Manner(token=TOKEN), self.sent_log, self.clock.now
        )

    async def hear(self, kind, count=1):
        """Let it turn until it has said so many things of a kind; return the things."""
        listening = asyncio.create_task(self._listen())

        def heard():
            self.worker.turn()
            return len(self.of(kind)) >= count

        await until(heard)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        return self.of(kind)

    def of(self, kind):
        return [message for message in (*self.said, *self.reports) if isinstance(message, kind)]

    async def tell(self, *messages):
        for message in messages:
            assert await self._router.send(self._identity, encode(message))

    async def taken(self, holds):
        await until(lambda: self.worker.turn() or holds(self.worker.rows))

    async def _listen(self):
        while True:
            self._identity, frame = await self._router.receive()
            message = decode(frame)
            (self.reports if isinstance(message, Progress) else self.said).append(message)

    def close(self):
        self._dealer.close()

    @property
    def log(self):
        return [json.loads(line) for line in self.sent_log.getvalue().splitlines()]


@pytest.fixture
async def world(router, endpoint, folder):
    """Return what makes a world whose worker was heard."""
    worlds = []

    async def make(manner=None):
        worlds.append(World(router, endpoint, folder, manner))
        await worlds[-1].hear(Hello)
        return worlds[-1]

    yield make
    for each in worlds:
        each.close()


def words(steps):
    return [(row.sequence, row.attempt, row.index, row.token) for step in steps for row in step.rows]


async def test_it_greets_with_the_folders_fingerprint_and_rows_that_cost_nothing(world, folder):
    (hello,) = (await world()).of(Hello)
    assert (hello.epoch, hello.slots) == (EPOCH, 4)
    assert hello.facts.fingerprint == folder.fingerprint
    assert hello.facts.vocabulary == folder.vocabulary
    assert hello.facts.batch_bytes([folder.context_tokens] * 64) < hello.budget_bytes


async def test_a_row_gets_its_tokens_in_order_and_then_its_end(world):
    made = await world()
    await made.tell(SUBMIT)
    (end,) = await made.hear(Finished)
    steps = made.of(Step)
    assert words(steps) == [("a-1/1/0", 1, index, TOKEN) for index in range(4)]
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert end == Finished(EPOCH, "a-1/1/0", 1, 4, "length")
    assert made.worker.rows == {}
    assert made.log == [{"sequence": "a-1/1/0", "first_index": 0, "sent_at": [100.0] * 4}]


async def test_rows_share_a_step_and_each_row_its_time(world):
    made = await world(Manner(step_ms=20.0, token=TOKEN))
    await made.tell(SUBMIT, replace(SUBMIT, sequence="a-2/2/0"))
    await made.taken(lambda rows: len(rows) == 2)
    made.clock.advance(0.02)
    step = (await made.hear(Step, count=len(made.of(Step)) + 1))[-1]
    assert {row.sequence for row in step.rows} == {"a-1/1/0", "a-2/2/0"}
    assert (step.step_ms, step.row_ms, step.prefills) == (20.0, 10.0, ())


async def test_groups_of_rows_take_turns_within_a_step(world):
    made = await world(Manner(step_ms=20.0, token=TOKEN, groups=2))
    await made.tell(*(replace(SUBMIT, sequence=f"a-{number}/1/0", max_tokens=9) for number in range(4)))
    await made.taken(lambda rows: len(rows) == 4)
    for _ in range(4):
        made.clock.advance(0.0101)
        made.worker.turn()
    _, *steps = await made.hear(Step, count=5)
    even, odd = {"a-0/1/0", "a-2/1/0"}, {"a-1/1/0", "a-3/1/0"}
    assert [{row.sequence for row in step.rows} for step in steps] == [odd, even, odd, even]
    assert {(step.step_ms, step.row_ms) for step in steps} == {(10.0, 5.0)}


async def test_a_group_without_rows_says_nothing(world):
    made = await world(Manner(step_ms=20.0, token=TOKEN, groups=4))
    await made.tell(SUBMIT)
    await made.taken(lambda rows: len(rows) == 1)
    for _ in range(16):
        made.clock.advance(0.0051)
        made.worker.turn()
    await made.hear(Finished)
    assert [len(step.rows) for step in made.of(Step)] == [1] * 4


async def test_the_time_of_sending_is_that_before_the_tokens_are_put_into_words(world, monkeypatch):
    made = await world(Manner(step_ms=20.0, token=TOKEN))

    def slowly(message):
        made.clock.advance(1.0 if isinstance(message, Step) else 0.0)
        return encode(message)

    monkeypatch.setattr("ops.load.false_worker.encode", slowly)
    await made.tell(replace(SUBMIT, max_tokens=1))
    await made.hear(Finished)
    assert made.log[0]["sent_at"] == [100.0]


async def test_a_step_comes_when_it_is_due_and_not_before(world):
    made = await world(Manner(step_ms=20.0, token=TOKEN))
    await made.tell(SUBMIT)
    await made.hear(Step)
    for advance_s, index in ((0.019, 1), (0.003, 2), (0.017, 2), (0.002, 3)):
        made.clock.advance(advance_s)
        made.worker.turn()
        made.worker.turn()
        assert made.worker.rows["a-1/1/0"].index == index


async def test_a_resumed_row_goes_on_after_what_was_emitted(world):
    made = await world()
    await made.tell(replace(SUBMIT, attempt=2, emitted_ids=(TOKEN, TOKEN)))
    await made.hear(Finished)
    assert words(made.of(Step)) == [("a-1/1/0", 2, index, TOKEN) for index in (2, 3)]
    assert made.log[0]["first_index"] == 2


async def test_a_cancelled_row_says_nothing_more_and_its_times_are_kept(world):
    made = await world(Manner(step_ms=20.0, token=TOKEN))
    await made.tell(SUBMIT)
    await made.hear(Step)
    await made.tell(Cancel(EPOCH, "a-1/1/0"), Cancel(EPOCH, "nobody"))
    await made.taken(lambda rows: not rows)
    made.clock.advance(1.0)
    await made.hear(Progress, count=len(made.reports) + 1)
    assert len(made.of(Step)) == 1
    assert made.log == [{"sequence": "a-1/1/0", "first_index": 0, "sent_at": [100.0]}]


async def test_a_parked_row_says_how_far_it_was_and_an_unknown_one_nothing(world):
    made = await world(Manner(step_ms=20.0, token=TOKEN))
    await made.tell(SUBMIT)
    await made.hear(Step)
    await made.tell(Park(EPOCH, "nobody"), Park(EPOCH, "a-1/1/0"))
    assert await made.hear(Parked) == [Parked(EPOCH, "a-1/1/0", 1, 1)]
    assert made.worker.rows == {}


async def test_words_of_another_life_are_ignored(world):
    made = await world()
    await made.tell(replace(SUBMIT, epoch=EPOCH - 1), replace(SUBMIT, sequence="a-2/2/0"))
    await made.hear(Finished)
    assert {name for name, *_ in words(made.of(Step))} == {"a-2/2/0"}


async def test_a_report_echoes_the_last_ping_and_names_all_rows(world):
    made = await world(Manner(step_ms=20.0, hold_over=2))
    await made.tell(Ping(EPOCH, 41), Ping(EPOCH, 42), SUBMIT)
    await made.taken(lambda rows: len(rows) == 1)
    made.clock.advance(1.0)
    report = (await made.hear(Progress, count=len(made.reports) + 1))[-1]
    assert (report.ping, report.running, report.phase) == (42, ("a-1/1/0",), "decode")


async def test_who_asks_for_more_than_the_bound_holds_a_row_and_never_gets_a_token(world):
    made = await world(Manner(token=TOKEN, hold_over=2))
    await made.tell(SUBMIT, replace(SUBMIT, sequence="a-2/2/0", max_tokens=2))
    await made.hear(Finished)
    assert {name for name, *_ in words(made.of(Step))} == {"a-2/2/0"}
    assert list(made.worker.rows) == ["a-1/1/0"]


async def test_a_proxy_that_is_silent_for_long_is_greeted_anew_and_its_rows_are_dropped(world):
    made = await world(Manner(hold_over=2))
    await made.tell(SUBMIT)
    await made.taken(lambda rows: len(rows) == 1)
    made.clock.advance(31.0)
    assert len(await made.hear(Hello, count=2)) == 2
    assert made.worker.rows == {}


async def test_the_process_greets_speaks_and_writes_its_log_whole_before_it_ends(
    router, endpoint, folder, tmp_path
):
    sent_log = tmp_path / "sent.jsonl"
    options = FalseWorkerOptions(slots=3, token=TOKEN)
    command = processes._false_worker(endpoint, folder.path, options, sent_log)
    with started(command, tmp_path / "log") as process:
        identity, frame = await router.receive()
        hello = decode(frame)
        assert (hello.slots, hello.facts.fingerprint) == (3, folder.fingerprint)
        await router.send(identity, encode(replace(SUBMIT, epoch=hello.epoch)))
        heard = [hello]
        while not isinstance(heard[-1], Finished):
            heard.append(decode((await router.receive())[1]))
    assert process.returncode == 0
    assert len(words([message for message in heard if isinstance(message, Step)])) == 4
    (line,) = sent_log.read_text().splitlines()
    assert len(json.loads(line)["sent_at"]) == 4
    assert (tmp_path / "log").read_text() == ""
