"""The ledger of bytes: what the running answers may grow to, against what the worker can hold."""

from shared.messages import ModelFacts


class Ledger:
    """Reserves prompt + max_tokens in full for every answer that runs. Returns to zero when idle.

    The batch is padded to its longest row, so what a set of answers takes isn't the sum of its parts: the
    ledger keeps their lengths and asks the model's facts for the bytes of the whole set.
    """

    def __init__(self, facts: ModelFacts, budget_bytes: int) -> None:
        self._facts = facts
        self.budget_bytes = budget_bytes
        self._tokens: dict[str, int] = {}

    @property
    def reserved_bytes(self) -> int:
        return self._facts.batch_bytes(len(self._tokens), max(self._tokens.values(), default=0))

    @property
    def rows(self) -> int:
        return len(self._tokens)

    def fits(self, tokens: int) -> bool:
        """Whether an answer of `tokens`, prompt included, fits beside those that run."""
        longest = max(tokens, max(self._tokens.values(), default=0))
        return self._facts.batch_bytes(len(self._tokens) + 1, longest) <= self.budget_bytes

    def could_ever_fit(self, tokens: int) -> bool:
        """Whether an answer of `tokens` fits in an empty worker."""
        return self._facts.batch_bytes(1, tokens) <= self.budget_bytes

    def reserve(self, name: str, tokens: int) -> None:
        assert name not in self._tokens, f"{name} holds a reservation already"
        assert self.fits(tokens), f"{name} doesn't fit"
        self._tokens[name] = tokens

    def release(self, name: str) -> None:
        """Give a reservation back; without one, nothing happens."""
        self._tokens.pop(name, None)
