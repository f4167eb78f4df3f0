"""Prompts on disk, with real processes: after a death or restart, damaged, removed; and keys that share none.

One home for all: its first gateway loses its worker in the middle of a stream and is stopped, its second one
finds what that left behind.
"""

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from shared.limits import PREFIX_BLOCK_TOKENS
from tests.served.client import Streamed, chat, complete, together
from tests.served.gateway import Gateway, running, wait_until

pytestmark = [pytest.mark.served, pytest.mark.timeout(300)]

ON_DISK = {"FOREBAY_WORKER__PREFIX_DISK_GB": "1"}
TOKENS = 12
MILL_BLOCKS = 2  # whole ones of its prompt
MILL = chat("Tell me the story of the mill at the river. " * 12, max_tokens=TOKENS, temperature=0)
LIGHTHOUSE = chat("Who keeps the lighthouse on the cliff, and since when? " * 10, max_tokens=4, temperature=0)
HARBOUR = chat("Which ships lie in the harbour of the old town? " * 10, max_tokens=2, temperature=0)
WITH_USAGE = {"stream_options": {"include_usage": True}}


@dataclass(frozen=True)
class Before:
    """What the first gateway said, how many blocks its second worker read, and what it left behind."""

    home: Path
    mill: Streamed
    lighthouse: str
    reads: int
    damaged: dict[Path, bytes]


def prefixes(gateway: Gateway) -> dict[str, int]:
    return gateway.ready_body()["worker"]["prefixes"]


def files(home: Path) -> set[Path]:
    return set((home / "prefixes").rglob("*.kv"))


def ask(gateway: Gateway, body: dict) -> str:
    async def one() -> str:
        async with aiohttp.ClientSession() as session:
            return await complete(session, gateway.url, body)

    return asyncio.run(one())


def cached(gateway: Gateway, body: dict, key: str = "") -> tuple[str, int]:
    """Return an answer's text, and how many tokens of its prompt were there already."""

    async def one() -> tuple[str, int]:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{gateway.url}/v1/chat/completions", json=body) as response,
        ):
            assert response.status == 200, await response.text()
            whole = await response.json()
            found = whole["usage"]["prompt_tokens_details"]["cached_tokens"]
            return whole["choices"][0]["message"]["content"], found

    return asyncio.run(one())


def whole_blocks(usage: dict) -> int:
    return (usage["prompt_tokens"] - 1) // PREFIX_BLOCK_TOKENS


@pytest.fixture(scope="module")
def before(tmp_path_factory, demo_folder) -> Before:
    """Ask for a story, kill the worker in it, ask for another one, and stop everything."""
    home = tmp_path_factory.mktemp("kept")
    with running(home, demo_folder.path, **ON_DISK) as gateway:

        def kill(number: int) -> None:
            if number == 3:
                wait_until(lambda: len(files(home)) >= MILL_BLOCKS, "its prompt is on disk")
                gateway.kill_worker(signal.SIGKILL)

        (mill,) = asyncio.run(together(gateway.url, [{**MILL, **WITH_USAGE}], kill))
        reads = prefixes(gateway)["disk_reads"]
        of_the_mill = files(home)
        lighthouse = ask(gateway, LIGHTHOUSE)
        wait_until(lambda: len(files(home) - of_the_mill) >= 2, "the other prompt is on disk")
    damaged = {path: _flipped(path.read_bytes()) for path in files(home) - of_the_mill}
    for path, content in damaged.items():
        path.write_bytes(content)
    return Before(home, mill, lighthouse, reads, damaged)


def _is_mended(path: Path, bad: bytes) -> bool:
    try:
        return path.read_bytes() != bad
    except FileNotFoundError:
        return True


def _flipped(content: bytes) -> bytes:
    """Return it with one bit changed, among keys and values."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.fixture(scope="module")
def after(before: Before, demo_folder) -> Iterator[Gateway]:
    """The same home after a restart of all of it, and a bit changed in each of the second prompt's files.

    With as many threads as a user's worker has, which has to say the same.
    """
    with running(before.home, demo_folder.path, as_a_users=True, **ON_DISK) as gateway:
        yield gateway


def test_a_stream_goes_on_after_a_death_with_its_prompt_from_disk(gateway, before):
    """A gateway that nobody harmed and that has no disk says the same."""
    assert before.mill.text == ask(gateway, MILL)
    assert before.mill.done
    usage = before.mill.chunks[-1]["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0, "when it was asked nothing was there"
    assert whole_blocks(usage) == MILL_BLOCKS
    assert before.reads >= MILL_BLOCKS


def test_what_is_on_disk_is_for_its_owner_alone(before):
    kept = before.home / "prefixes"
    everything = [kept, *kept.rglob("*")]
    assert files(before.home)
    assert {path.stat().st_mode & 0o777 for path in everything if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in everything if not path.is_dir()} == {0o600}


def test_a_prompt_of_before_a_restart_is_still_there_but_for_the_rest_of_a_block(before, after):
    text, found = cached(after, MILL)
    assert text == before.mill.text
    assert found == PREFIX_BLOCK_TOKENS * MILL_BLOCKS


def test_a_file_in_which_a_bit_was_flipped_is_counted_removed_and_computed_again(before, after):
    text, found = cached(after, LIGHTHOUSE)
    assert text == before.lighthouse
    assert found < PREFIX_BLOCK_TOKENS, "what all prompts of this model begin with"
    wait_until(lambda: prefixes(after)["disk_bad"] > 0, "it is counted")
    wait_until(lambda: after.metric("forebay_prefix_disk_bad_total")[""] > 0, "metrics count it too")
    wait_until(lambda: any(_is_mended(path, bad) for path, bad in before.damaged.items()), "it is removed")


def test_answers_go_on_when_the_folder_is_removed(before, after):
    shutil.rmtree(before.home / "prefixes")
    assert cached(after, MILL)[0] == before.mill.text
    assert cached(after, HARBOUR)[1] < PREFIX_BLOCK_TOKENS
    assert cached(after, HARBOUR)[1] > PREFIX_BLOCK_TOKENS
    assert after.ready_body()["worker"]["deaths"] == 0


def test_keys_that_share_no_prefixes_find_their_own_and_nobody_elses(after):
    """The last of all: from the first key on, every request needs one."""
    keys = {name: _order(after, "keys", "add", name, "--private-prefixes") for name in ("ann", "ben")}
    keys["common"] = _order(after, "keys", "add", "common")
    _order(after, "reload", "--port", str(after.port))
    found = {name: [cached(after, HARBOUR, key)[1] for _ in range(2)] for name, key in keys.items()}
    for name in ("ann", "ben"):
        assert found[name][0] == 0
        assert found[name][1] > PREFIX_BLOCK_TOKENS
    assert found["common"][0] > PREFIX_BLOCK_TOKENS, "it was asked without a key before"


def _order(gateway: Gateway, *words: str) -> str:
    command = [sys.executable, "-m", "ops.cli", *words]
    done = subprocess.run(command, env=gateway.environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()
