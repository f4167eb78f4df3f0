"""The house rules hold in every file, and each rule can fail."""

import functools

import pytest

from tests.house_rules import (
    BOUNDARIES,
    PYTHON_FOLDERS,
    PYTHON_RULES,
    ROOT,
    TEXT_RULES,
    Rule,
    absolute_imports,
    broad_excepts_at_boundaries,
    environment_in_one_place,
    places_of_no_machine,
    python_files,
    reasons_beside_exceptions,
    reasons_for_skips,
    said_purpose,
    short_files,
    short_functions,
    telling_names,
    text_files,
    zmq_in_the_channel,
)

BAD: list[tuple[Rule, str, str]] = [
    (short_files, "proxy/a.py", "x = 1\n" * 401),
    (short_functions, "proxy/a.py", "def f():\n" + "    x = 1\n" * 70),
    (short_functions, "proxy/a.py", "class A:\n    async def f(self):\n" + "        x = 1\n" * 70),
    (said_purpose, "proxy/a.py", "x = 1\n"),
    (absolute_imports, "proxy/a.py", "from .b import c\n"),
    (absolute_imports, "proxy/a.py", "def f():\n    from .. import c\n"),
    (environment_in_one_place, "proxy/a.py", "import os\nx = os.environ['A']\n"),
    (environment_in_one_place, "proxy/a.py", "import os\nx = os.getenv('A')\n"),
    (environment_in_one_place, "proxy/a.py", "from os import environ\n"),
    (telling_names, "proxy/utils.py", ""),
    (telling_names, "worker/helpers/a.py", ""),
    (telling_names, "worker/batch_manager.py", ""),
    (zmq_in_the_channel, "proxy/a.py", "import zmq.asyncio\n"),
    (zmq_in_the_channel, "worker/a.py", "def f():\n    from zmq import Context\n"),
    (broad_excepts_at_boundaries, "proxy/a.py", "try:\n    f()\nexcept Exception:\n    pass\n"),
    (
        broad_excepts_at_boundaries,
        "proxy/a.py",
        "try:\n    f()\nexcept (OSError, BaseException):\n    pass\n",
    ),
    (broad_excepts_at_boundaries, "proxy/a.py", "try:\n    f()\nexcept:\n    pass\n"),
    (reasons_beside_exceptions, "proxy/a.py", "x = 1  # noqa\n"),
    (reasons_beside_exceptions, "proxy/a.py", "x = 1  # noqa: E501, S101\n"),
    (reasons_beside_exceptions, "proxy/a.py", "# ruff: noqa: E501\n"),
    (reasons_beside_exceptions, "proxy/a.py", "x = 1  # type: ignore[assignment]\n"),
    (reasons_for_skips, "tests/a.py", "@pytest.mark.skip\ndef test_a(): ...\n"),
    (reasons_for_skips, "tests/a.py", "@pytest.mark.skipif(True)\ndef test_a(): ...\n"),
    (reasons_for_skips, "tests/a.py", "@pytest.mark.xfail(reason='')\ndef test_a(): ...\n"),
    (reasons_for_skips, "tests/a.py", "pytest.skip()\n"),
    (places_of_no_machine, "README.md", "see /" + "home/someone/forebay"),
    (places_of_no_machine, "README.md", "the index is http:" + "//packages.example"),
    (places_of_no_machine, "Makefile", "get https:" + "//example.com/a/model.gguf"),
]
GOOD: list[tuple[Rule, str, str]] = [
    (short_files, "proxy/a.py", "x = 1\n" * 400),
    (short_functions, "proxy/a.py", "def f():\n" + "    x = 1\n" * 69),
    (said_purpose, "proxy/__init__.py", ""),
    (environment_in_one_place, "shared/config.py", "import os\nx = os.environ\n"),
    (telling_names, "proxy/admission/ledger.py", ""),
    (zmq_in_the_channel, "shared/channel.py", "import zmq\n"),
    (broad_excepts_at_boundaries, "worker/loop.py", "try:\n    f()\nexcept Exception:\n    pass\n"),
    (broad_excepts_at_boundaries, "proxy/a.py", "try:\n    f()\nexcept OSError:\n    pass\n"),
    (
        broad_excepts_at_boundaries,
        "proxy/a.py",
        "try:\n    f()\nexcept Exception as problem:\n    raise ModelError from problem\n",
    ),
    (reasons_beside_exceptions, "proxy/a.py", "x = 1  # noqa: E501 (a table reads better whole)\n"),
    (reasons_beside_exceptions, "proxy/a.py", "x = 1  # type: ignore[misc]  # the stub is wrong\n"),
    (reasons_beside_exceptions, "proxy/a.py", "x = '# noqa'\n"),
    (reasons_for_skips, "tests/a.py", "pytest.skip('no accelerator here')\n"),
    (reasons_for_skips, "tests/a.py", "@pytest.mark.skipif(True, reason='macOS only')\ndef test_a(): ...\n"),
    (reasons_for_skips, "proxy/a.py", "reader.skip(4)\n"),
    (places_of_no_machine, "README.md", "curl http://127.0.0.1:8000/v1/models, in ~/.forebay/run"),
]


def title(value: object) -> str:
    return str(getattr(value, "__name__", repr(value)[:40]))


@pytest.mark.parametrize(("rule", "path", "text"), BAD, ids=title)
def test_a_rule_finds_what_breaks_it(rule: Rule, path: str, text: str) -> None:
    assert rule(path, text) != []


@pytest.mark.parametrize(("rule", "path", "text"), GOOD, ids=title)
def test_a_rule_leaves_alone_what_keeps_it(rule: Rule, path: str, text: str) -> None:
    assert rule(path, text) == []


def test_every_rule_has_a_sample_that_breaks_it() -> None:
    assert {rule for rule, _, _ in BAD} == {*PYTHON_RULES, *TEXT_RULES}


@functools.cache
def broken(rules: tuple[Rule, ...], paths: tuple[str, ...]) -> dict[Rule, list[str]]:
    """Return what is wrong by each rule: every file is read and parsed once for all of them."""
    found: dict[Rule, list[str]] = {rule: [] for rule in rules}
    for path in paths:
        text = (ROOT / path).read_text("utf-8")
        for rule in rules:
            found[rule] += (f"{path}: {problem}" for problem in rule(path, text))
    return found


@pytest.mark.parametrize("rule", PYTHON_RULES, ids=title)
def test_every_python_file_keeps_the_rule(rule: Rule) -> None:
    assert broken(PYTHON_RULES, tuple(python_files()))[rule] == []


@pytest.mark.parametrize("rule", TEXT_RULES, ids=title)
def test_every_file_keeps_the_rule(rule: Rule) -> None:
    assert broken(TEXT_RULES, tuple(text_files()))[rule] == []


def test_the_files_are_found() -> None:
    found = python_files()
    assert {path.split("/")[0] for path in found} == set(PYTHON_FOLDERS)
    assert {"README.md", "Makefile", ".ci/run", "shared/config.py"} <= set(text_files())


def test_a_boundary_that_is_gone_leaves_the_list() -> None:
    assert sorted(BOUNDARIES - set(python_files())) == []


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {(ROOT / path).parent for path in python_files() if path.startswith("tests/")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []
