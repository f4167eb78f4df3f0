"""From an admitted request's events to a response: gathered into one body, or streamed as SSE."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from aiohttp import web

from proxy.admitted import Admitted, AnswerEnded, Event, NothingCame, RequestFailed, TokenCame
from proxy.answer import Answer, EndReason, Piece, Usage, chars_of, joined
from proxy.answer_logprobs import AnswerLogprobs, Entry
from proxy.answer_text import AnswerText
from proxy.dialects.dialect import AnswerStream, Head, News
from proxy.dialects.parts import shown_tools
from proxy.dialects.table import DIALECTS
from proxy.event_blocks import NO_LOGPROBS
from proxy.failures import failure_response
from proxy.formats.format import PLAIN
from proxy.prompt_use import prompt_use
from proxy.recording import Recording
from proxy.silence import Silence
from proxy.text_model import TextModel
from shared.errors import Refusal
from shared.limits import KEEPALIVE_INTERVAL_S
from shared.messages import RowLogprobs

# A client that reads again finds thousands waiting; others are to have their turns meanwhile.
EVENTS_PER_TURN_MAX: Final = 64
SSE_HEADERS: Final = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


@dataclass(frozen=True, slots=True)
class Part:
    """Some pieces of one answer, with log probabilities; `reason` is set on the answer's last part.

    And so is `stop` if a stop string ended it. `usage` is what was used up to here, if that is to be said.
    """

    answer: int
    pieces: tuple[Piece, ...]
    reason: EndReason | None
    entries: tuple[Entry, ...] = ()
    stop: str | None = None
    usage: Usage | None = None


class Reply:
    """Turns one request's events into parts of its answers, and keeps count of them."""

    def __init__(self, admitted: Admitted, text_model: TextModel) -> None:
        parsed = admitted.measured.parsed
        dialect, measured = DIALECTS[parsed.endpoint], admitted.measured
        reading = text_model.format if parsed.reads_format else PLAIN
        self._admitted = admitted
        self._texts = [
            AnswerText(
                text_model.decoder(reading),
                parsed.stops,
                sequence.prompt_ids if dialect.continues or parsed.continues else (),
                reading.reader(measured.thinks, shown_tools(parsed.tools)),
            )
            for sequence in admitted.sequences
        ]
        self._ended: set[int] = set()
        self._says_usage = parsed.continuous_usage
        sampling = parsed.sampling
        self._form = dialect.form(text_model.spelling, sampling.top_logprobs)
        answers = admitted.sequences if sampling.wants_logprobs else ()
        self._logprobs = {sequence.answer: AnswerLogprobs(self._form) for sequence in answers}

    @property
    def complete(self) -> bool:
        return len(self._ended) == len(self._texts)

    @property
    def usage(self) -> Usage:
        prompt_tokens = sum(map(len, self._admitted.measured.prompt_ids))
        completion_tokens = sum(text.tokens for text in self._texts)
        thought_tokens = sum(text.thought_tokens for text in self._texts)
        return Usage(prompt_tokens, completion_tokens, prompt_use(self._admitted).cached, thought_tokens)

    async def parts(self) -> list[Part]:
        """Wait for news; return the parts it makes, which may be none. Raises what the request failed by.

        It takes EVENTS_PER_TURN_MAX events at most; what is left is the next call's, which has it at once.
        """
        events = self._admitted.events
        if not events.empty():
            # To get what is there waits for nothing, and neither does to write it while the client reads.
            await asyncio.sleep(0)
        parts = self._take(await events.get())
        for _ in range(min(events.qsize(), EVENTS_PER_TURN_MAX - 1)):
            parts += self._take(events.get_nowait())
        return parts

    def _take(self, event: Event) -> list[Part]:
        parts = self._taken(event)
        return [replace(part, usage=self.usage) for part in parts] if self._says_usage else parts

    def _taken(self, event: Event) -> list[Part]:
        match event:
            case RequestFailed(refusal):
                raise refusal
            case TokenCame(answer, token, logprobs):
                return self._take_token(answer, token, logprobs)
            case AnswerEnded(answer, reason):
                return self._take_end(answer, reason)
            case NothingCame():
                return []

    def _take_token(self, answer: int, token: int, logprobs: RowLogprobs | None) -> list[Part]:
        """Show what a token adds. An answer that a stop string has ended says nothing more."""
        if answer in self._ended:
            return []
        text = self._texts[answer]
        if self._logprobs:
            self._logprobs[answer].came(text.made_chars, token, logprobs)
        shown = tuple(text.feed(token))
        if text.stopped:
            self._admitted.stop(answer)
            self._ended.add(answer)
            return [Part(answer, shown, "stop", self._entries(answer), text.stop)]
        entries = self._entries(answer)
        return [Part(answer, shown, None, entries)] if shown or entries else []

    def _take_end(self, answer: int, reason: EndReason) -> list[Part]:
        """End an answer as the worker did, unless a stop string is found in what was held back."""
        if answer in self._ended:
            return []
        self._ended.add(answer)
        text = self._texts[answer]
        rest = tuple(text.finish())
        entries = self._entries(answer, ended=not text.stopped)
        return [Part(answer, rest, "stop" if text.stopped else reason, entries, text.stop)]

    def _entries(self, answer: int, *, ended: bool = False) -> tuple[Entry, ...]:
        """Return the entries that are due by what is shown now; all that are left if it ended by itself."""
        if not self._logprobs:
            return ()
        mine = self._logprobs[answer]
        return mine.rest() if ended else mine.due(self._texts[answer].shown_chars)

    def logprobs(self, entries: Sequence[Entry]) -> str:
        """Return a chunk's log probabilities as JSON."""
        return self._form.value(entries) if entries else NO_LOGPROBS

    def whole_logprobs(self, entries: Sequence[Sequence[Entry]]) -> list[str]:
        """Return the log probabilities of all answers as JSON; nothing if they weren't asked for.

        An answer without tokens has an empty list of them. One whose worker left them out has null.
        """
        return [
            NO_LOGPROBS if mine.lacking and not entries[answer] else self._form.value(entries[answer])
            for answer, mine in self._logprobs.items()
        ]


class WholeBody:
    """All answers of a request in one body. `held_bytes` is, roughly, what is gathered of it so far."""

    def __init__(self, reply: Reply, head: Head, admitted: Admitted) -> None:
        self._reply = reply
        self._head = head
        self._parsed = admitted.measured.parsed
        self._pieces: list[list[Piece]] = [[] for _ in admitted.sequences]
        self._entries: list[list[Entry]] = [[] for _ in admitted.sequences]
        self._reasons: list[EndReason] = ["length"] * len(self._pieces)
        self._stops: list[str | None] = [None] * len(self._pieces)
        self.held_bytes = 0

    async def gather(self) -> bytes:
        """Wait for all answers; return the body as JSON, which is the caller's to count from then on."""
        while not self._reply.complete:
            for part in await self._reply.parts():
                self._add(part)
        answers = [
            Answer(tuple(joined(pieces)), reason, stop)
            for pieces, reason, stop in zip(self._pieces, self._reasons, self._stops, strict=True)
        ]
        self.held_bytes = 0
        logprobs = self._reply.whole_logprobs(self._entries)
        dialect = DIALECTS[self._parsed.endpoint]
        return dialect.whole(self._head, self._parsed, answers, self._reply.usage, logprobs)

    def _add(self, part: Part) -> None:
        self._pieces[part.answer] += part.pieces
        self._entries[part.answer] += part.entries
        self._reasons[part.answer] = part.reason or self._reasons[part.answer]
        self._stops[part.answer] = part.stop
        chars = sum(map(chars_of, part.pieces))
        self.held_bytes += chars + sum(len(text) for entry in part.entries for text in entry)


class EventStream:
    """One event stream, as bytes: written to the client that asked for it, or to a recording."""

    def __init__(self, reply: Reply, head: Head, admitted: Admitted, jitter: Callable[[], float]) -> None:
        self._reply = reply
        self._admitted = admitted
        self._jitter = jitter
        parsed = admitted.measured.parsed
        self._stream: AnswerStream = DIALECTS[parsed.endpoint].stream(head, parsed)
        self._silence = Silence(admitted.events, math.inf, asyncio.get_running_loop())
        self._failed = False

    async def send(self, request: web.Request, headers: Callable[[], dict[str, str]]) -> web.StreamResponse:
        """Stream all answers to a client; return the response. Raises a Refusal only while nothing was sent.

        The status is sent with the first news, so a refusal until then keeps its own.
        """
        self._silence = Silence(self._admitted.events, KEEPALIVE_INTERVAL_S, asyncio.get_running_loop())
        with self._silence:
            news = self._news()
            first = await anext(news)
            response = web.StreamResponse(headers={**SSE_HEADERS, **headers()})
            await response.prepare(request)
            await response.write(first)
            async for blocks in news:
                await response.write(blocks)
        await response.write_eof()
        return response

    async def record(self, recording: Recording) -> None:
        """Write all answers to a recording; whoever plays it breaks its own silence. Raises like `send`."""
        async for blocks in self._news():
            recording.write(blocks)
        recording.spoiled = self._failed

    async def _news(self) -> AsyncIterator[bytes]:
        """Yield blocks of SSE. After the first, a failure is an error event, and nothing follows it."""
        sent = False
        try:
            while not self._reply.complete:
                blocks = self._blocks(await self._reply.parts()) or self._silence.comment()
                if blocks or not sent:
                    self._silence.ended()
                    yield blocks if sent else self._stream.opening(self._reply.usage) + blocks
                    sent = True
        except Refusal as refusal:
            if not sent:
                raise
            self._failed = True
            yield self._stream.failed(failure_response(refusal, self._jitter))
            return
        yield self._stream.closing(self._reply.usage)

    def _blocks(self, parts: list[Part]) -> bytes:
        return b"".join(
            self._stream.news(
                News(
                    part.answer,
                    part.pieces,
                    part.reason,
                    self._reply.logprobs(part.entries),
                    part.stop,
                    part.usage,
                )
            )
            for part in parts
        )
