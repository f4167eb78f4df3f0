"""What Anthropic's clients expect to read of an answer: its blocks, its usage and why it ended, as JSON.

Blocks are written as text, and not built first, because a call's arguments go in as the model wrote them: a
number that is read and written again might be another one.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

from proxy.answer import Answer, Call, EndReason, Piece, Text, Thought, Usage, chars_of, joined
from proxy.dialects.dialect import Head
from proxy.request import Parsed

encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
ID_PREFIX: Final = "msg_"
# It has to be there, and clients drop thoughts whose signature is empty instead of giving them back.
SIGNATURE: Final = "forebay"
# Anthropic's tiers; a lane that is called something else there is its standard.
_TIERS: Final = {"priority": "priority", "flex": "batch", "batch": "batch"}


def message(head: Head, parsed: Parsed, answer: Answer, usage: Usage) -> bytes:
    """Return a whole answer's body."""
    pieces = joined(filter(chars_of, answer.pieces))
    content = ",".join(_blocks(head, pieces, shows_thoughts=shows_thoughts(parsed)))
    ended = ending_of(answer.reason, answer.stop, len(answer.calls), cut=is_cut_short(parsed, usage))
    ending = encode({**ended, "usage": usage_of(usage, head.service_tier)})
    return f'{encode(head_of(head))[:-1]},"content":[{content}],{ending[1:]}'.encode()


def head_of(head: Head) -> dict[str, Any]:
    return {"id": head.id, "type": "message", "role": "assistant", "model": head.model}


def shows_thoughts(parsed: Parsed) -> bool:
    """Whether a client wants to read thoughts; that there were some it is told anyway."""
    return bool(parsed.extras.get("shows_thoughts", True))


def is_cut_short(parsed: Parsed, usage: Usage) -> bool:
    """Whether an answer that ended by its length has less than it might have had: the context was full."""
    return usage.completion_tokens < (parsed.max_tokens or 0)


def ending_of(reason: EndReason, stop: str | None, calls: int, *, cut: bool) -> dict[str, Any]:
    """Return why an answer ended that made so many calls; if by its length, `cut` says whose bound it was."""
    if stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    if reason == "length":
        why = "model_context_window_exceeded" if cut else "max_tokens"
        return {"stop_reason": why, "stop_sequence": None}
    return {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}


def usage_of(usage: Usage, tier: str) -> dict[str, Any]:
    """Return what is said where an answer is whole, and where its stream begins."""
    return {
        **totals_of(usage),
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "service_tier": _TIERS.get(tier, "standard"),
    }


def totals_of(usage: Usage) -> dict[str, Any]:
    """Return the counts; the prompt's tokens that were there already are apart from the others."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.thought_tokens},
    }


def call_id(head: Head, number: int) -> str:
    """Return the id of an answer's call by its place among them: the same, whole or streamed."""
    return f"toolu_{head.id.removeprefix(ID_PREFIX)}{number:02}"


def _blocks(head: Head, pieces: Iterable[Piece], *, shows_thoughts: bool) -> Iterable[str]:
    calls = 0
    for piece in pieces:
        match piece:
            case Text(text):
                yield f'{{"type":"text","text":{encode(text)}}}'
            case Thought(text):
                yield thought_block(text if shows_thoughts else "", SIGNATURE)
            case Call(name, arguments):
                yield call_block(call_id(head, calls), name, arguments)
                calls += 1


def thought_block(text: str, signature: str) -> str:
    return f'{{"type":"thinking","thinking":{encode(text)},"signature":{encode(signature)}}}'


def call_block(id_: str, name: str, arguments: str) -> str:
    return f'{{"type":"tool_use","id":{encode(id_)},"name":{encode(name)},"input":{arguments}}}'
