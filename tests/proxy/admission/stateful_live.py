"""Answers as the other side of a core under test knows them: clients and the worker."""

from dataclasses import dataclass


@dataclass(slots=True)
class Request:
    """What the answers of one request have in common."""

    deadline_at: float
    started: bool = False


@dataclass(slots=True)
class Live:
    """One answer, as its client and the worker see it."""

    name: str
    lane: str
    key: str
    prompt: int
    most: int
    request: Request
    standing: str = "queued"
    emitted: int = 0
    parks: int = 0
    parked_at: int = 0
    asks: str | None = None

    @property
    def fingerprint(self):
        return f"what {self.name} asks" if self.asks is None else self.asks
