"""The packages that the scripts beside this need: installed by npm once for each lock file, elsewhere."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent / "ai"
_MISSING = (
    "the AI SDK's clients are run by Node 18 or newer: install it "
    "(Debian: apt-get install nodejs npm; macOS: brew install node)"
)
_INSTALL = ("ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")


def installed() -> Path:
    """Return a folder with the packages in it. Several processes may ask at the same time."""
    npm = shutil.which("npm")
    assert npm, _MISSING
    assert shutil.which("node"), _MISSING
    lock = (HERE / "package-lock.json").read_bytes()
    name = f"forebay-ai-{os.getuid()}-{hashlib.sha256(lock).hexdigest()[:16]}"
    folder = Path(tempfile.gettempdir()) / name
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(prefix=name) as new:
            for file in ("package.json", "package-lock.json"):
                shutil.copy(HERE / file, new)
            done = subprocess.run([npm, *_INSTALL], cwd=new, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"npm can't install the AI SDK: {done.stderr}"
            _moved(Path(new), folder)
    return folder


def _moved(new: Path, folder: Path) -> None:
    """Move what was installed to its place, unless another process was first."""
    ready = new.with_name(f"{new.name}-ready")
    shutil.copytree(new, ready, symlinks=True)
    try:
        ready.rename(folder)
    except OSError:
        shutil.rmtree(ready)
        assert folder.is_dir()
