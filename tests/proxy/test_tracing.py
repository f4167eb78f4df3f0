"""Traces: which spans a request has, what they say and never say, and what an absent collector costs."""

import asyncio
import contextlib
import itertools
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from structlog.testing import capture_logs

from proxy.notes import Notes
from proxy.request_line import Ending
from proxy.tracing import Stage, Traces, otlp_url, stages
from shared.clock import SystemClock
from shared.config import Settings, TraceSettings
from shared.errors import SettingsError
from tests.free_port import free_port
from tests.proxy.small_gateway import CHAT, COMPLETIONS, NAME, TEXT, Gateway, chat, completion, ids, occupied
from tests.waiting import until

LANES = [{"name": "interactive", "reserved_slots": 0}]
STAGES = ["receive", "measure", "queue", "prefill", "decode"]
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SCHEME = "http://"
SECRET = "the code is 4711"


class Traced(Gateway):
    """A gateway whose traces a test reads."""

    share = 1.0

    async def __aenter__(self):
        self.exporter = InMemorySpanExporter()
        made = Traces(self.exporter, self.share, SystemClock())
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Traces, "of", lambda *_: made)
            return await super().__aenter__()

    async def spans(self):
        """Return the spans of one request by name, once there are any."""
        await until(self._exported)
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def _exported(self):
        self.proxy.traces._processor.force_flush()
        return self.exporter.get_finished_spans()


@pytest.fixture
async def here(tmp_path):
    running = Traced(tmp_path / NAME, LANES)
    async with running:
        await running.start_worker(slots=1)
        yield running


# --- what they say ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_has_a_span_and_one_for_each_stage_one_after_the_other(here, stream):
    here.worker.cached = lambda _submit: 1
    await here.post(COMPLETIONS, completion(stream=stream, max_tokens=40), headers={"x-request-id": "mine"})
    spans = await here.spans()
    assert list(spans) == [*STAGES, f"POST {COMPLETIONS}"]
    root, parts = spans[f"POST {COMPLETIONS}"], [spans[name] for name in STAGES]
    assert (root.kind, root.parent, root.status.status_code) == (SpanKind.SERVER, None, StatusCode.UNSET)
    assert {part.parent.span_id for part in parts} == {root.context.span_id}
    edges = [time for part in parts for time in (part.start_time, part.end_time)]
    assert edges == sorted(edges)
    assert all(part.end_time == after.start_time for part, after in itertools.pairwise(parts))
    assert root.start_time == edges[0]
    assert edges[-1] <= root.end_time
    assert dict(root.attributes) == {
        "http.request.method": "POST",
        "http.route": COMPLETIONS,
        "http.response.status_code": 200,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": NAME,
        "gen_ai.request.max_tokens": 40,
        "gen_ai.usage.input_tokens": 2,
        "gen_ai.usage.output_tokens": len(ids(TEXT)),
        "gen_ai.usage.cache_read.input_tokens": 1,
        "gen_ai.response.finish_reasons": ("stop",),
        "forebay.request_id": "mine",
        "forebay.outcome": "completed",
        "forebay.lane": "interactive",
        "forebay.streamed": stream,
        "forebay.answers": 1,
        "forebay.attempts": 1,
        "forebay.parks": 0,
    }


async def test_a_refused_request_has_the_stages_that_it_reached_and_its_code(here):
    await here.post(CHAT, chat(temperature=-1))
    await here.post(CHAT, chat(messages=[{"role": "user", "content": "x" * 90}], max_tokens=50))
    await until(lambda: len(here._exported()) == 5)
    first, first_root, *stages, root = here.exporter.get_finished_spans()
    assert (first.name, first_root.attributes["error.type"]) == ("receive", "invalid_request_error")
    assert "gen_ai.request.model" not in first_root.attributes
    assert [stage.name for stage in stages] == ["receive", "measure"]
    assert root.attributes["error.type"] == "context_length_exceeded"
    assert (root.attributes["forebay.outcome"], root.status.status_code) == ("refused", StatusCode.UNSET)


async def test_a_death_and_its_resume_are_events_between_the_tokens(here):
    here.worker.pause_at = 3
    task = here.asking(CHAT, chat())
    await until(lambda: here.paused_at(3))
    await here.replace_worker()
    await task
    spans = await here.spans()
    root, decode = spans[f"POST {CHAT}"], spans["decode"]
    assert [event.name for event in root.events] == ["interrupted", "resumed"]
    times = [event.timestamp for event in root.events]
    assert decode.start_time <= times[0] <= times[1] <= decode.end_time
    assert (root.attributes["forebay.attempts"], root.attributes["forebay.outcome"]) == (2, "completed")


async def test_a_stream_that_fails_is_an_error(here):
    (task,) = await occupied(here, stream=True)
    dispatcher = here.proxy.dispatcher
    dispatcher.fail_all(dispatcher._deaths.crashed(next(iter(dispatcher._live)), "x"))
    await task
    root = (await here.spans())[f"POST {CHAT}"]
    assert (root.attributes["error.type"], root.status.status_code) == ("worker_crashed", StatusCode.ERROR)


async def test_a_client_that_leaves_has_left(here):
    (task,) = await occupied(here, stream=True)
    task.cancel()
    root = (await here.spans())[f"POST {CHAT}"]
    assert (root.attributes["forebay.outcome"], root.attributes["http.response.status_code"]) == ("left", 499)


async def test_no_word_of_a_prompt_or_an_answer_is_in_a_span(here):
    here.answer = lambda _submit: ids(SECRET)
    await here.post(CHAT, chat(messages=[{"role": "user", "content": SECRET}], max_tokens=40))
    await here.post(CHAT, chat(messages=[{"role": "user", "content": SECRET}], temperature=-1))
    await here.spans()
    assert "4711" not in "".join(span.to_json() for span in here.exporter.get_finished_spans())


async def test_nothing_else_is_traced(here):
    for path in ("/", "/health/ready", "/metrics", "/v1/models", CHAT, "/nosuch"):
        await here.get(path)
    await here.post("/tokenize", {"prompt": "Hi"})
    await here.post("/v1/nosuch", {})
    assert not here._exported()


async def test_a_replay_has_no_stages_of_its_own(here):
    for _ in range(2):
        await here.post(CHAT, chat(), headers={"Idempotency-Key": "k"})
    await until(lambda: len(here._exported()) == 7)
    *_, replay = here.exporter.get_finished_spans()
    assert (replay.name, replay.attributes["forebay.replayed"]) == (f"POST {CHAT}", True)


TOKENS_CAME = SimpleNamespace(came_at=13.0, reason="stop")
UNDER_WAY = SimpleNamespace(came_at=13.0, reason=None)


@pytest.mark.parametrize(
    ("parsed_at", "started_at", "first_at", "answer", "edges"),
    [
        (2.0, 5.0, 8.0, TOKENS_CAME, [1.0, 2.0, 3.0, 5.0, 8.0, 13.0]),
        (2.0, 5.0, 8.0, UNDER_WAY, [1.0, 2.0, 3.0, 5.0, 8.0, 20.0]),
        (2.0, 5.0, None, UNDER_WAY, [1.0, 2.0, 3.0, 5.0, 20.0]),
        (2.0, None, None, UNDER_WAY, [1.0, 2.0, 3.0, 20.0]),
    ],
)
def test_a_stage_lasts_from_its_own_mark_to_the_next(parsed_at, started_at, first_at, answer, edges):
    notes = Notes("req_1", 1.0, parsed_at)
    notes.admitted = SimpleNamespace(
        received_at=3.0, started_at=started_at, first_at=first_at, sequences=(answer,)
    )
    assert [*stages(notes, 20.0)] == [
        Stage(name, begins, ends)
        for name, (begins, ends) in zip(STAGES, itertools.pairwise(edges), strict=False)
    ]


# --- whose, and how many ------------------------------------------------------------------------------------


async def test_the_clients_traceparent_is_the_parent(here):
    await here.post(CHAT, chat(), headers={"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01", "tracestate": "a=b"})
    root = (await here.spans())[f"POST {CHAT}"]
    assert (root.context.trace_id, root.parent.span_id) == (int(TRACE_ID, 16), int(SPAN_ID, 16))
    assert root.context.trace_state["a"] == "b"


@pytest.mark.parametrize("given", ["", "nonsense", f"00-{'0' * 32}-{SPAN_ID}-01", "00-" + "x" * 4000])
async def test_a_traceparent_that_is_none_is_as_good_as_none(here, given):
    assert (await here.post(CHAT, chat(), headers={"traceparent": given})).status == 200
    assert (await here.spans())[f"POST {CHAT}"].parent is None


@pytest.mark.parametrize(("share", "flags", "spans"), [(0.0, None, 0), (0.0, "01", 6), (1.0, "00", 0)])
async def test_the_share_counts_where_the_client_does_not_say(tmp_path, share, flags, spans):
    here = Traced(tmp_path / NAME, LANES)
    here.share = share
    async with here:
        await here.start_worker()
        headers = {} if flags is None else {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-{flags}"}
        await here.post(CHAT, chat(), headers=headers)
        assert len(here._exported()) == spans


# --- where they go ------------------------------------------------------------------------------------------


class Collecting(Gateway):
    """A gateway whose traces go to a server."""

    def __init__(self, folder, endpoint):
        self.endpoint = endpoint
        super().__init__(folder, LANES)

    def read(self):
        return super().read().model_copy(update={"trace": TraceSettings(endpoint=self.endpoint)})


@contextlib.contextmanager
def collector():
    """Run a false one; yield its address and the requests that it took."""
    taken = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken.append((self.path, self.headers["Content-Type"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", taken
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_spans_reach_a_collector_at_the_latest_when_the_gateway_ends(tmp_path):
    with collector() as (address, taken):
        async with Collecting(tmp_path / NAME, address) as here:
            await here.start_worker()
            await here.post(CHAT, chat())
        ((path, kind, body),) = taken
    assert (path, kind) == ("/v1/traces", "application/x-protobuf")
    (of_resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert "forebay" in {each.value.string_value for each in of_resource.resource.attributes}
    assert {span.name for span in of_resource.scope_spans[0].spans} == {*STAGES, f"POST {CHAT}"}


async def test_without_a_collector_answers_come_all_the_same_and_one_warning(tmp_path, monkeypatch):
    monkeypatch.setattr("proxy.tracing._EXPORT_PATIENCE_S", 0.1)
    with capture_logs() as lines:
        async with Collecting(tmp_path / NAME, f"{SCHEME}me:pass@127.0.0.1:{free_port()}/x") as here:
            await here.start_worker()
            for _ in range(2):
                assert (await here.post(CHAT, chat())).text == TEXT
                await asyncio.to_thread(here.proxy.traces._processor.force_flush)
    warnings = [line for line in lines if "traces" in line["event"]]
    assert [line["log_level"] for line in warnings] == ["warning"]
    assert "pass" not in repr(warnings)


def test_what_finds_the_queue_full_is_dropped_and_nobody_waits(monkeypatch):
    monkeypatch.setattr("proxy.tracing._QUEUE_SPANS_MAX", 600)
    goes_on = threading.Event()

    class Stuck(InMemorySpanExporter):
        def export(self, spans):
            goes_on.wait()
            return super().export(spans)

    exporter = Stuck()
    traces = Traces(exporter, 1.0, SystemClock())
    for _ in range(1000):
        traces.ended({}, "POST", CHAT, Notes("req_1", 0.0), Ending(400))
    goes_on.set()
    traces._processor.shutdown()
    assert 600 <= len(exporter.get_finished_spans()) <= 600 + 512


def test_no_endpoint_means_no_traces_and_nothing_imported():
    assert Traces.of(TraceSettings(), SystemClock(), None) is None


def test_a_missing_package_is_said_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SettingsError, match=r"pip install 'forebay\[otel\]'"):
        Traces.of(TraceSettings(endpoint="http://127.0.0.1:4318"), SystemClock(), None)


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://localhost/", "http://localhost/v1/traces"),
        ("http://localhost/my/traces?x=1", "http://localhost/my/traces?x=1"),
    ],
)
def test_an_address_without_a_path_means_the_usual_one(endpoint, url):
    assert otlp_url(endpoint) == url


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://localhost", "http://", f"{SCHEME}a b"])
def test_what_is_no_address_is_refused(endpoint):
    with pytest.raises(SettingsError, match=r"trace.endpoint: must begin with"):
        Settings.load(trace={"endpoint": endpoint})
