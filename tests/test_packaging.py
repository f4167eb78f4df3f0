"""The distribution: its top-level names are its own, its pins are as agreed, and MLX stays in the worker."""

import functools
import importlib.util
import subprocess
import sys
import tomllib
from importlib.metadata import distributions, packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PACKAGES = ("proxy", "worker", "shared", "ops")


@functools.cache
def project() -> dict[str, Any]:
    content: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return content


@functools.cache
def owners() -> dict[str, set[str]]:
    """Return which other distributions put files under one of our top-level names."""
    found: dict[str, set[str]] = {}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        for file in distribution.files or ():
            top = file.parts[0].removesuffix(".py")
            if top in PACKAGES and name != "forebay":
                found.setdefault(top, set()).add(name)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_a_top_level_name_belongs_to_forebay_alone(package: str) -> None:
    assert set(packages_distributions()[package]) == {"forebay"}
    assert owners().get(package, set()) == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_imported_from_this_tree(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin == str(ROOT / package / "__init__.py")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_with_code_is_a_package_so_that_it_is_shipped(package: str) -> None:
    folders = {file.parent for file in (ROOT / package).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []
    assert (ROOT / package / "py.typed").is_file()
    assert f"{package}*" in project()["tool"]["setuptools"]["packages"]["find"]["include"]


def test_every_file_of_the_status_page_is_shipped() -> None:
    package = ROOT / "proxy" / "status"
    patterns = project()["tool"]["setuptools"]["package-data"]["proxy.status"]
    shipped = {file for pattern in patterns for file in package.glob(pattern) if file.is_file()}
    files = {file for file in (package / "assets").rglob("*") if file.is_file()}
    assert {"index.html", "page.js", "uplot.iife.min.js", "uplot.LICENSE"} <= {file.name for file in files}
    assert files - shipped == set()


def requirements() -> list[Requirement]:
    return [Requirement(line) for line in project()["project"]["dependencies"]]


def test_mlx_lm_is_pinned_exactly_and_nothing_else_is() -> None:
    exact = {
        requirement.name
        for requirement in requirements()
        if any(part.operator == "==" for part in requirement.specifier)
    }
    assert exact == {"mlx-lm"}


def test_every_other_dependency_has_a_floor_and_a_ceiling() -> None:
    for requirement in requirements():
        operators = {part.operator for part in requirement.specifier}
        assert operators & {"==", "~="} or operators == {">=", "<"}, str(requirement)


def test_python_is_new_enough_and_nobody_uploads_this() -> None:
    assert project()["project"]["requires-python"] == ">=3.11"
    assert "Private :: Do Not Upload" in project()["project"]["classifiers"]


@pytest.mark.parametrize("module", ["proxy.__main__", "worker.__main__", "ops.cli", "ops.up"])
def test_only_the_worker_process_imports_mlx(module: str) -> None:
    assert mlx_after(f"import {module}") == ""


def test_the_look_for_mlx_can_find_it() -> None:
    assert mlx_after("import mlx.core") == "mlx"


def mlx_after(code: str) -> str:
    """Run code in a fresh interpreter and return which of MLX's packages it has loaded."""
    look = "import sys; print(*sorted({'mlx', 'mlx_lm'} & {name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{look}"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout.strip()
