"""A proxy, a worker that may die, and nothing between them but time."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Final

from shared.lane_settings import AdmissionSettings, LaneSettings
from shared.messages import Cancel, Park, Submit
from shared.model_facts import ModelFacts
from tests.simulation.checkers import Checkers
from tests.simulation.clock import Clock
from tests.simulation.costs import KV_BYTES_PER_TOKEN, Costs, facts
from tests.simulation.device import Device
from tests.simulation.front import Front
from tests.simulation.request import Request

_TICK_S: Final = 0.5
_DRAIN_S: Final = 20_000
_CALM_S: Final = 60.0
_POISONED_RESTART_S: Final = 3.0


class World:
    """All of one simulation. Words to the worker are heard at its next turn, its own at a turn's end."""

    def __init__(
        self,
        lanes: Sequence[LaneSettings],
        costs: Costs | None = None,
        settings: AdmissionSettings | None = None,
        model: ModelFacts | None = None,
    ) -> None:
        self.clock = Clock()
        self.costs = costs or Costs()
        self._facts = model or facts()
        self.budget_bytes = self.costs.budget_tokens * KV_BYTES_PER_TOKEN
        settings = settings or AdmissionSettings()
        self.front = Front(lanes, settings, self.clock, self.costs, self._send)
        self.checkers = Checkers(
            self.front, settings, self._facts, self.budget_bytes, self.costs.slots, self.clock
        )
        self.front.watchers.append(self.checkers)
        self.deaths = 0
        self.deaths_of: Counter[str] = Counter()
        self._device: Device | None = None
        self._turning = False
        self._start_worker()
        self._tick()

    def run(self, seconds: float) -> None:
        self.clock.run(self.clock.now + seconds)

    def close(self, lane: str) -> None:
        """Let all that is live end, and check that nothing is held; then 20 tokens must be to be had."""
        self.front.admission.cautioned(0, one_at_a_time=False)
        self.squeeze(1.0)
        self.run(_CALM_S)
        for _ in range(_DRAIN_S):
            if not self.front.live:
                break
            self.run(1.0)
        self.checkers.check_idle()
        last = Request("the last one", "last", lane, 100, 20, 20, deadline_s=60.0)
        self.front.offer([last])
        self.run(120.0)
        assert last.completed, f"with no load, 20 tokens were not to be had: {last.refusal}"
        assert len(last.tokens) == 20
        self.checkers.check_idle()

    # --- the worker ---------------------------------------------------------------------------------------

    def die_at_random(
        self, random: Random, mean_s: float, restart_s: tuple[float, float], until: float
    ) -> None:
        """Let workers die after random times, and others come after random times, until some time."""
        when = self.clock.now + random.expovariate(1 / mean_s)
        if when >= until:
            return

        def die() -> None:
            self.kill(random.uniform(*restart_s))
            self.die_at_random(random, mean_s, restart_s, until)

        self.clock.at(when, die)

    def kill(self, restart_s: float) -> None:
        """Let somebody kill the worker in the middle of what it does, and another one come."""
        self._end_worker(restart_s, blamed=False)

    def replace(self, restart_s: float) -> None:
        """Replace the worker on purpose."""
        self._end_worker(restart_s, blamed=False, planned=True)

    def squeeze(self, share: float) -> None:
        """Let memory be short, until it is squeezed to another share of the budget."""
        self.front.admission.squeezed(int(share * self.budget_bytes))

    def _end_worker(self, restart_s: float, *, blamed: bool, planned: bool = False) -> None:
        device, self._device = self._device, None
        if device is None:
            return
        self.deaths += not planned
        places = device.manifest if self._turning and device.has_turn else {}
        self._turning = False
        self.front.worker_went(planned=planned)
        if not planned:
            self.front.worker_died(places if blamed else {})
        self.clock.after(restart_s, self._start_worker)

    def _die_of(self, device: Device) -> bool:
        """Let the worker die if one that kills is in the turn, at its place."""
        for name, place in device.manifest.items():
            request = self.front.live.get(name)
            # A turn in which prefill brings a token makes two.
            if request is not None and request.kills_at is not None and request.kills_at <= place:
                self.deaths_of[request.asks] += 1
                self._end_worker(_POISONED_RESTART_S, blamed=True)
                return True
        return False

    def _start_worker(self) -> None:
        self._device = Device(self.costs)
        self.front.worker_came(self._facts, self.budget_bytes, self.costs.slots)

    def _send(self, word: Submit | Cancel | Park) -> None:
        assert self._device is not None, "nothing is said to a worker that isn't there"
        self._device.hear(word)
        if not self._turning:
            self._turning = True
            self.clock.after(0.0, partial(self._turn, self._device))

    def _turn(self, device: Device) -> None:
        if device is not self._device:
            return
        turn_ms = device.begin(self.clock.now)
        self.clock.after(turn_ms / 1000, partial(self._turned, device))

    def _turned(self, device: Device) -> None:
        if device is not self._device:
            return
        if self._die_of(device):
            return
        report = device.end()
        self._turning = True
        self.front.heard(report)
        if device.busy or device.waits:
            self.clock.after(0.0, partial(self._turn, device))
        else:
            self._turning = False

    def _tick(self) -> None:
        if not self._turning:
            self.front.decide()
        self.clock.after(_TICK_S, self._tick)
