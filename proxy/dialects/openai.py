"""OpenAI's two older endpoints: chat completions and completions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from proxy.answer import Answer, Call, EndReason, Piece, Text, Thought, Usage
from proxy.answer_logprobs import ChatForm, CompletionForm, Form
from proxy.bodies import Body, ChatChunks, CompletionChunks, chat_completion, text_completion
from proxy.dialects.dialect import AnswerStream, Head, News
from proxy.dialects.openai_chat import OLDER_CALLS, parse_chat
from proxy.dialects.openai_completions import ECHO, parse_completion
from proxy.event_blocks import DONE, NO_LOGPROBS, TextBlocks, block, encoded, with_usage
from proxy.failures import Failure
from proxy.request import Parsed, TextPrompt
from proxy.spelling import Spelling


class ChunkStream(ABC):
    """A stream of chunks, each answer's under its index, and [DONE] at the end.

    With `continuous_usage` each chunk says what the request had used when it was made, all its answers
    together: nothing yet when an answer opens.
    """

    def __init__(self, chunks: ChatChunks | CompletionChunks, parsed: Parsed) -> None:
        self._opened = chunks.opening
        self._usage = chunks.usage
        self._says_usage = parsed.continuous_usage
        self._answers = range(parsed.answers)
        self._include_usage = parsed.include_usage
        self._texts = [TextBlocks(chunks.text, index) for index in self._answers]

    def opening(self, usage: Usage) -> bytes:
        blocks = b"".join(block(chunk) for index in self._answers for chunk in self._opened(index))
        return self._with(blocks, replace(usage, completion_tokens=0, thought_tokens=0))

    def news(self, news: News) -> bytes:
        """Return what pieces look like; log probabilities without any are a text of no characters."""
        blocks: list[bytes] = []
        logprobs = news.logprobs
        for piece in news.pieces:
            shown = self._piece(news.answer, piece, logprobs)
            logprobs = NO_LOGPROBS if shown else logprobs
            blocks.append(shown)
        if news.reason is not None:
            blocks.append(block(self._ending(news.answer, news.reason), logprobs))
        elif logprobs != NO_LOGPROBS:
            blocks.append(self._texts[news.answer].block("", logprobs))
        return self._with(b"".join(blocks), news.usage)

    def closing(self, usage: Usage) -> bytes:
        return (block(self._usage(usage)) if self._include_usage else b"") + DONE

    def failed(self, failure: Failure) -> bytes:
        return block(failure.event)

    def _with(self, blocks: bytes, usage: Usage | None) -> bytes:
        """Return chunks with their usage, if they are to have one."""
        if usage is None or not self._says_usage:
            return blocks
        return with_usage(blocks, self._usage(usage)["usage"])

    def _piece(self, answer: int, piece: Piece, logprobs: str) -> bytes:
        return self._texts[answer].block(piece.text, logprobs) if isinstance(piece, Text) else b""

    @abstractmethod
    def _ending(self, answer: int, reason: EndReason) -> Body: ...


class CompletionStream(ChunkStream):
    """All that there is in a completion is text."""

    def __init__(self, chunks: CompletionChunks, parsed: Parsed) -> None:
        super().__init__(chunks, parsed)
        self._chunks = chunks

    def _ending(self, answer: int, reason: EndReason) -> Body:
        return self._chunks.ending(answer, reason)


class ChatStream(ChunkStream):
    """A chat's answers have thoughts and calls as well."""

    def __init__(self, chunks: ChatChunks, parsed: Parsed) -> None:
        super().__init__(chunks, parsed)
        self._chunks = chunks
        self._thoughts: dict[int, TextBlocks] = {}
        self._calls = [0] * parsed.answers

    def _piece(self, answer: int, piece: Piece, logprobs: str) -> bytes:
        match piece:
            case Text():
                return self._texts[answer].block(piece.text, logprobs)
            case Thought():
                return self._thought(answer).block(piece.text, logprobs)
            case Call():
                return self._call(answer, piece, logprobs)

    def _thought(self, answer: int) -> TextBlocks:
        if answer not in self._thoughts:
            self._thoughts[answer] = TextBlocks(self._chunks.thought, answer)
        return self._thoughts[answer]

    def _call(self, answer: int, call: Call, logprobs: str) -> bytes:
        chunks = self._chunks.call(answer, self._calls[answer], call)
        self._calls[answer] += 1
        first = b"".join(block(chunk, logprobs) for chunk in chunks[:1])
        return first + b"".join(map(block, chunks[1:]))

    def _ending(self, answer: int, reason: EndReason) -> Body:
        return self._chunks.ending(answer, reason, self._calls[answer])


class Chat:
    """/v1/chat/completions."""

    id_prefix = "chatcmpl-"
    continues = False

    def parse(self, body: bytes, seeds: Callable[[], int]) -> Parsed:
        return parse_chat(body, seeds)

    def form(self, spelling: Spelling, tops: int) -> Form:  # noqa: ARG002 (Dialect's signature)
        return ChatForm(spelling)

    def stream(self, head: Head, parsed: Parsed) -> AnswerStream:
        older_calls = OLDER_CALLS in parsed.extras
        chunks = ChatChunks(head, include_usage=parsed.include_usage, older_calls=older_calls)
        return ChatStream(chunks, parsed)

    def whole(
        self, head: Head, parsed: Parsed, answers: Sequence[Answer], usage: Usage, logprobs: Sequence[str]
    ) -> bytes:
        older_calls = OLDER_CALLS in parsed.extras
        return encoded(chat_completion(head, answers, usage, older_calls=older_calls), logprobs)

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
        chunks = CompletionChunks(head, include_usage=parsed.include_usage, echoes=_echoes(parsed))
        return CompletionStream(chunks, parsed)

    def whole(
        self, head: Head, parsed: Parsed, answers: Sequence[Answer], usage: Usage, logprobs: Sequence[str]
    ) -> bytes:
        return encoded(text_completion(head, answers, usage, _echoes(parsed)), logprobs)

    def failed(self, failure: Failure) -> bytes:
        """Return an error event; no [DONE] follows it."""
        return block(failure.event)


def _echoes(parsed: Parsed) -> list[str]:
    """Return the text that each answer is to begin with: its prompt's, if that was wished."""
    if ECHO not in parsed.extras:
        return []
    prompts = [prompt.text for prompt in parsed.prompts if isinstance(prompt, TextPrompt)]
    return [text for text in prompts for _ in range(parsed.choices)]
