"""What the log says of a request when it is over: and never a word of prompt or answer, unless asked."""

from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from proxy.admitted import Admitted
from proxy.failures import Failure
from proxy.notes import Notes
from proxy.prompt_use import prompt_use
from proxy.request import ChatPrompt, IdsPrompt, Measured, Prompt, TextPrompt
from shared.clock import Clock

Outcome = Literal["completed", "refused", "failed", "left"]

PATH_CHARS_MAX: Final = 256
PROMPT_CHARS_MAX: Final = 2000
# What is asked again and again by machines, and says nothing about answers.
_POLLED: Final = ("/health/", "/metrics", "/status")
_POLLED_EXACTLY: Final = ("/", "/admin/status", "/admin/quarantine")
STATUS_LEFT: Final = 499
_STATUS_ERROR: Final = 400


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One request's line. What is None isn't said: it isn't known, or doesn't apply.

    Milliseconds count from when its head was read. `prompt_tokens` counts each prompt once.
    """

    id: str
    method: str
    path: str
    status: int
    outcome: Outcome
    code: str | None = None
    key: str | None = None
    key_class: str | None = None
    lane: str | None = None
    session: str | None = None
    streamed: bool | None = None
    replayed: bool | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    queue_ms: int | None = None
    ttft_ms: int | None = None
    total_ms: int = 0
    attempts: int | None = None
    parks: int | None = None
    prompt: str | None = None

    def facts(self) -> dict[str, Any]:
        """Return what it says, in the order of its fields."""
        pairs = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in pairs if value is not None}


@dataclass(slots=True)
class Ending:
    """How a request came to its end, as far as that is known when it has: by default its client left."""

    status: int = STATUS_LEFT
    failure: Failure | None = None


def line_of(
    notes: Notes, method: str, path: str, ending: Ending, clock: Clock, *, prompts: bool = False
) -> RequestLine:
    """Return the line of a request that is over now; with `prompts` the beginning of its prompt, too."""
    outcome, code = outcome_of(notes, ending)
    return RequestLine(
        id=notes.request_id,
        method=method,
        path=path[:PATH_CHARS_MAX],
        status=ending.status,
        outcome=outcome,
        code=code,
        key=notes.caller.name if notes.caller.key_id else None,
        key_class=notes.caller.key_class or None,
        lane=notes.served_by or None,
        session=notes.session or None,
        replayed=True if notes.replays else None,
        total_ms=round(1000 * (clock.now() - notes.arrived_at)),
        **(_answered(notes.admitted) if notes.admitted else {}),
        prompt=_prompt(notes.admitted.measured) if prompts and notes.admitted else None,
    )


def is_polled(method: str, path: str) -> bool:
    """Whether a request is one of those that machines make every few seconds."""
    return method in {"GET", "HEAD"} and (path in _POLLED_EXACTLY or path.startswith(_POLLED))


def outcome_of(notes: Notes, ending: Ending) -> tuple[Outcome, str | None]:
    """Return what became of a request, and by which code if it wasn't answered."""
    admitted = notes.admitted
    begun = admitted is not None and admitted.started_at is not None
    if ending.failure is not None:
        ours = ending.failure.status == 500  # What nobody foresaw.
        return "failed" if begun or ours else "refused", ending.failure.reason
    if admitted is not None and admitted.failed_code:
        return "failed" if begun else "refused", admitted.failed_code
    if ending.status == STATUS_LEFT:
        return "left", None
    return ("refused", None) if ending.status >= _STATUS_ERROR else ("completed", None)


def finish_reason(admitted: Admitted) -> str | None:
    """Return why the answers ended, if all have and for one reason; "mixed" if for several."""
    reasons = {sequence.reason for sequence in admitted.sequences}
    if None in reasons:
        return None
    return str(reasons.pop()) if len(reasons) == 1 else "mixed"


def output_tokens(admitted: Admitted) -> int:
    return sum(len(sequence.emitted) for sequence in admitted.sequences)


def prompt_tokens(measured: Measured) -> int:
    return sum(map(len, measured.prompt_ids))


def parks(admitted: Admitted) -> int:
    return sum(sequence.parks for sequence in admitted.sequences)


def _answered(admitted: Admitted) -> dict[str, Any]:
    first_at = admitted.first_at
    return {
        "streamed": admitted.measured.parsed.stream,
        "prompt_tokens": prompt_tokens(admitted.measured),
        "cached_tokens": prompt_use(admitted).cached,
        "output_tokens": output_tokens(admitted),
        "finish_reason": finish_reason(admitted),
        "queue_ms": admitted.queue_ms,
        "ttft_ms": None if first_at is None else round(1000 * (first_at - admitted.arrived_at)),
        "attempts": admitted.attempts,
        "parks": parks(admitted),
    }


def _prompt(measured: Measured) -> str:
    """Return the beginning of a request's prompts. What is longer isn't even put together."""
    parts: list[str] = []
    room = PROMPT_CHARS_MAX
    for text in (text for prompt in measured.parsed.prompts for text in _texts(prompt)):
        parts.append(text[:room])
        room -= len(parts[-1]) + 1
        if room <= 0:
            break
    return "\n".join(parts)


def _texts(prompt: Prompt) -> list[str]:
    match prompt:
        case ChatPrompt():
            return [f"{message['role']}: {message.get('content') or ''}" for message in prompt.messages]
        case TextPrompt(text, suffix):
            return [text, suffix] if suffix else [text]
        case IdsPrompt(given):
            return [" ".join(map(str, given[:PROMPT_CHARS_MAX]))]
