"""Starts a worker process, `worker.process`, without what mlx-lm imports for tokenizers and downloads alone.

A worker gets ids, and its model's folder is there. Transformers takes longer to import than all the rest of a
worker, so each way back from a death would be longer by that.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final, NoReturn

# mlx-lm's modules take names from these when they are imported, and use them for nothing that a worker does.
LEFT_OUT: Final = ("transformers", "transformers.tokenization_utils_base", "huggingface_hub")


class _StandIn(ModuleType):
    """A module in which every name is a class that can do nothing but be there."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"register": staticmethod(_ignore)})


def _ignore(*_arguments: object, **_options: object) -> None:
    """Take what mlx-lm registers with Transformers when it is imported."""


class _StandsIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stand-ins before Python finds the packages."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in LEFT_OUT:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing of it is run."""


@contextmanager
def without_tokenizers() -> Iterator[None]:
    """Let mlx-lm be imported with stand-ins, then take them away: a model's own code gets the real ones."""
    finder = _StandsIn()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in LEFT_OUT:
            if isinstance(sys.modules.get(name), _StandIn):
                sys.modules.pop(name)


def main() -> NoReturn:
    """Run one life of a worker."""
    with without_tokenizers():
        from worker import process  # noqa: PLC0415 (what it imports must find the stand-ins)
    process.main()


if __name__ == "__main__":
    main()
