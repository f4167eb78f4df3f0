"""A worker without a model: speaks the wire's language over a real socket, and answers with given ids."""

import asyncio
import contextlib

from shared.channel import DealerChannel
from shared.codec import decode, encode
from shared.messages import (
    Cancel,
    Failed,
    Finished,
    Hello,
    Park,
    Parked,
    PrefillShare,
    RowLogprobs,
    Step,
    StepRow,
    Submit,
)

_TURN_S = 0.001


class FalseWorker:
    """One life of it. `answer` maps a Submit to the ids of its whole answer; a string is a refusal.

    Every row gets one token a turn, up to index `pause_at`; there it stands until that is moved or None. It
    makes no Progress known, so nothing that the proxy forgets to say is set right later. `leaves_out` tells
    of a Submit and an index whether log probabilities that were asked for are forgotten. `cached` maps a
    Submit to how many tokens of it were there already, None to tell nothing of its prefill.
    """

    def __init__(self, endpoint, hello: Hello, answer, pause_at=None):
        self.epoch = hello.epoch
        self.answer = answer
        self.pause_at = pause_at
        self.leaves_out = lambda _submit, _index: False
        self.cached = lambda _submit: None
        self.submits: list[Submit] = []
        self.cancelled: list[str] = []
        self.parked: list[str] = []
        self.rows: dict[str, int] = {}  # name → how many tokens it has
        self._hello = hello
        self._heard_of = False
        self._channel = DealerChannel(endpoint, f"w-0-{hello.epoch}".encode())
        self._task = asyncio.create_task(self._live())

    async def die(self):
        """Leave without a word."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._channel.close()

    def paused_at(self, index):
        """Tell whether all rows there are stand at this index."""
        return bool(self.rows) and set(self.rows.values()) == {index}

    def greet(self):
        """Say Hello; False if no proxy is there."""
        return self._channel.send(encode(self._hello))

    async def _live(self):
        while True:
            self._turn()
            await asyncio.sleep(_TURN_S)

    def _turn(self):
        self._heard_of = self._heard_of or self.greet()
        for frame in self._channel.drain():
            self._take(decode(frame))
        rows = [self._row(name) for name in list(self.rows)]
        if any(rows):
            rows = tuple(row for row in rows if row)
            self._say(Step(self.epoch, 1, 1.0, 1.0 / len(rows), rows, (), self._logprobs(rows)))
        for name in list(self.rows):
            self._end_if_due(name)

    def _take(self, message):
        match message:
            case Submit():
                self._submit(message)
            case Cancel(_, name):
                self.cancelled.append(name)
                self.rows.pop(name, None)
            case Park(_, name) if name in self.rows:
                self.parked.append(name)
                self._say(Parked(self.epoch, name, self._last(name).attempt, self.rows.pop(name)))

    def _submit(self, submit):
        self.submits.append(submit)
        answer = self.answer(submit)
        if isinstance(answer, str):
            self._say(Failed(self.epoch, submit.sequence, submit.attempt, answer))
        else:
            assert list(submit.emitted_ids) == list(answer[: len(submit.emitted_ids)])
            self.rows[submit.sequence] = len(submit.emitted_ids)
            self._tell_prefill(submit)

    def _tell_prefill(self, submit):
        cached = self.cached(submit)
        if cached is not None:
            tokens = len(submit.prompt_ids) + len(submit.emitted_ids) - cached
            share = PrefillShare(submit.sequence, submit.attempt, tokens, 1.0, cached)
            self._say(Step(self.epoch, 1, 0.0, 0.0, (), (share,)))

    def _last(self, name):
        return next(submit for submit in reversed(self.submits) if submit.sequence == name)

    def _row(self, name):
        submit, index = self._last(name), self.rows[name]
        answer = self.answer(submit)[: submit.max_tokens]
        if index == len(answer) or index == self.pause_at:
            return None
        self.rows[name] = index + 1
        return StepRow(name, submit.attempt, index, answer[index])

    def _logprobs(self, rows):
        submits = [self._last(row.sequence) for row in rows]
        return tuple(
            logprobs_of(place, row.index, row.token, submit.sampling.top_logprobs)
            for place, (row, submit) in enumerate(zip(rows, submits, strict=True))
            if submit.sampling.wants_logprobs and not self.leaves_out(submit, row.index)
        )

    def _end_if_due(self, name):
        submit, index = self._last(name), self.rows[name]
        answer = self.answer(submit)
        if index == self.pause_at or index < min(len(answer), submit.max_tokens):
            return
        del self.rows[name]
        reason = "length" if index == submit.max_tokens else "stop"
        self._say(Finished(self.epoch, name, submit.attempt, index, reason))

    def _say(self, message):
        self._channel.send(encode(message))


def logprobs_of(place, index, token, tops):
    """Return what a false worker says of a token: numbers that tell its index; it is the second best."""
    numbers = tuple(-0.5 * (each + 1) - index for each in range(tops))
    best = (token + 1) % 256
    others = ((token + each) % 256 for each in range(2, tops))
    return RowLogprobs(place, -1.0 - index, (best, token, *others)[:tops], numbers)
