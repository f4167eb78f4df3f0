"""What may change while the gateway runs: lanes, keys, caps. Read again as a whole, or not at all."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy.authenticate import KeyRing, refuse_open_door
from proxy.keys import KeyFile, KeyRecord, refuse_unknown_lane
from proxy.lane_choice import LaneChoice
from shared.config import Settings
from shared.errors import SettingsError
from shared.lane_settings import AdmissionSettings, LaneSettings
from shared.logs import Logger

Adopt = Callable[[Sequence[LaneSettings], AdmissionSettings], None]


@dataclass(frozen=True, slots=True)
class Policy:
    """One reading of the configuration and the key file."""

    settings: Settings
    lanes: LaneChoice
    keys: KeyRing

    @classmethod
    def of(
        cls,
        settings: Settings,
        records: Sequence[KeyRecord],
        context_tokens: int,
        *,
        private_prefixes: bool,
    ) -> "Policy":
        """Check settings and keys against each other; SettingsError says what doesn't go together."""
        names = [lane.name for lane in settings.lanes]
        for record in records:
            try:
                refuse_unknown_lane(record.lane, names)
            except SettingsError as problem:
                raise SettingsError(f"the key {record.name!r}: {problem}") from problem
        refuse_open_door(settings.host, records)
        ring = KeyRing(records, private_prefixes=private_prefixes)
        return cls(settings, LaneChoice(settings.lanes, context_tokens), ring)


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload found. `needs_restart` names settings that differ and don't apply before a restart."""

    lanes: tuple[str, ...]
    keys: int
    needs_restart: tuple[str, ...]


class PolicyInForce:
    """The policy that requests are measured by now. A request that has begun keeps what it began with."""

    def __init__(
        self,
        settings: Settings,
        key_file: KeyFile,
        context_tokens: int,
        load: Callable[[], Settings],
        log: Logger,
    ) -> None:
        self._key_file = key_file
        self._context_tokens = context_tokens
        self._load = load
        self._log = log
        self._began_with = settings
        self.now = self._policy(settings, key_file.read())

    async def reload(self, adopt: Adopt) -> Reloaded:
        """Read everything again and go on with it, or raise SettingsError and change nothing.

        Reading happens in a thread: it may take a while, and looks the host's name up.
        """
        try:
            policy, keys = await asyncio.to_thread(self._read)
        except SettingsError as problem:
            self._log.error("reload refused; nothing has changed", problem=str(problem))
            raise
        self.now = policy
        adopt(policy.settings.lanes, policy.settings.admission)
        outcome = Reloaded(
            lanes=tuple(lane.name for lane in policy.settings.lanes),
            keys=keys,
            needs_restart=tuple(_changed(self._began_with, policy.settings)),
        )
        self._log.info(
            "reloaded", lanes=outcome.lanes, keys=outcome.keys, needs_restart=outcome.needs_restart
        )
        return outcome

    def _read(self) -> tuple[Policy, int]:
        """Return a new policy, and how many keys it has. The door that is open is the one it began with."""
        settings, records = self._load(), self._key_file.read()
        refuse_open_door(self._began_with.host, records)
        return self._policy(settings, records), len(records)

    def _policy(self, settings: Settings, records: Sequence[KeyRecord]) -> Policy:
        """Return a policy. What keys share stays as it began, as all of [proxy] does."""
        private = self._began_with.proxy.private_prefixes
        return Policy.of(settings, records, self._context_tokens, private_prefixes=private)


def _changed(before: Settings, after: Settings) -> list[str]:
    """Name the settings, but lanes and admission, that a reload can't apply."""
    names = set(Settings.model_fields) - {"lanes", "admission"}
    return sorted(name for name in names if getattr(before, name) != getattr(after, name))
