"""Which lane a request is served in, and within which bounds: what it asks for, capped by its key."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from proxy.authenticate import Caller
from proxy.request import Cap, Parsed, Ticket
from shared.errors import InvalidRequest
from shared.lane_settings import LaneSettings

LANE_HEADER: Final = "x-forebay-lane"
_DEADLINE_HEADER: Final = "x-slo-ttft-ms"
_SHOWN_CHARS: Final = 64


class LaneChoice:
    """The configured lanes, the highest first. `context_tokens` is what the model and the worker allow."""

    def __init__(self, lanes: Sequence[LaneSettings], context_tokens: int) -> None:
        self.lanes = tuple(lanes)
        self.context_tokens = context_tokens
        self._ranks = {lane.name: rank for rank, lane in enumerate(lanes)}
        # Clients' libraries send these two for no particular wish.
        self._tiers = {"auto": 0, "default": 0}
        self._tiers |= {tier: rank for rank, lane in enumerate(lanes) for tier in lane.tiers}

    def ticket(self, caller: Caller, parsed: Parsed, headers: Mapping[str, str]) -> Ticket:
        """Return what the request may have. InvalidRequest if it asks for a lane or tier that isn't here.

        The header x-forebay-lane counts before service_tier, and neither raises a key above its lane.
        """
        asked = self._asked(parsed.service_tier, headers)
        ceiling = self._ranks.get(caller.lane, len(self.lanes) - 1) if caller.lane is not None else 0
        lane = self.lanes[max(asked, ceiling)]
        return Ticket(
            caller,
            lane,
            self._context(caller, lane),
            _max_tokens(caller, lane),
            min(lane.deadline_s, wished_deadline_s(headers)),
            caller.salt,
        )

    def _asked(self, tier: str | None, headers: Mapping[str, str]) -> int:
        name = headers.get(LANE_HEADER)
        if name is not None:
            if name not in self._ranks:
                raise InvalidRequest(
                    f"{LANE_HEADER} names no lane here: {_listed(self._ranks)}.", param=LANE_HEADER
                )
            return self._ranks[name]
        if tier is None:
            return 0
        if tier not in self._tiers:
            raise InvalidRequest(
                f"'service_tier' {tier[:_SHOWN_CHARS]!r} asks for no lane here: {_listed(self._tiers)}.",
                param="service_tier",
            )
        return self._tiers[tier]

    def _context(self, caller: Caller, lane: LaneSettings) -> Cap:
        caps = [Cap(self.context_tokens, "This model")]
        if lane.context_tokens is not None:
            caps.append(Cap(lane.context_tokens, f"The lane '{lane.name}'"))
        if caller.context_tokens is not None:
            caps.append(Cap(caller.context_tokens, "This API key"))
        return min(caps, key=lambda cap: cap.tokens)


def _max_tokens(caller: Caller, lane: LaneSettings) -> Cap | None:
    caps = []
    if lane.max_tokens is not None:
        caps.append(Cap(lane.max_tokens, f"The lane '{lane.name}'"))
    if caller.max_tokens is not None:
        caps.append(Cap(caller.max_tokens, "This API key"))
    return min(caps, key=lambda cap: cap.tokens, default=None)


def wished_deadline_s(headers: Mapping[str, str]) -> float:
    """Return the longest wait that a client wishes, infinity by default; InvalidRequest if unusable."""
    text = headers.get(_DEADLINE_HEADER)
    if text is None:
        return math.inf
    try:
        wished_ms = float(text)
    except ValueError:
        wished_ms = math.nan
    if not 0 < wished_ms < math.inf:
        raise InvalidRequest(
            f"{_DEADLINE_HEADER} must be a number of milliseconds over 0.", param=_DEADLINE_HEADER
        )
    return wished_ms / 1000


def _listed(names: Mapping[str, int]) -> str:
    return ", ".join(names)
