"""`python -m ops.doctor.probe`: asks MLX, in a process of its own, because MLX can end the process it is in.

Without an argument it computes something and prints the device; with a model's folder and kv_bits it builds
that model, without reading its weights, and prints the kinds of its caches.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def device() -> dict[str, Any]:
    """Return what ops.doctor.device.Device holds, after a product that shows that the device computes."""
    import mlx.core as mx  # noqa: PLC0415 (an import error is a finding, said as the last line)

    from worker.memory import device_report  # noqa: PLC0415 (it imports MLX)

    report = device_report()
    ones = mx.ones((64, 64))
    if float((ones @ ones).sum()) != 64.0**3:
        sys.exit("it computes a wrong product")
    return {
        "version": version("mlx"),
        "name": report.name,
        "is_gpu": report.is_gpu,
        "metal": mx.metal.is_available(),
        "working_set_bytes": report.working_set_bytes,
        "memory_bytes": report.memory_bytes,
        "resource_limit": report.resource_limit,
    }


def caches(folder: Path, kv_bits: int) -> dict[str, str]:
    """Return the kinds of a model's caches, or why mlx-lm can't build it."""
    from mlx_lm.models.cache import make_prompt_cache  # noqa: PLC0415 (takes seconds)
    from mlx_lm.utils import load_model  # noqa: PLC0415 (likewise)

    from worker.engine.row_caches import kind_names, quantise  # noqa: PLC0415 (it imports MLX)

    try:
        model, _config = load_model(folder, lazy=True)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError) as problem:
        return {"problem": next(iter(str(problem).splitlines()), type(problem).__name__)[:300]}
    return {"caches": kind_names(quantise(make_prompt_cache(model), kv_bits))}


if __name__ == "__main__":
    words = sys.argv[1:]
    found = caches(Path(words[0]), int(words[1])) if words else device()
    sys.stdout.write(json.dumps(found))
