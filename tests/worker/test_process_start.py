"""A worker starts without Transformers, and takes nothing away from who needs it."""

import subprocess
import sys

from tests.house_rules import ROOT
from worker.process_start import LEFT_OUT
from worker.supervisor import COMMAND


def said_by(code: str) -> list[str]:
    """Return the lines that a fresh interpreter writes."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.splitlines()


START = """
import importlib.util
import sys
from worker.process_start import LEFT_OUT, without_tokenizers
with without_tokenizers():
    from worker import process
"""


def test_a_worker_imports_mlx_lm_and_neither_transformers_nor_the_hub() -> None:
    look = (
        "print('mlx_lm.utils' in sys.modules)\n"
        "print(*[name for name in sys.modules if name.split('.')[0] in LEFT_OUT])\n"
    )
    assert said_by(START + look) == ["True", ""]
    assert COMMAND[-1] == "worker.process_start"


def test_the_code_of_a_model_finds_the_real_packages_afterwards() -> None:
    look = "print(*[importlib.util.find_spec(name).origin for name in ('transformers', 'huggingface_hub')])"
    (origins,) = said_by(START + look)
    assert origins.count("site-packages") == 2


def test_what_was_imported_before_stays() -> None:
    code = (
        "import sys, types\n"
        "sys.modules['transformers'] = mine = types.ModuleType('transformers')\n"
        "from worker.process_start import without_tokenizers\n"
        "with without_tokenizers():\n"
        "    import transformers, huggingface_hub\n"
        "print(sys.modules['transformers'] is mine is transformers, 'huggingface_hub' in sys.modules)\n"
    )
    assert said_by(code) == ["True False"]
    assert set(LEFT_OUT) >= {"transformers", "huggingface_hub"}
