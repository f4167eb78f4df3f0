"""The worker keeps nothing of MLX in globals (no key of chance, array or stream), and changes no library."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import mlx.core as mx
import numpy as np
import pytest

from shared.sampling import Sampling
from tests.house_rules import ROOT
from tests.worker.tiny_models import tiny
from tests.worker.workbench import Workbench

FILES: Final = sorted((ROOT / "worker").rglob("*.py"))
# What is set for the process as a whole, once, when it starts.
_ALLOWED_AT_START: Final = ("worker/memory.py",)
# It runs in a process of `forebay plan`'s, which computes nothing and ends.
_NEVER_IN_A_WORKER: Final = ("estimate_graph.py",)


def problems(path: str, text: str) -> list[str]:
    tree = ast.parse(text)
    names = _imported_of_mlx(tree)
    found = [
        *(
            (node.lineno, "chance of the process")
            for node in ast.walk(tree)
            if _is_global_chance(node, names)
        ),
        *((node.lineno, "made when imported") for node in _run_at_import(tree) if _is_call_of(node, names)),
        *((node.lineno, "changes a library") for node in ast.walk(tree) if _changes(node, names)),
        *((node.lineno, "a default") for node in ast.walk(tree) if _sets_default(node, names, path)),
    ]
    return [f"{path}:{line}: {problem}" for line, problem in sorted(found)]


def _imported_of_mlx(tree: ast.Module) -> set[str]:
    """Return the names in a file that stand for mlx, mlx-lm, or something of theirs."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                alias.asname or alias.name.split(".")[0]
                for alias in node.names
                if alias.name.split(".")[0] in ("mlx", "mlx_lm")
            }
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("mlx", "mlx_lm"):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def _dotted(node: ast.AST) -> list[str]:
    """Return the names of `a.b.c`, also where it is called or looked into on the way."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
        node = node.func if isinstance(node, ast.Call) else node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def _is_global_chance(node: ast.AST, names: set[str]) -> bool:
    """Whatever `mx.random` gives is drawn from the process's key, unless it is handed one."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "mlx.core.random" or (
            node.module == "mlx.core" and any(alias.name == "random" for alias in node.names)
        )
    parts = _dotted(node) if isinstance(node, ast.Attribute) else []
    return bool(parts) and parts[0] in {*names, "np", "numpy"} and "random" in parts[1:]


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs when a file is imported: all but the insides of functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            outside = [*child.args.defaults, *filter(None, child.args.kw_defaults)]
            outside += [] if isinstance(child, ast.Lambda) else child.decorator_list
            for each in outside:
                yield each
                yield from _run_at_import(each)
        else:
            yield child
            yield from _run_at_import(child)


def _is_call_of(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Call) and _dotted(node.func)[:1] != [] and _dotted(node.func)[0] in names


def _changes(node: ast.AST, names: set[str]) -> bool:
    """Whether something is set in, or taken from, what is mlx's or mlx-lm's own."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            changed: list[ast.AST] = list(targets)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            changed = [target]
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[owner, *_]):
            return _dotted(owner)[:1] != [] and _dotted(owner)[0] in names
        case _:
            return False
    inner = [part for each in changed for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
    return any(
        isinstance(each, ast.Attribute | ast.Subscript)
        and (
            _dotted(each)[:1] != [] and (_dotted(each)[0] in names or _dotted(each)[:2] == ["sys", "modules"])
        )
        for each in inner
    )


def _sets_default(node: ast.AST, names: set[str], path: str) -> bool:
    parts = _dotted(node.func) if isinstance(node, ast.Call) else []
    return (
        bool(parts) and parts[0] in names and parts[-1].startswith("set_") and path not in _ALLOWED_AT_START
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_workers_code_keeps_nothing_of_mlxs_in_globals(file: Path) -> None:
    found = problems(str(file.relative_to(ROOT)), file.read_text("utf-8"))
    if file.name in _NEVER_IN_A_WORKER:
        found = [each for each in found if not each.endswith("changes a library")]
    assert found == []


def test_a_worker_imports_nothing_that_may_change_a_library() -> None:
    importers = {file.name for file in FILES if "worker.engine.estimate" in file.read_text("utf-8")}
    assert importers
    assert all(name.startswith("estimate") for name in importers)


@pytest.mark.parametrize(
    "text",
    [
        "import mlx.core as mx\ndef f():\n    mx.random.seed(1)\n",
        "import mlx.core as mx\ndef f():\n    return mx.random.normal((2,))\n",
        "import mlx.core as mx\ndraw = mx.random\n",
        "from mlx.core import random\n",
        "import numpy as np\ndef f():\n    np.random.seed(1)\n",
        "import mlx.core as mx\nZERO = mx.array(0)\n",
        "import mlx.core as mx\nclass A:\n    zero = mx.zeros((1,))\n",
        "import mlx.core as mx\ndef f(zero=mx.array(0)):\n    pass\n",
        "import mlx.core as mx\n@mx.compile\ndef f():\n    pass\nSTREAM = mx.new_stream(mx.gpu)\n",
        "from mlx.core import array\nZEROS = [array(0)]\n",
        "import mlx_lm.models.base as base\nbase.scaled_dot_product_attention = None\n",
        "import mlx_lm\ndef f():\n    mlx_lm.models.base.x = 1\n",
        "from mlx_lm.models.cache import KVCache\ndef f():\n    KVCache.step = 1\n",
        "from mlx_lm.models import base\ndef f():\n    setattr(base, 'x', 1)\n",
        "from mlx_lm.models import base\ndef f():\n    base.__dict__['x'] = 1\n",
        "import sys\ndef f():\n    sys.modules['mlx_lm'] = 1\n",
        "from mlx_lm.models import base\ndef f():\n    del base.x\n",
        "import mlx.core as mx\ndef f():\n    mx.set_default_device(mx.cpu)\n",
        "import mlx.core as mx\ndef f():\n    mx.set_default_stream(mx.new_stream(mx.cpu))\n",
    ],
)
def test_each_rule_can_fail(text: str) -> None:
    assert problems("worker/a.py", text)


@pytest.mark.parametrize(
    "text",
    [
        "import mlx.core as mx\nPlanes = list[mx.array]\ndef f():\n    return mx.array(0)\n",
        "import mlx.core as mx\ndef f(part):\n    part.step = 1\n    part.keys[0] = mx.array(1)\n",
        "import random\ndef f():\n    return random.Random(1).random()\n",
        "import mlx.core as mx\nclass A:\n    dtype: mx.Dtype = mx.float32\n",
    ],
)
def test_what_is_no_state_passes(text: str) -> None:
    assert problems("worker/a.py", text) == []


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_an_answer_leaves_the_processs_chance_as_it_was(family: str) -> None:
    """And isn't touched by it: another key gives the same answer."""
    loaded, sampling = tiny(family), Sampling(temperature=1.0, seed=3, top_k=50)
    answers = []
    for seed in (1, 2):
        mx.random.seed(seed)
        before = [np.array(key) for key in mx.random.state]
        answers.append(Workbench(loaded).answer((1, 2, 3), 12, sampling=sampling))
        after = [np.array(key) for key in mx.random.state]
        assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
    assert answers[0] == answers[1]
    assert mx.random.normal((1,)).item() != mx.random.normal((1,)).item()
