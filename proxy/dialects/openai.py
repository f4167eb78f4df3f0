"""OpenAI's two older endpoints: chat completions and completions."""

from collections.abc import Callable, Sequence

from proxy.answer import Answer, Text, Usage
from proxy.answer_logprobs import ChatForm, CompletionForm, Form
from proxy.bodies import ChatChunks, Chunks, CompletionChunks, chat_completion, text_completion
from proxy.dialects.dialect import AnswerStream, Head, News
from proxy.event_blocks import DONE, NO_LOGPROBS, TextBlocks, block, encoded
from proxy.failures import Failure
from proxy.parse import parse_chat, parse_completion
from proxy.request import Parsed
from proxy.spelling import Spelling


class ChunkStream:
    """A stream of chunks, each answer's under its index, and [DONE] at the end."""

    def __init__(self, chunks: Chunks, answers: int, *, include_usage: bool) -> None:
        self._chunks = chunks
        self._answers = answers
        self._include_usage = include_usage
        self._texts = [TextBlocks(chunks, index) for index in range(answers)]

    def opening(self, usage: Usage) -> bytes:  # noqa: ARG002 (AnswerStream's signature)
        return b"".join(
            block(chunk) for index in range(self._answers) for chunk in self._chunks.opening(index)
        )

    def news(self, news: News) -> bytes:
        """Return what pieces look like; log probabilities without any are a text of no characters."""
        blocks: list[bytes] = []
        logprobs = news.logprobs
        for piece in news.pieces or ((Text(""),) if news.reason is None else ()):
            if isinstance(piece, Text):
                blocks.append(self._texts[news.answer].block(piece.text, logprobs))
                logprobs = NO_LOGPROBS
        if news.reason is not None:
            blocks.append(block(self._chunks.ending(news.answer, news.reason), logprobs))
        return b"".join(blocks)

    def closing(self, usage: Usage) -> bytes:
        return (block(self._chunks.usage(usage)) if self._include_usage else b"") + DONE


class Chat:
    """/v1/chat/completions."""

    id_prefix = "chatcmpl-"
    continues = False

    def parse(self, body: bytes, seeds: Callable[[], int]) -> Parsed:
        return parse_chat(body, seeds)

    def form(self, spelling: Spelling, tops: int) -> Form:  # noqa: ARG002 (Dialect's signature)
        return ChatForm(spelling)

    def stream(self, head: Head, parsed: Parsed) -> AnswerStream:
        chunks = ChatChunks(head, include_usage=parsed.include_usage)
        return ChunkStream(chunks, parsed.answers, include_usage=parsed.include_usage)

    def whole(
        self,
        head: Head,
        parsed: Parsed,  # noqa: ARG002 (Dialect's signature)
        answers: Sequence[Answer],
        usage: Usage,
        logprobs: Sequence[str],
    ) -> bytes:
        return encoded(chat_completion(head, answers, usage), logprobs)

    def failed(self, failure: Failure) -> bytes:
        """Return an error event; no [DONE] follows it."""
        return block(failure.event)


class Completions:
    """/v1/completions."""

    id_prefix = "cmpl-"
    continues = True

    def parse(self, body: bytes, seeds: Callable[[], int]) -> Parsed:
        return parse_completion(body, seeds)

    def form(self, spelling: Spelling, tops: int) -> Form:
        return CompletionForm(spelling, tops)

    def stream(self, head: Head, parsed: Parsed) -> AnswerStream:
        chunks = CompletionChunks(head, include_usage=parsed.include_usage)
        return ChunkStream(chunks, parsed.answers, include_usage=parsed.include_usage)

    def whole(
        self,
        head: Head,
        parsed: Parsed,  # noqa: ARG002 (Dialect's signature)
        answers: Sequence[Answer],
        usage: Usage,
        logprobs: Sequence[str],
    ) -> bytes:
        return encoded(text_completion(head, answers, usage), logprobs)

    def failed(self, failure: Failure) -> bytes:
        """Return an error event; no [DONE] follows it."""
        return block(failure.event)
