"""The body of /v1/chat/completions to Parsed, every field checked."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Final, Self

from pydantic import FailFast, Field, model_validator

from proxy.dialects.openai_fields import HARMLESS, BodyFields
from proxy.dialects.openai_messages import Message, TemplateMessages
from proxy.dialects.openai_thinking import ThinkingFields
from proxy.dialects.openai_tools import ToolsFields
from proxy.dialects.parts import Verbosity, shown_tools
from proxy.fields import check, problem
from proxy.json_body import read_object
from proxy.request import ChatPrompt, Parsed
from shared.limits import CONTEXT_TOKENS_MAX, MESSAGES_MAX, TOP_LOGPROBS_MAX

# In Parsed.extras: the calls of an answer are to be in OpenAI's older form.
OLDER_CALLS: Final = "older_calls"
# Not supported, and accepted only with these values (or null), which ask for nothing.
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "audio": (),
    "include_reasoning": (True,),
    "modalities": (["text"],),
    "moderation": (),
    "web_search_options": (),
}


def parse_chat(body: bytes, seeds: Callable[[], int]) -> Parsed:
    """Parse the body of /v1/chat/completions. `seeds` is asked when the client sends no seed."""
    fields = check(ChatBody, read_object(body))
    extras = {OLDER_CALLS: True} if fields.asks_older_way else {}
    parsed = fields.parsed("chat", (fields.prompt,), fields.sampling(seeds, fields.tops), extras)
    if fields.max_completion_tokens is not None:
        parsed = replace(
            parsed, max_tokens=fields.max_completion_tokens, max_tokens_field="max_completion_tokens"
        )
    return replace(parsed, tools=fields.tool_use, thinking=fields.thinking)


class ChatBody(BodyFields, ToolsFields, ThinkingFields):
    """What chat takes. A prediction of the answer would only make it faster, and is ignored."""

    harmless: ClassVar[frozenset[str]] = HARMLESS | {"prediction"}
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = _NEUTRAL

    messages: Annotated[list[Message], Field(min_length=1, max_length=MESSAGES_MAX), FailFast()]
    max_completion_tokens: int | None = Field(None, ge=1, le=CONTEXT_TOKENS_MAX)
    verbosity: Verbosity = Field("medium", description="a hint that no template here has a variable for")
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=TOP_LOGPROBS_MAX)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise problem("differs from 'max_tokens'; send one of them", "max_completion_tokens")
        return self

    @model_validator(mode="after")
    def _alternatives_need_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise problem("is only allowed when 'logprobs' is true", "top_logprobs")
        return self

    @model_validator(mode="after")
    def _an_answer_begins_or_goes_on(self) -> Self:
        if self.add_generation_prompt is self.continue_final_message:
            said = "true" if self.continue_final_message else "false"
            raise problem(f"can't be {said} where 'continue_final_message' is", "add_generation_prompt")
        last = self.messages[-1]
        goes_on = last.role == "assistant" and not last.tool_calls and last.function_call is None
        if self.continue_final_message and not goes_on:
            raise problem("needs an assistant's text as the last message", "continue_final_message")
        return self

    @property
    def prompt(self) -> ChatPrompt:
        return ChatPrompt(
            messages=TemplateMessages().of(self.messages),
            tools=shown_tools(self.tool_use),
            thinking=self.thinking,
            options=self.chat_template_kwargs,
            continues=self.continue_final_message,
        )

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def tops(self) -> int:
        return self.top_logprobs if self.logprobs else -1
