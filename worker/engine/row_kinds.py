"""The kinds of rows that the sampler tells apart, and what each takes of memory: plain arithmetic, no MLX."""

from collections.abc import Sequence
from typing import Final

from shared.sampling import Sampling

NARROW: Final = 512
BROAD: Final = 8192
KINDS: Final = ("greedy", "plain", "narrow", "broad", "wide")
_SORTED: Final = ("narrow", "broad", "wide")
FLATTEST: Final = len(_SORTED) - 1

# Bytes for each token of the vocabulary. A repetition penalty keeps a bool, the other two a float32 count.
# Three histories may be alive: before and after a step that is not read yet, and after the step ahead of it.
_SEEN_BYTES: Final = 1
_COUNT_BYTES: Final = 4
_HISTORIES: Final = 3
# While a step is drawn: the logits in float32, then what was measured as the most that is alive at once. A
# narrow row may have to be drawn again as a wide one.
_LOGITS_BYTES: Final = 4
_DRAW_BYTES: Final = {"greedy": 4, "plain": 52, "narrow": 68, "broad": 68, "wide": 68}
_CHANGES_BYTES: Final = 24
_LOGPROBS_BYTES: Final = 24
_MASKING_BYTES: Final = 16


def kind_of(row: Sampling, vocabulary: int, flatness: int = 0) -> str:
    """Return which way a row's tokens are drawn; a flat row needs more sorted, up to FLATTEST."""
    if row.greedy:
        return "greedy"
    if not is_limited(row, vocabulary):
        return _SORTED[flatness] if row.top_p < 1 else "plain"
    return "narrow" if row.top_k <= NARROW else "broad" if row.top_k <= BROAD else "wide"


def is_limited(row: Sampling, vocabulary: int) -> bool:
    """Whether top_k says how many tokens need be sorted."""
    return 0 < row.top_k < vocabulary


def width_of(kind: str, vocabulary: int) -> int:
    """Return how many tokens are sorted for a row of a sorted kind."""
    return min(vocabulary, {"narrow": NARROW, "broad": BROAD, "wide": vocabulary}[kind])


def repeats(row: Sampling) -> bool:
    """Whether the row's history says which tokens of prompt and answer were seen."""
    return row.repetition_penalty != 1.0


def counts(row: Sampling) -> bool:
    """Whether the row's history counts the answer's tokens."""
    return (row.presence_penalty, row.frequency_penalty) != (0.0, 0.0)


def history_bytes(row: Sampling, vocabulary: int) -> int:
    """Return what one history of a row takes on the device, in bytes."""
    return vocabulary * (_SEEN_BYTES * repeats(row) + _COUNT_BYTES * counts(row))


def sampler_bytes(rows: Sequence[Sampling], vocabulary: int) -> int:
    """Return the most that rows' histories and one draw of their tokens take together, in bytes."""
    return sum(_row_bytes(row, vocabulary) for row in rows)


def _row_bytes(row: Sampling, vocabulary: int) -> int:
    changed = bool(row.logit_bias) or row.has_penalties
    drawing = (
        _LOGITS_BYTES
        + _DRAW_BYTES[kind_of(row, vocabulary)]
        + _CHANGES_BYTES * changed
        + _LOGPROBS_BYTES * row.wants_logprobs
        + _MASKING_BYTES * bool(row.grammar)
    )
    return _HISTORIES * history_bytes(row, vocabulary) + vocabulary * drawing
