"""Anthropic's endpoint for conversations, /v1/messages, in whole bodies and in streams."""

from collections.abc import Callable, Sequence

from proxy.answer import Answer, Usage
from proxy.answer_logprobs import ChatForm, Form
from proxy.dialects.dialect import AnswerStream, Head
from proxy.dialects.messages_blocks import ID_PREFIX, message
from proxy.dialects.messages_parse import parse_messages
from proxy.dialects.messages_stream import MessageStream, failed
from proxy.failures import Failure
from proxy.request import Parsed
from proxy.spelling import Spelling


class Messages:
    """/v1/messages."""

    id_prefix = ID_PREFIX
    continues = False

    def parse(self, body: bytes, seeds: Callable[[], int]) -> Parsed:
        return parse_messages(body, seeds)

    def form(self, spelling: Spelling, tops: int) -> Form:  # noqa: ARG002 (Dialect's signature)
        """Return any form: nobody can ask for log probabilities here."""
        return ChatForm(spelling)

    def stream(self, head: Head, parsed: Parsed) -> AnswerStream:
        return MessageStream(head, parsed)

    def whole(
        self,
        head: Head,
        parsed: Parsed,
        answers: Sequence[Answer],
        usage: Usage,
        logprobs: Sequence[str],  # noqa: ARG002 (Dialect's signature)
    ) -> bytes:
        (answer,) = answers
        return message(head, parsed, answer, usage)

    def failed(self, failure: Failure) -> bytes:
        """Return an error event; no message_stop follows it."""
        return failed(failure)
