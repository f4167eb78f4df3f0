"""Conversations of /v1/responses that go on: what a request refers to is looked up, what it adds is kept."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from proxy.dialects.responses import KEEP
from proxy.dialects.responses_items import Item, decoded_items, messages_of, named
from proxy.dialects.responses_request import ASKED, Asked, without_unsaid
from proxy.request import ChatPrompt, Parsed
from proxy.response_store import Kept, KeptItem, ResponseStore, Turn
from shared.clock import Clock
from shared.errors import InvalidRequest, PreviousNotFound
from shared.limits import KIB, MESSAGES_MAX

_BYTES_SMALL: Final = 256 * KIB
_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Conversations:
    """Goes between requests and the store. All of it is one API key's: others' responses aren't there.

    `holds_calls` tells whether the model's calls can be held to schemas.
    """

    def __init__(self, store: ResponseStore, clock: Clock, holds_calls: Callable[[], bool]) -> None:
        self._holds_calls = holds_calls
        self.store = store
        self._clock = clock

    async def prepared(self, parsed: Parsed, key_id: str) -> Parsed:
        """Return a request with its whole conversation for a prompt, and with what keeps its answer.

        Requests of other endpoints stay as they are. Raises PreviousNotFound, or InvalidRequest for a
        reference to an item that isn't kept, an output of a call that isn't there, or too many items.
        """
        asked = parsed.extras.get(ASKED)
        if not isinstance(asked, Asked):
            return parsed
        if asked.unsaid and not self._holds_calls():
            parsed = without_unsaid(parsed, asked)
        turns = self._turns(asked, key_id)
        items = self._looked_up(asked, key_id)
        if not asked.is_whole:
            past = [item.raw for turn in turns for item in turn.items]
            parsed = replace(parsed, prompts=(await self._prompt(parsed, asked, past, items),))
        if not asked.keeps:
            return parsed
        now_s = self._clock.now

        def keep(id_: str, body: bytes, output: Sequence[str]) -> None:
            inputs = tuple(_kept(item) for item in named(items, id_.partition("_")[2] + "i"))
            outputs = tuple(KeptItem(json.loads(item)["id"], item.encode()) for item in output)
            self.store.keep(key_id, Kept(id_, body, (*turns, Turn(inputs, outputs)), now_s()))

        return replace(parsed, extras={**parsed.extras, KEEP: keep})

    def _turns(self, asked: Asked, key_id: str) -> tuple[Turn, ...]:
        if not asked.previous:
            return ()
        kept = self.store.find(key_id, asked.previous, self._clock.now())
        if kept is None:
            raise PreviousNotFound(
                f"'previous_response_id' names '{asked.previous}', which isn't kept here, or not any more.",
                param="previous_response_id",
            )
        return kept.turns

    def _looked_up(self, asked: Asked, key_id: str) -> list[Item]:
        """Return the request's own items, with those in place that it refers to."""
        items = []
        for index, item in enumerate(asked.items):
            if item["type"] == "item_reference":
                raw = self.store.item(key_id, item["id"], self._clock.now())
                if raw is None:
                    param = f"input.{index}.id"
                    problem = f"'{param}' names '{item['id']}', which isn't kept here, or not any more."
                    raise InvalidRequest(problem, param=param)
                items += decoded_items([raw])
            else:
                items.append(item)
        return items

    async def _prompt(
        self, parsed: Parsed, asked: Asked, past: Sequence[bytes], items: Sequence[Item]
    ) -> ChatPrompt:
        """Return the whole conversation; a long one is read in a thread, as a large body is."""
        (prompt,) = parsed.prompts
        assert isinstance(prompt, ChatPrompt), "this endpoint makes no other"
        if len(past) + len(items) > MESSAGES_MAX:
            raise InvalidRequest(
                f"'input' and what goes before it have {len(past) + len(items)} items; "
                f"{MESSAGES_MAX} is the most.",
                param="input",
            )

        def messages() -> tuple[dict[str, object], ...]:
            return messages_of([*decoded_items(past), *items], asked.instructions, len(past))

        small = sum(map(len, past)) <= _BYTES_SMALL
        return replace(prompt, messages=messages() if small else await asyncio.to_thread(messages))


def _kept(item: Item) -> KeptItem:
    return KeptItem(item["id"], _encode(item).encode())
