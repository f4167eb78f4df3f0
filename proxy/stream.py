"""From an admitted request's events to a response: gathered into one body, or streamed as SSE."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from proxy.admitted import Admitted, AnswerEnded, Event, NothingCame, RequestFailed, TokenCame
from proxy.answer_logprobs import AnswerLogprobs, Entry, form_of
from proxy.answer_text import AnswerText
from proxy.bodies import (
    Answer,
    ChatChunks,
    Chunks,
    CompletionChunks,
    EndReason,
    Head,
    Usage,
    chat_completion,
    text_completion,
)
from proxy.event_blocks import DONE, NO_LOGPROBS, TextBlocks, block, encoded
from proxy.failures import failure_response
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
class Piece:
    """Some text of one answer, with log probabilities; `reason` is set on the answer's last piece."""

    answer: int
    text: str
    reason: EndReason | None
    entries: tuple[Entry, ...] = ()


class Reply:
    """Turns one request's events into pieces of text, and keeps count of them."""

    def __init__(self, admitted: Admitted, text_model: TextModel) -> None:
        parsed = admitted.measured.parsed
        continues = parsed.endpoint == "completions"
        self._admitted = admitted
        self._texts = [
            AnswerText(text_model.decode, parsed.stops, sequence.prompt_ids if continues else ())
            for sequence in admitted.sequences
        ]
        self._ended: set[int] = set()
        sampling = parsed.sampling
        self._form = form_of(parsed.endpoint, text_model.spelling, sampling.top_logprobs)
        answers = admitted.sequences if sampling.wants_logprobs else ()
        self._logprobs = {sequence.answer: AnswerLogprobs(self._form) for sequence in answers}

    @property
    def complete(self) -> bool:
        return len(self._ended) == len(self._texts)

    @property
    def usage(self) -> Usage:
        prompt_tokens = sum(map(len, self._admitted.measured.prompt_ids))
        completion_tokens = sum(text.tokens for text in self._texts)
        return Usage(prompt_tokens, completion_tokens, prompt_use(self._admitted).cached)

    async def pieces(self) -> list[Piece]:
        """Wait for news; return the pieces it makes, which may be none. Raises what the request failed by.

        It takes EVENTS_PER_TURN_MAX events at most; what is left is the next call's, which has it at once.
        """
        events = self._admitted.events
        if not events.empty():
            # To get what is there waits for nothing, and neither does to write it while the client reads.
            await asyncio.sleep(0)
        pieces = self._take(await events.get())
        for _ in range(min(events.qsize(), EVENTS_PER_TURN_MAX - 1)):
            pieces += self._take(events.get_nowait())
        return pieces

    def _take(self, event: Event) -> list[Piece]:
        match event:
            case RequestFailed(refusal):
                raise refusal
            case TokenCame(answer, token, logprobs):
                return self._take_token(answer, token, logprobs)
            case AnswerEnded(answer, reason):
                return self._take_end(answer, reason)
            case NothingCame():
                return []

    def _take_token(self, answer: int, token: int, logprobs: RowLogprobs | None) -> list[Piece]:
        """Show what a token adds. An answer that a stop string has ended says nothing more."""
        if answer in self._ended:
            return []
        text = self._texts[answer]
        if self._logprobs:
            self._logprobs[answer].came(text.made_chars, token, logprobs)
        shown = text.feed(token)
        if text.stopped:
            self._admitted.stop(answer)
            self._ended.add(answer)
            return [Piece(answer, shown, "stop", self._entries(answer))]
        entries = self._entries(answer)
        return [Piece(answer, shown, None, entries)] if shown or entries else []

    def _take_end(self, answer: int, reason: EndReason) -> list[Piece]:
        """End an answer as the worker did, unless a stop string is found in what was held back."""
        if answer in self._ended:
            return []
        self._ended.add(answer)
        text = self._texts[answer]
        rest = text.finish()
        entries = self._entries(answer, ended=not text.stopped)
        return [Piece(answer, rest, "stop" if text.stopped else reason, entries)]

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
        self._build = chat_completion if admitted.measured.parsed.endpoint == "chat" else text_completion
        self._texts: list[list[str]] = [[] for _ in admitted.sequences]
        self._entries: list[list[Entry]] = [[] for _ in admitted.sequences]
        self._reasons: list[EndReason] = ["length"] * len(self._texts)
        self.held_bytes = 0

    async def gather(self) -> bytes:
        """Wait for all answers; return the body as JSON, which is the caller's to count from then on."""
        while not self._reply.complete:
            for piece in await self._reply.pieces():
                self._add(piece)
        answers = [
            Answer("".join(text), reason) for text, reason in zip(self._texts, self._reasons, strict=True)
        ]
        self.held_bytes = 0
        return encoded(
            self._build(self._head, answers, self._reply.usage), self._reply.whole_logprobs(self._entries)
        )

    def _add(self, piece: Piece) -> None:
        self._texts[piece.answer].append(piece.text)
        self._entries[piece.answer] += piece.entries
        self._reasons[piece.answer] = piece.reason or self._reasons[piece.answer]
        self.held_bytes += len(piece.text) + sum(len(part) for entry in piece.entries for part in entry)


class EventStream:
    """One event stream, as bytes: written to the client that asked for it, or to a recording."""

    def __init__(self, reply: Reply, head: Head, admitted: Admitted, jitter: Callable[[], float]) -> None:
        self._reply = reply
        self._admitted = admitted
        self._jitter = jitter
        parsed = admitted.measured.parsed
        kind = ChatChunks if parsed.endpoint == "chat" else CompletionChunks
        self._chunks: Chunks = kind(head, include_usage=parsed.include_usage)
        self._texts = [TextBlocks(self._chunks, sequence.answer) for sequence in admitted.sequences]
        self._silence = Silence(admitted.events, math.inf, asyncio.get_running_loop())
        self._include_usage = parsed.include_usage
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
            await response.write(self._opening() + first)
            async for blocks in news:
                await response.write(blocks)
        await response.write_eof()
        return response

    async def record(self, recording: Recording) -> None:
        """Write all answers to a recording; whoever plays it breaks its own silence. Raises like `send`."""
        news = self._news()
        recording.write(self._opening() + await anext(news))
        async for blocks in news:
            recording.write(blocks)
        recording.spoiled = self._failed

    def _opening(self) -> bytes:
        return b"".join(
            block(chunk)
            for sequence in self._admitted.sequences
            for chunk in self._chunks.opening(sequence.answer)
        )

    async def _news(self) -> AsyncIterator[bytes]:
        """Yield blocks of SSE. After the first, a failure is an error event, and no [DONE] follows it."""
        sent = False
        try:
            while not self._reply.complete:
                blocks = self._blocks(await self._reply.pieces()) or self._silence.comment()
                if blocks or not sent:
                    self._silence.ended()
                    yield blocks
                    sent = True
        except Refusal as refusal:
            if not sent:
                raise
            self._failed = True
            yield block(failure_response(refusal, self._jitter).event)
            return
        usage = block(self._chunks.usage(self._reply.usage)) if self._include_usage else b""
        yield usage + DONE

    def _blocks(self, pieces: list[Piece]) -> bytes:
        """Return what pieces look like; a piece that has entries only is a text of no characters."""
        blocks: list[bytes] = []
        for piece in pieces:
            logprobs = self._reply.logprobs(piece.entries)
            if piece.text or piece.reason is None:
                blocks.append(self._texts[piece.answer].block(piece.text, logprobs))
                logprobs = NO_LOGPROBS
            if piece.reason is not None:
                blocks.append(block(self._chunks.ending(piece.answer, piece.reason), logprobs))
        return b"".join(blocks)
