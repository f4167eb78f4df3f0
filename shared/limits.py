"""Every bound of the system, with its unit, and the relations between them asserted."""

from dataclasses import dataclass
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB


def require(holds: bool, problem: str) -> None:
    """Raise ValueError with these words unless a value is within its bounds."""
    if not holds:
        raise ValueError(problem)


@dataclass(frozen=True, slots=True)
class CharsMax:
    """Stands in a text field's annotation where the wire takes more than TEXT_CHARS_MAX characters."""

    chars: int


# HTTP, in the proxy.
BODY_BYTES_MAX: Final = 16 * MIB
BODY_DEPTH_MAX: Final = 64
BODY_PARTS_MAX: Final = 1 << 18  # strings, objects and lists in one body
PARAM_CHARS_MAX: Final = 128
HEADER_BYTES_MAX: Final = 16 * KIB
HEADER_LINE_BYTES_MAX: Final = 8 * KIB
MESSAGES_MAX: Final = 4096
CHOICES_MAX: Final = 16
PROMPTS_MAX: Final = 32
SEQUENCES_PER_REQUEST_MAX: Final = 32
TOKENIZING_MAX: Final = 64  # requests at a time that only tokenise
STOPS_MAX: Final = 4
STOP_CHARS_MAX: Final = 256
STOP_SEQUENCES_MAX: Final = 32  # the same of Anthropic's endpoint, which documents no bound
TOOLS_MAX: Final = 512
TOOL_NAME_CHARS_MAX: Final = 128
DESCRIPTION_CHARS_MAX: Final = 256 * KIB
CALLS_PER_MESSAGE_MAX: Final = 512
REASONING_DETAILS_MAX: Final = 32 * KIB  # of a message: some clients keep every bit of a stream
SHAPE_CHOICES_MAX: Final = 1024  # texts that an answer may be
CHOICE_CHARS_MAX: Final = 4 * KIB
TEMPLATE_OPTIONS_MAX: Final = 32  # further variables of a chat template's, from one request
TEMPLATE_OPTION_CHARS_MAX: Final = 16 * KIB
ITEM_ID_CHARS_MAX: Final = 128  # of a response, an item or a call, as clients send them
SHELL_WORDS_MAX: Final = 4096  # of a local shell's command, and variables that it is given
SHELL_TIMEOUT_MS_MAX: Final = (1 << 31) - 1  # of such a command: the client's to keep
METADATA_MAX: Final = 16
METADATA_KEY_CHARS_MAX: Final = 64
METADATA_VALUE_CHARS_MAX: Final = 512

# Tokens and sampling.
CONTEXT_TOKENS_MAX: Final = 1 << 20
VOCABULARY_MAX: Final = 1 << 20
TEMPERATURE_MAX: Final = 2.0
REPETITION_PENALTY_MIN: Final = 0.01
REPETITION_PENALTY_MAX: Final = 2.0
PENALTY_MAX: Final = 2.0  # of presence and frequency, in both directions
LOGIT_BIASES_MAX: Final = 300
LOGIT_BIAS_MAX: Final = 100.0  # in both directions
TOP_LOGPROBS_MAX: Final = 20
LOGPROB_MIN: Final = -9999.0  # what stands for a probability of zero
SEED_MIN: Final = -(1 << 63)
SEED_MAX: Final = (1 << 63) - 1

# Beginnings of prompts that are kept.
PREFIX_BLOCK_TOKENS: Final = 64
PREFIX_BLOCKS_MAX: Final = 1 << 16  # that one worker keeps, in memory and on disk together
PREFIX_NEWS_MAX: Final = 1 << 12  # blocks that one message tells of
SALT_CHARS_MAX: Final = 64
GRAMMAR_CHARS_MAX: Final = 512 * KIB

# What answers are held to. Fuel is llguidance's unit of work; a millisecond burns some ten thousand.
SCHEMA_CHARS_MAX: Final = 256 * KIB
SCHEMA_PARTS_MAX: Final = 1 << 14  # values of any kind in one schema, names left out
SCHEMA_LEVELS_MAX: Final = 1024  # of a schema and of all that its references lead to, together
SCHEMA_DIVISOR_MAX: Final = 10_000
SCHEMA_PROPERTIES_MAX: Final = 512  # of one object
PATTERN_CHARS_MAX: Final = 1024  # of a regular expression, alone or in a schema
PATTERN_PROPERTIES_MAX: Final = 64
PATTERNS_MEETING_MAX: Final = 4  # that one string must match all of
LARK_CHARS_MAX: Final = 32 * KIB
LARK_RULES_MAX: Final = 256
CALLS_MAX: Final = 128  # of tools, in one answer
GRAMMAR_FUEL: Final = 300_000  # for a grammar's lexer when it is built
GRAMMAR_STEP_FUEL: Final = 100_000  # for one token's mask
GRAMMAR_STATES_MAX: Final = 50_000
GRAMMAR_VERDICTS_MAX: Final = 1024  # that are remembered
GRAMMAR_SYMBOLS_MAX: Final = 20_000  # compiling takes up to a second; it grows with their square
GRAMMAR_ROW_ITEMS_MAX: Final = 2_000  # ways to read on that are open at one place of a text
GRAMMAR_STEP_ITEMS_MAX: Final = 50_000  # some 3 ms

# Chat templates. What may be done grows with what came in; these are for a prompt of nothing.
TEMPLATE_CHARS_MAX: Final = MIB  # of a template itself
TEMPLATE_WORK_MAX: Final = 1 << 18  # steps
TEMPLATE_VALUE_CHARS_MAX: Final = MIB
TEMPLATE_DEPTH_MAX: Final = 2 * BODY_DEPTH_MAX
TEMPLATE_INTEGER_BITS_MAX: Final = 4096
TEMPLATE_CPU_S_MAX: Final = 10.0

# The wire. A msgpack integer of a token id takes at most 5 bytes.
FRAME_BYTES_MAX: Final = 16 * MIB
NAME_CHARS_MAX: Final = 128
TEXT_CHARS_MAX: Final = 4 * KIB
SLOTS_MAX: Final = 256
RECORDS_MAX: Final = 4 * SLOTS_MAX  # rows of a step, or names that a worker holds
ATTEMPTS_MAX: Final = 1024  # planned restarts and trials interrupt an answer, too
RUNG_MAX: Final = 3  # steps down after deaths for want of memory
LANES_MAX: Final = 16
QUANTUM_MS_MAX: Final = 10_000.0
HIGH_WATER_FRAMES: Final = 4096
FRAMES_PER_DRAIN_MAX: Final = 256

# A Unix socket's path: macOS allows 104 bytes with the closing zero, Linux 108.
SOCKET_PATH_BYTES_MAX: Final = 100

# Parks of one answer for others, after which it runs to its end, and deaths it may survive.
PARKS_MAX: Final = 3
RESUMES_MAX: Final = 8

# What `forebay plan` does at the most.
PLAN_OPERATIONS_MAX: Final = 10_000  # of a graph after which no longer one is drawn
PLAN_BYTES_MAX: Final = 3 * GIB  # resident
PLAN_S_MAX: Final = 120.0
CONFIG_BYTES_MAX: Final = 64 * MIB  # of config.json, or of an index of weights

# Time between signs of life.
PING_INTERVAL_S: Final = 1.0
PINGS_MISSED_MAX: Final = 3
PROGRESS_INTERVAL_S: Final = 1.0
KEEPALIVE_INTERVAL_S: Final = 10.0

KEY_CLASSES_MAX: Final = 32  # of keys, that metrics tell apart

# What `forebay bench` may ask of a server.
BENCH_CONCURRENCY_MAX: Final = 1024
BENCH_REQUESTS_MAX: Final = 10_000  # in one pass
BENCH_POINTS_MAX: Final = 16  # on one axis
BENCH_REPETITIONS_MAX: Final = 100
BENCH_RATE_HZ_MAX: Final = 1000.0
BENCH_SECONDS_MAX: Final = 86_400.0
BENCH_RESULT_BYTES_MAX: Final = 256 * MIB
BENCH_GAPS_MAX: Final = 5_000  # between tokens, that one point's result keeps

assert 9 * 2 * PREFIX_NEWS_MAX < FRAME_BYTES_MAX
assert 5 * 2 * CONTEXT_TOKENS_MAX + 4 * GRAMMAR_CHARS_MAX < FRAME_BYTES_MAX, (
    "a Submit of a full context with the longest grammar must fit in a frame"
)
assert 1 + PARKS_MAX + RESUMES_MAX <= ATTEMPTS_MAX
assert CHOICES_MAX <= SEQUENCES_PER_REQUEST_MAX
assert PROMPTS_MAX <= SEQUENCES_PER_REQUEST_MAX
assert SCHEMA_CHARS_MAX <= GRAMMAR_CHARS_MAX
assert BODY_BYTES_MAX <= FRAME_BYTES_MAX
