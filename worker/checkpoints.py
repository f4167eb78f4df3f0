"""Where prefill stops so that a state can be kept: of families whose caches can't be cut. Pure.

A state is of use to whoever asks with the same beginning up to its very place. Prompts differ from each other
behind the system prompt, behind one of the last turns (an edit, another question, a template that strips what
was thought), or not at all; so these are the places.
"""

from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import Final

CHECKPOINTS_MAX: Final = 5
_LAST_TURNS: Final = 3
_LAST_TURNS_RESUMED: Final = 2

assert 1 + _LAST_TURNS + 1 <= CHECKPOINTS_MAX
assert 1 + _LAST_TURNS_RESUMED + 2 <= CHECKPOINTS_MAX


def checkpoints_of(ids: Seq[int], stop_ids: Collection[int], prompt_tokens: int) -> tuple[int, ...]:
    """Return counts of tokens, ascending, from 1 to len(ids) - 1; `ids` begin with `prompt_tokens` of prompt.

    They are behind the first end of a turn and behind the last ones (a stop id in a prompt ends a turn), and
    at the end of what is prefilled. What goes on with an answer stops also where its prompt's prefill had
    ended: somebody may ask the same again.
    """
    last = len(ids) - 1
    resumes = prompt_tokens < len(ids)
    ends = [place + 1 for place, token in enumerate(ids[:prompt_tokens]) if token in stop_ids]
    ends = [end for end in ends if end < last]
    turns = _LAST_TURNS_RESUMED if resumes else _LAST_TURNS
    places = {*ends[:1], *ends[-turns:], last}
    if resumes:
        places.add(prompt_tokens - 1)
    return tuple(sorted(place for place in places if place > 0))
