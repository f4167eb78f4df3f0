"""What is asked while things break, and what came back, as its client saw it."""

from dataclasses import dataclass

from ops.load.arrivals import dice, prompt


@dataclass(frozen=True, slots=True)
class Ask:
    """A chat request whose answer is known beforehand, by its number. Without a seed it is greedy.

    `leaves_after` is after how many pieces of text its client closes the connection; None: it stays.
    """

    number: int
    prompt: str
    max_tokens: int
    lane: str = "interactive"
    seed: int | None = None
    stream: bool = True
    leaves_after: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """An attempt that got no answer: `took_s` from sending to the status line. Status 0: none came."""

    status: int
    code: str
    took_s: float
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class Said:
    """One request from its first sending to its end; times are seconds of the wall clock, as in journals.

    `endings` is everything that claimed to be the end, in order: "done" ([DONE]), "body" (a whole one that
    isn't streamed), "error CODE" (an event in the stream), "refused STATUS CODE", "left" (the client did),
    "broken KIND" (the connection), and "more" for each event that came after one of these.
    """

    ask: Ask
    sent_at: float
    ended_at: float
    text: str = ""
    endings: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    piece_times: tuple[float, ...] = ()
    tokens: int | None = None
    refusals: tuple[Refused, ...] = ()

    @property
    def completed(self) -> bool:
        return self.endings in (("done",), ("body",))

    @property
    def left(self) -> bool:
        return self.endings == ("left",)


def mixed_asks(seed: int, count: int, tokens: tuple[int, int]) -> list[Ask]:
    """Return asks of all sorts: greedy and seeded, both lanes, streamed and not, of lengths within bounds."""
    numbers = dice(seed, "asks")
    return [
        Ask(
            number=number,
            prompt=prompt(numbers.randint(6, 40), numbers),
            max_tokens=numbers.randint(*tokens),
            lane="batch" if number % 4 == 3 else "interactive",
            seed=numbers.randrange(1 << 16) if number % 2 else None,
            stream=number % 8 != 6,
        )
        for number in range(count)
    ]
