"""The worker in too small a room: `python -m ops.chaos.bounded_worker BYTES SPEC` bounds its address space.

It is worker.process in all else. Once the model is loaded it may map so many bytes more than it has, and no
more: what needs more than that dies as the allocator and MLX see fit, which is what is to be seen. For Linux.
"""

import resource
import sys
from typing import Final

import psutil

from worker import process
from worker.engine.batch_engine import BatchEngine
from worker.engine.model import LoadedModel
from worker.prefix_disk.tier import DiskTier


def bounded(headroom_bytes: int) -> type[BatchEngine]:
    """Return an engine that bounds its process when it is made."""

    class Bounded(BatchEngine):
        def __init__(
            self,
            loaded: LoadedModel,
            kv_bytes_max: int,
            kept_bytes_max: int = 0,
            tier: DiskTier | None = None,
        ) -> None:
            super().__init__(loaded, kv_bytes_max, kept_bytes_max, tier)
            limit_bytes = psutil.Process().memory_info().vms + headroom_bytes
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, resource.RLIM_INFINITY))

    return Bounded


def main() -> None:
    """Take the bytes from the front of the arguments; what is left is worker.process's own."""
    headroom_bytes: Final = int(sys.argv.pop(1))
    vars(process)["BatchEngine"] = bounded(headroom_bytes)
    process.main()


if __name__ == "__main__":
    main()
