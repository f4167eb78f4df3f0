"""What OpenAI's two older endpoints both take: the sampling, the number of answers, and how they are sent.

`max_tokens` that a client leaves out stays None, and the gateway's own default applies; the 16 tokens that
OpenAI documents for completions would cut nearly every answer.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from proxy.dialects.openai_shapes import ShapeFields
from proxy.fields import Fields, problem
from proxy.request import Endpoint, Parsed, Prompt
from proxy.session import CACHE_KEY_CHARS_MAX
from shared.errors import InvalidRequest
from shared.limits import (
    CHOICES_MAX,
    CONTEXT_TOKENS_MAX,
    LOGIT_BIAS_MAX,
    LOGIT_BIASES_MAX,
    PENALTY_MAX,
    REPETITION_PENALTY_MAX,
    REPETITION_PENALTY_MIN,
    SEED_MAX,
    SEED_MIN,
    SEQUENCES_PER_REQUEST_MAX,
    STOP_CHARS_MAX,
    STOPS_MAX,
    TEMPERATURE_MAX,
    VOCABULARY_MAX,
)
from shared.sampling import LogitBias, Sampling

# Accepted and ignored: none of them changes a token of the answer.
HARMLESS: Final = frozenset(
    {
        "guided_decoding_backend",
        "metadata",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "store",
        "user",
    }
)
_ID: Final = re.compile("[0-9]{1,16}")


def _stops(value: Any) -> tuple[str, ...]:
    stops = value if isinstance(value, list) else [value]
    if any(type(stop) is not str for stop in stops):
        raise problem("must be a string or a list of strings")
    if len(stops) > STOPS_MAX:
        raise problem(f"must have at most {STOPS_MAX} strings")
    if not all(1 <= len(stop) <= STOP_CHARS_MAX for stop in stops):
        raise problem(f"must hold strings of 1 to {STOP_CHARS_MAX} characters")
    return tuple(dict.fromkeys(stops))


def _biases(value: Any) -> tuple[LogitBias, ...]:
    """Return the biases in the order of their ids: whoever asks for the same asks alike."""
    if not isinstance(value, dict):
        raise problem("must be an object of token ids and numbers")
    if len(value) > LOGIT_BIASES_MAX:
        raise problem(f"must have at most {LOGIT_BIASES_MAX} tokens")
    biases = {_biased_id(key): _bias(key, bias) for key, bias in value.items()}
    if len(biases) < len(value):
        raise problem("must name a token once; leading zeros make no other one")
    return tuple(LogitBias(token, bias) for token, bias in sorted(biases.items()))


def _biased_id(key: str) -> int:
    if not _ID.fullmatch(key) or int(key) >= VOCABULARY_MAX:
        raise problem(f"must have token ids in [0, {VOCABULARY_MAX}) for names")
    return int(key)


def _bias(key: str, value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= LOGIT_BIAS_MAX:
        raise problem(f"must be a number in [-{LOGIT_BIAS_MAX:g}, {LOGIT_BIAS_MAX:g}]", key)
    return float(value)


_STOP_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": STOP_CHARS_MAX}
Stops = Annotated[
    tuple[str, ...],
    PlainValidator(_stops),
    WithJsonSchema({"anyOf": [_STOP_TEXT, {"type": "array", "items": _STOP_TEXT, "maxItems": STOPS_MAX}]}),
]
_BIAS_NUMBER: Final = {"type": "number", "minimum": -LOGIT_BIAS_MAX, "maximum": LOGIT_BIAS_MAX}
Biases = Annotated[
    tuple[LogitBias, ...],
    PlainValidator(_biases),
    WithJsonSchema(
        {
            "type": "object",
            "patternProperties": {"^[0-9]{1,16}$": _BIAS_NUMBER},
            "additionalProperties": False,
            "maxProperties": LOGIT_BIASES_MAX,
        }
    ),
]


class StreamOptions(Fields):
    """`include_obfuscation` asks for chunks of equal length against onlookers; there are none to pad here.

    `continuous_usage_stats` is vLLM's, and changes nothing there either without `include_usage`.
    """

    harmless: ClassVar[frozenset[str]] = frozenset({"include_obfuscation"})

    include_usage: bool = False
    continuous_usage_stats: bool = Field(
        False, description="with include_usage, each chunk says what was used so far"
    )


class BodyFields(ShapeFields):
    """What both endpoints take."""

    harmless: ClassVar[frozenset[str]] = HARMLESS

    model: str = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1, le=CONTEXT_TOKENS_MAX)
    temperature: float = Field(1.0, ge=0, le=TEMPERATURE_MAX)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, le=VOCABULARY_MAX, description="0 and -1 mean no limit")
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, ge=REPETITION_PENALTY_MIN, le=REPETITION_PENALTY_MAX)
    presence_penalty: float = Field(0.0, ge=-PENALTY_MAX, le=PENALTY_MAX)
    frequency_penalty: float = Field(0.0, ge=-PENALTY_MAX, le=PENALTY_MAX)
    logit_bias: Biases = ()
    seed: int | None = Field(None, ge=SEED_MIN, le=SEED_MAX)
    stop: Stops = ()
    ignore_eos: bool = Field(False, description="go on up to max_tokens, whatever the model says")
    min_tokens: int = Field(
        0, ge=0, le=CONTEXT_TOKENS_MAX, description="only with ignore_eos, where it is met anyway"
    )
    n: int = Field(1, ge=1, le=CHOICES_MAX)
    best_of: int | None = Field(None, ge=1, le=CHOICES_MAX, description="the same as n, if given")
    stream: bool = False
    stream_options: StreamOptions | None = None
    service_tier: str | None = None
    prompt_cache_key: str = Field("", max_length=CACHE_KEY_CHARS_MAX)

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise problem("is only allowed when 'stream' is true", "stream_options")
        return self

    @model_validator(mode="after")
    def _all_answers_are_given(self) -> Self:
        if self.best_of not in (None, self.n):
            raise problem("must be the same as 'n': no answers are thrown away here", "best_of")
        return self

    @model_validator(mode="after")
    def _the_least_is_met(self) -> Self:
        """Refuse a least number of tokens, but of an answer that nothing ends before its cap."""
        if not self.min_tokens:
            return self
        if not self.ignore_eos or self.stop:
            raise problem("is only supported with 'ignore_eos', and without 'stop'", "min_tokens")
        most = self.most_tokens
        if most is None or self.min_tokens > most:
            raise problem("needs a 'max_tokens' that is no less", "min_tokens")
        return self

    @property
    def most_tokens(self) -> int | None:
        """The client's own cap, by whichever name."""
        return self.max_tokens

    def sampling(self, seeds: Callable[[], int], tops: int) -> Sampling:
        """Return how to draw; `tops` alternatives to a token are wanted, -1: no log probabilities."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(0, self.top_k),
            min_p=self.min_p,
            seed=seeds() if self.seed is None else self.seed,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            top_logprobs=tops,
        )

    def parsed(
        self,
        endpoint: Endpoint,
        prompts: tuple[Prompt, ...],
        sampling: Sampling,
        extras: Mapping[str, Any],
    ) -> Parsed:
        """Return what these fields make of a request; an endpoint's own fields are its to add."""
        answers = len(prompts) * self.n
        options = self.stream_options or StreamOptions()
        if answers > SEQUENCES_PER_REQUEST_MAX:
            raise InvalidRequest(
                f"'n' asks for {answers} answers over all prompts; "
                f"{SEQUENCES_PER_REQUEST_MAX} is the most for one request.",
                param="n",
            )
        return Parsed(
            endpoint=endpoint,
            model=self.model,
            prompts=prompts,
            choices=self.n,
            max_tokens=self.max_tokens,
            sampling=sampling,
            stops=self.stop,
            stream=self.stream,
            include_usage=options.include_usage,
            service_tier=self.service_tier,
            prompt_cache_key=self.prompt_cache_key,
            shape=self.shape,
            extras=extras,
            ignores_eos=self.ignore_eos,
            continuous_usage=options.include_usage and options.continuous_usage_stats,
        )
