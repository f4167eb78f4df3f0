"""Takes all of a device's memory that is left: `python -m ops.chaos.hog`. It is held until stdin ends.

Says "taken BYTES" once nothing more is to be had, and again when it could take more later on. For a device
with memory of its own: where the memory is the system's, everything else would be swapped out or killed.
"""

import select
import sys
from typing import Final

import mlx.core as mx

from shared.limits import MIB
from worker import memory

_PIECES: Final = (1024 * MIB, 64 * MIB, 8 * MIB)
_AGAIN_S: Final = 0.2


def main() -> int:
    report = memory.device_report()
    if not report.is_gpu or report.shares_memory:
        print(f"{report.name} has no memory of its own", file=sys.stderr)
        return 2
    mx.set_cache_limit(0)
    taken: list[mx.array] = []
    while True:
        before = len(taken)
        for piece in _PIECES:
            while _take(piece, taken):
                pass
        if len(taken) > before:
            print("taken", sum(array.nbytes for array in taken), flush=True)
        ready, _, _ = select.select([sys.stdin], [], [], _AGAIN_S)
        if ready and not sys.stdin.read(1):
            return 0


def _take(nbytes: int, taken: list[mx.array]) -> bool:
    try:
        array = mx.full((nbytes,), 1, dtype=mx.uint8)
        mx.eval(array)
    except (RuntimeError, MemoryError):
        return False  # there is no more, which is what was wanted
    taken.append(array)
    return True


if __name__ == "__main__":
    sys.exit(main())
