"""One request of a false client, and what became of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shared.errors import Refusal


@dataclass(slots=True, eq=False)
class Request:
    """One answer is asked for: it will have `length` tokens, of which only the false model knows.

    `finished` is called once, at its end, whatever that is. `beside` are all answers of the one HTTP request.
    `running` says whether the worker may hold it: also while it is being parked. One with `kills_at` kills
    the worker when that token is to be made; those of one `asks` ask the same.
    """

    name: str
    kind: str
    lane: str
    prompt_tokens: int
    length: int
    max_tokens: int
    deadline_s: float
    key: str = ""
    weight: float = 1.0
    finished: Callable[["Request"], None] | None = None
    asks: str = ""
    kills_at: int | None = None

    beside: Sequence["Request"] = ()
    came_at: float = 0.0
    queued: bool = False
    queued_at: float = 0.0
    running: bool = False
    ended: bool = False
    completed: bool = False
    refusal: Refusal | None = None
    attempt: int = 0
    parks: int = 0
    interruptions: int = 0
    first_start_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float = 0.0
    ended_at: float = 0.0
    tokens: list[int] = field(default_factory=list)
    prefilled: int = 0
    computed: int = 0

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_at is None else self.first_token_at - self.came_at
