"""No file can grow: the gateway serves all the same, and says once what it can't keep."""

import asyncio
import os
import signal

import pytest

from tests.chaos.faults import Plan
from tests.chaos.house import House
from worker.journal import FILE_NAME as JOURNAL

pytestmark = pytest.mark.timeout(300)

# How long a file may be; more than the memory in which a worker writes down what it runs, which is no file.
FULL_BYTES = 2 << 20


async def test_a_full_disk_costs_words_and_no_service() -> None:
    plan = Plan(poison={"!": "exit"}, fills_stderr=True)
    async with House(plan, worker={"journal_mb": 1024}) as house:
        logs = house.home / "logs"
        logs.mkdir()
        (logs / JOURNAL).write_bytes(b"\n" * FULL_BYTES)
        supervisor = house.process_of_supervisor(file_bytes_max=FULL_BYTES)
        proxy = await house.process_of_proxy(file_bytes_max=0)
        try:
            async with supervisor as said:
                await house.gets_at_last("one", 4)
                os.kill(house.pids()[0], signal.SIGKILL)
                await house.gets_at_last("two", 4)
                assert not (await house.ask("kill!", 4)).whole
                assert (await house.ask("kill!", 4)).status == 422
                await house.gets_at_last("three", 4)
                words = said.read_text()
        finally:
            proxy.terminate()
            _, proxy_words = await asyncio.to_thread(proxy.communicate)
        assert words.count("the journal can't be written") == 1
        assert proxy_words.count(b"the quarantine isn't kept") == 1
        assert not list(house.home.glob("quarantine*"))
        assert (logs / JOURNAL).read_bytes() == b"\n" * FULL_BYTES
