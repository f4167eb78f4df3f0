"""Traces of requests for OpenTelemetry: made when a request is over, from times that were noted.

A request's way pays nothing for them where they are off, and where they are on its answer is made before they
are. The spans wait in a bounded queue for a thread of their own that sends them (OTLP over HTTP); what finds
the queue full, or can't be delivered, is dropped. No span has a word of a prompt or an answer.

The spans of a request are `POST <URL>` and below it, one after the other, as far as it came:

| span | from | to |
|---|---|---|
| receive | its head was read | its body was parsed |
| measure | | its tokens were counted, and it was let in |
| queue | | its first answer was submitted to the worker |
| prefill | | its first token came |
| decode | | its last token came |
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from proxy.admitted import HAPPENINGS_MAX, Admitted
from proxy.notes import Notes
from proxy.prompt_use import prompt_use
from proxy.request_line import Ending, finish_reason, outcome_of, output_tokens, parks, prompt_tokens
from shared.clock import Clock
from shared.config import TraceSettings
from shared.errors import SettingsError
from shared.logs import Logger

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

# What is traced, and what OpenTelemetry calls it.
_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
}
_OTLP_PATH: Final = "/v1/traces"
_QUEUE_SPANS_MAX: Final = 4096
_BATCH_SPANS_MAX: Final = 512
_EXPORT_EVERY_MS: Final = 2000
_EXPORT_PATIENCE_S: Final = 5.0
_FLUSH_S: Final = 1.0
_ATTRIBUTE_CHARS_MAX: Final = 256
_NS_PER_S: Final = 1_000_000_000
_STATUS_SERVER_ERROR: Final = 500


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a request's way, in the clock's seconds."""

    name: str
    begins: float
    ends: float


def stages(notes: Notes, ended_at: float) -> Iterator[Stage]:
    """Yield how far a request came; the last stage ends with it, or with the last token."""
    admitted = notes.admitted
    marks: list[tuple[str, float | None]] = [("receive", notes.arrived_at), ("measure", notes.parsed_at)]
    if admitted is not None:
        marks += [
            ("queue", admitted.received_at),
            ("prefill", admitted.started_at),
            ("decode", admitted.first_at),
        ]
        ended_at = min(ended_at, _last_token_at(admitted) or ended_at)
    reached = [(name, at) for name, at in marks if at is not None]
    ends = [at for _, at in reached[1:]] + [ended_at]
    for (name, begins), end in zip(reached, ends, strict=True):
        yield Stage(name, begins, max(begins, end))


def attributes(notes: Notes, path: str, ending: Ending) -> dict[str, Any]:
    """Return what a request's span says, by OpenTelemetry's names where it has some."""
    outcome, code = outcome_of(notes, ending)
    said: dict[str, Any] = {
        "http.request.method": "POST",
        "http.route": path,
        "http.response.status_code": ending.status,
        "gen_ai.operation.name": _OPERATIONS[path],
        "error.type": code,
        "forebay.request_id": notes.request_id,
        "forebay.outcome": outcome,
        "forebay.lane": notes.served_by or None,
        "forebay.key_class": notes.caller.key_class or None,
        "forebay.replayed": notes.replays or None,
        **(_answered(notes.admitted) if notes.admitted else {}),
    }
    return {name: value for name, value in said.items() if value is not None}


def _answered(admitted: Admitted) -> dict[str, Any]:
    reason = finish_reason(admitted)
    return {
        "gen_ai.request.model": admitted.measured.parsed.model,
        "gen_ai.request.max_tokens": max(admitted.measured.max_tokens),
        "gen_ai.usage.input_tokens": prompt_tokens(admitted.measured),
        "gen_ai.usage.output_tokens": output_tokens(admitted),
        "gen_ai.usage.cache_read.input_tokens": prompt_use(admitted).cached,
        "gen_ai.response.finish_reasons": None if reason is None else (reason,),
        "forebay.streamed": admitted.measured.parsed.stream,
        "forebay.answers": len(admitted.sequences),
        "forebay.attempts": admitted.attempts,
        "forebay.parks": parks(admitted),
    }


def _last_token_at(admitted: Admitted) -> float | None:
    """Return when the last token came, if the answers are over."""
    times = [each.came_at for each in admitted.sequences if each.came_at is not None]
    return max(times) if times and finish_reason(admitted) is not None else None


class Traces:
    """Makes a request's spans and hands them to `exporter`. `wall_ns` returns the time of day, in Unix ns."""

    def __init__(
        self,
        exporter: "SpanExporter",
        share: float,
        clock: Clock,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 (an extra: only where it's on)
        from opentelemetry.sdk.trace import SpanLimits, TracerProvider  # noqa: PLC0415 (likewise)
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 (likewise)
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio  # noqa: PLC0415 (likewise)

        self._clock = clock
        self._wall_ns = wall_ns
        self._processor = BatchSpanProcessor(
            exporter,
            max_queue_size=_QUEUE_SPANS_MAX,
            max_export_batch_size=_BATCH_SPANS_MAX,
            schedule_delay_millis=_EXPORT_EVERY_MS,
        )
        limits = SpanLimits(max_events=HAPPENINGS_MAX, max_attribute_length=_ATTRIBUTE_CHARS_MAX)
        provider = TracerProvider(
            sampler=ParentBasedTraceIdRatio(share),
            resource=Resource.create({"service.name": "forebay"}),
            shutdown_on_exit=False,
            span_limits=limits,
        )
        provider.add_span_processor(self._processor)
        self._tracer = provider.get_tracer("forebay")

    @classmethod
    def of(cls, settings: TraceSettings, clock: Clock, log: Logger) -> "Traces | None":
        """Return what the settings ask for, None if nothing; SettingsError without the packages for it."""
        if not settings.endpoint:
            return None
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 (an extra)
                OTLPSpanExporter,
            )

            exporter = OTLPSpanExporter(endpoint=otlp_url(settings.endpoint), timeout=_EXPORT_PATIENCE_S)
            # Its libraries say each failed try at length; what matters of it is said once, below.
            logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
            watched = _Watched(exporter, urlsplit(settings.endpoint).netloc.rpartition("@")[2], log)
            return cls(cast("SpanExporter", watched), settings.share, clock)
        except ImportError as problem:
            raise SettingsError(
                "trace.endpoint is set, and what it needs isn't installed: pip install 'forebay[otel]'"
            ) from problem

    def ended(self, headers: Mapping[str, str], method: str, path: str, notes: Notes, ending: Ending) -> None:
        """Trace a request that is over now, if it is of a kind that is traced, and sampled."""
        if method != "POST" or path not in _OPERATIONS:
            return
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context  # noqa: PLC0415 (an extra)

        now = self._clock.now()
        wall = _Wall(now, self._wall_ns())
        said = attributes(notes, path, ending)
        root = self._tracer.start_span(
            f"POST {path}",
            context=_parent(headers),
            kind=SpanKind.SERVER,
            attributes=said,
            start_time=wall.ns(notes.arrived_at),
        )
        if not root.is_recording():
            return
        for happening in notes.admitted.happened if notes.admitted else ():
            root.add_event(happening.kind, timestamp=wall.ns(happening.at))
        if said["forebay.outcome"] == "failed" or ending.status >= _STATUS_SERVER_ERROR:
            root.set_status(StatusCode.ERROR)
        below = set_span_in_context(root)
        for stage in () if notes.replays else stages(notes, now):
            span = self._tracer.start_span(stage.name, context=below, start_time=wall.ns(stage.begins))
            span.end(wall.ns(stage.ends))
        root.end(wall.ns(now))

    async def close(self) -> None:
        """Send what waits, within a second; after that it is lost."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            self._processor.shutdown()  # type: ignore[no-untyped-call]  # (OpenTelemetry's own has no types)
            with contextlib.suppress(RuntimeError):  # It took too long, and the loop is gone.
                loop.call_soon_threadsafe(done.set)

        # A daemon, for it may hang in a connection, and the process is to end all the same.
        threading.Thread(target=flush, name="traces", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
                await done.wait()


@dataclass(frozen=True, slots=True)
class _Wall:
    """Turns the clock's seconds into the time of day, as it is now."""

    now: float
    now_ns: int

    def ns(self, at: float) -> int:
        return self.now_ns - round((self.now - at) * _NS_PER_S)


class _Watched:
    """An exporter whose failures are said once, and its recovery too."""

    def __init__(self, inner: "SpanExporter", server: str, log: Logger) -> None:
        self._inner = inner
        self._server = server
        self._log = log
        self._fails = False

    def export(self, spans: Sequence["ReadableSpan"]) -> "SpanExportResult":
        result = self._inner.export(spans)
        fails = result.name != "SUCCESS"
        if fails and not self._fails:
            self._log.warning("traces can't be delivered; they are dropped meanwhile", server=self._server)
        elif self._fails and not fails:
            self._log.info("traces are delivered again", server=self._server)
        self._fails = fails
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


def otlp_url(endpoint: str) -> str:
    """Return where spans are sent: an address without a path means the usual one there."""
    parts = urlsplit(endpoint)
    return parts._replace(path=_OTLP_PATH).geturl() if parts.path in {"", "/"} else endpoint


def _parent(headers: Mapping[str, str]) -> "Context":
    """Return the span that the client's traceparent names; what isn't well-formed is as good as none."""
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 (an extra)
        TraceContextTextMapPropagator,
    )

    names = ("traceparent", "tracestate")
    return TraceContextTextMapPropagator().extract({name: headers.get(name, "") for name in names})
