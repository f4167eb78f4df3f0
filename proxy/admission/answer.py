"""An answer as admission sees it: what it may take, where it stands, and what it has taken."""

import zlib
from dataclasses import dataclass, field
from enum import Enum

from shared.limits import PREFIX_BLOCK_TOKENS
from shared.prefix_chain import NAME_BITS


@dataclass(frozen=True, slots=True)
class Newcomer:
    """One answer that asks to be queued. `tokens` of it: prompt, and at most `max_tokens` beside it.

    `key` is the API key's id, "" for anonymous callers; `deadline_s` is the longest wait for its start;
    `fingerprint` is the same for the same prompt, asked for in the same way; `names` are those of the whole
    blocks of its prompt, empty where they aren't known.
    """

    name: str
    key: str
    weight: float
    prompt_tokens: int
    max_tokens: int
    deadline_s: float
    fingerprint: str
    names: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.max_tokens

    def shareable_in(self, lane_name: str) -> tuple[int, ...]:
        """Return names of the blocks that its row may hold together with others of its lane.

        The prompt's last token is in none of them. In the worker a prompt waits for no lower lane's that
        begins like it, so for a while rows of two lanes may both hold what they have in common: reserved once
        is only what rows of one lane have.
        """
        lane = zlib.crc32(lane_name.encode()) << NAME_BITS
        return tuple(lane | name for name in self.names[: (self.prompt_tokens - 1) // PREFIX_BLOCK_TOKENS])


class Standing(Enum):
    """Where an answer is.

    What is parking has nothing reserved any more: the worker hears of the park before it hears of whoever
    starts in its place. It is queued again once the worker has said how far it came. A suspect waits for its
    trial, outside its lane's queue.
    """

    QUEUED = "queued"
    RUNNING = "running"
    PARKING = "parking"
    SUSPECT = "suspect"


@dataclass(slots=True)
class Patience:
    """How long the answers of one request may wait; None once the first of them has started."""

    deadline_at: float | None


@dataclass(slots=True, eq=False)
class Answer:
    """From its arrival to its end; changed by admission only.

    `number` orders arrivals; `queued_at` is when it was queued last. `computed` is how many of its tokens
    were ever there: computing those again is the house's affair. `prepaid_ms` were charged to its key
    before the device worked them off. `shareable` are its blocks' names in the ledger.

    `cached` tokens of its prompt are there already: as was expected when it was queued, then when it started,
    until the worker has `begun` with it and said how many there were. It is at token `prefilled` then.
    """

    newcomer: Newcomer
    number: int
    patience: Patience
    queued_at: float
    estimated_wait_s: float
    standing: Standing = field(default=Standing.QUEUED)
    started_at: float = 0.0
    starts: int = 0
    parks: int = 0
    emitted: int = 0
    emitted_at_start: int = 0
    cached: int = 0
    begun: bool = False
    prefilled: int = 0
    computed: int = 0
    prepaid_ms: float = 0.0
    shareable: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return self.newcomer.name

    @property
    def key(self) -> str:
        return self.newcomer.key

    @property
    def tokens_now(self) -> int:
        """Prompt and what has been emitted: what a prefill would compute if nothing were there already."""
        return self.newcomer.prompt_tokens + self.emitted

    @property
    def to_prefill(self) -> int:
        return max(0, self.tokens_now - max(self.cached, self.prefilled))

    @property
    def uncached_tokens(self) -> int:
        """Of its prompt, what isn't there already."""
        return self.newcomer.prompt_tokens - self.cached

    @property
    def remaining(self) -> int:
        return self.newcomer.max_tokens - self.emitted
