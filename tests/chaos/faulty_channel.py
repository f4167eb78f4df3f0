"""A wire that loses, doubles, swaps, cuts and invents frames, in both directions, by seed."""

import random
from collections import deque
from typing import Final

from shared.channel import RouterChannel
from shared.codec import encode
from shared.messages import Cancel, Finished, Message, Parked, Ping, Step, StepRow

KINDS: Final = ("lost", "doubled", "late", "cut", "noise", "foreign")

_STRANGE_EPOCH: Final = 77
# Words of a life that nobody knows, and of sequences that nobody has.
_FOREIGN: tuple[Message, ...] = (
    Step(_STRANGE_EPOCH, 1, 1.0, 1.0, (StepRow("nobody", 1, 0, 5),), ()),
    Step(1, 1, 1.0, 1.0, (StepRow("nobody", 1, 0, 5),), ()),
    Finished(1, "nobody", 1, 3, "stop"),
    Parked(_STRANGE_EPOCH, "nobody", 1, 0),
    Cancel(_STRANGE_EPOCH, "nobody"),
    Cancel(1, "nobody"),
    Ping(_STRANGE_EPOCH, 9),
)


class FaultyRouter(RouterChannel):
    """Each frame meets a fault with a probability, until it is `healed`; `faults` are those met, in order.

    Which one comes next is dealt from a shuffled deck of all kinds: each six from the start are all six.
    """

    def __init__(self, endpoint: str, seed: int, share: float) -> None:
        super().__init__(endpoint)
        self._random = random.Random(seed)
        self._share = share
        self._deck: list[str] = []
        self._came: deque[tuple[bytes, bytes]] = deque()
        self._held_in: tuple[bytes, bytes] | None = None
        self._held_out: tuple[bytes, bytes] | None = None
        self.faults: list[str] = []

    @property
    def has_met_all(self) -> bool:
        return len(self.faults) >= len(KINDS)

    def heal(self) -> None:
        """Let frames pass as they are, from now on."""
        self._share = 0.0

    async def receive(self) -> tuple[bytes, bytes]:
        while not self._came:
            arrived = await super().receive()
            frames, self._held_in = self._meets(arrived, self._held_in)
            self._came.extend(frames)
        return self._came.popleft()

    async def send(self, identity: bytes, frame: bytes) -> bool:
        frames, self._held_out = self._meets((identity, frame), self._held_out)
        results = [await super(FaultyRouter, self).send(*each) for each in frames]
        return all(results)

    def _meets(
        self, given: tuple[bytes, bytes], held: tuple[bytes, bytes] | None
    ) -> tuple[list[tuple[bytes, bytes]], tuple[bytes, bytes] | None]:
        """Return what becomes of a frame, and the one that is held back until the next."""
        fault = self._fault()
        peer, frame = given
        now = [given]
        match fault:
            case "lost":
                now = []
            case "doubled":
                now = [given, given]
            case "late" if held is None:
                return [], given
            case "cut":
                now = [(peer, frame[: self._random.randrange(len(frame))])]
            case "noise":
                now = [(peer, self._random.randbytes(self._random.randrange(40))), given]
            case "foreign":
                now = [(peer, encode(self._random.choice(_FOREIGN))), given]
        return (now if held is None else [*now, held]), None

    def _fault(self) -> str:
        if self._random.random() >= self._share:
            return ""
        if not self._deck:
            self._deck = self._random.sample(KINDS, len(KINDS))
        self.faults.append(self._deck.pop())
        return self.faults[-1]
