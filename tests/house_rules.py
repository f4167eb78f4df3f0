"""The house rules that can be measured: each takes a path and a text, and returns what is wrong."""

import ast
import functools
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PYTHON_FOLDERS: Final = ("proxy", "worker", "shared", "ops", "tests")
FILE_LINES_MAX: Final = 400
FUNCTION_LINES_MAX: Final = 70

# Where an error that nobody foresaw ends: it is logged there, and the process answers for it.
BOUNDARIES: Final = {
    "proxy/__main__.py",
    "proxy/middleware.py",
    "worker/__main__.py",
    "worker/supervisor.py",
    "worker/process.py",
    "worker/loop.py",
    "ops/cli.py",
}

_ENVIRONMENT: Final = ("environ", "environb", "getenv", "putenv")
_NAMES_REFUSED: Final = re.compile(r"(^|_)(utils?|helpers?|managers?)$")
_NOQA: Final = re.compile(r"#\s*(?:ruff:\s*)?noqa\b(?::\s*[A-Z]+\d+(?:[,\s]+[A-Z]+\d+)*)?(?P<reason>.*)")
_TYPE_IGNORE: Final = re.compile(r"#\s*type:\s*ignore(?:\[[^\]]*\])?(?P<reason>.*)")
_REASON_LETTERS_MIN: Final = 5
_MACHINE_PATH: Final = re.compile(r"(?<![\w.~])/(?:Users|home|root|work)/\w")
# An address outside this machine: tools' own configuration says where packages and models come from.
_OUTSIDE: Final = re.compile(r"https?://(?!127[.]0[.]0[.]1|localhost\b|gateway\b)\w", re.IGNORECASE)
_DOWNLOAD: Final = re.compile(
    r"\w+://[^\s\"')>]+[.](?:whl|gguf|safetensors|zip|sh|deb|pkg|dmg|t?gz|xz|bz2)\b", re.IGNORECASE
)

Rule = Callable[[str, str], list[str]]


def python_files() -> list[str]:
    """Return the paths of all Python files, relative to the root."""
    files = (file for folder in PYTHON_FOLDERS for file in (ROOT / folder).rglob("*.py"))
    return sorted(str(file.relative_to(ROOT)) for file in files)


def text_files() -> list[str]:
    """Return the paths of everything that people read: code, documents, and the files beside them."""
    top = [file for file in ROOT.iterdir() if file.is_file() and file.name != "LICENSE"]
    inner = [
        file
        for folder in (*PYTHON_FOLDERS, ".ci", "docs")
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and "vendor" not in file.parts
    ]
    return sorted(str(file.relative_to(ROOT)) for file in (*top, *inner))


@functools.lru_cache(maxsize=1)
def _nodes(text: str) -> tuple[ast.AST, ...]:
    """Return the tree and all that is in it: parsed once for all rules, who are asked file by file."""
    return tuple(ast.walk(ast.parse(text)))


def _functions(text: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in _nodes(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _imported(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of every import, wherever it stands."""
    for node in _nodes(text):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""


def short_files(_path: str, text: str) -> list[str]:
    lines = len(text.splitlines())
    return [f"{lines} lines"] if lines > FILE_LINES_MAX else []


def short_functions(_path: str, text: str) -> list[str]:
    lengths = (
        (function.name, (function.end_lineno or 0) - function.lineno + 1) for function in _functions(text)
    )
    return [f"{name} has {lines} lines" for name, lines in lengths if lines > FUNCTION_LINES_MAX]


def said_purpose(_path: str, text: str) -> list[str]:
    tree = _nodes(text)[0]
    assert isinstance(tree, ast.Module)
    return ["no docstring on the first line"] if tree.body and not ast.get_docstring(tree) else []


def absolute_imports(_path: str, text: str) -> list[str]:
    return [
        f"line {node.lineno}: relative"
        for node in _nodes(text)
        if isinstance(node, ast.ImportFrom) and node.level
    ]


def environment_in_one_place(path: str, text: str) -> list[str]:
    """Only the settings read the environment; a test may look at what it set there."""
    if path == "shared/config.py" or path.startswith("tests/"):
        return []
    lines = [
        node.lineno
        for node in _nodes(text)
        if isinstance(node, ast.stmt | ast.expr) and _takes_environment(node)
    ]
    return [f"line {line}: the environment" for line in lines]


def _takes_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in _ENVIRONMENT
    if not isinstance(node, ast.ImportFrom) or node.module != "os":
        return False
    return any(alias.name in _ENVIRONMENT for alias in node.names)


def telling_names(path: str, _text: str) -> list[str]:
    parts = Path(path).with_suffix("").parts
    return [f"{part} says nothing" for part in parts if _NAMES_REFUSED.search(part)]


def zmq_in_the_channel(path: str, text: str) -> list[str]:
    if path == "shared/channel.py":
        return []
    return [f"line {line}: zmq" for line, module in _imported(text) if module.split(".")[0] == "zmq"]


def broad_excepts_at_boundaries(path: str, text: str) -> list[str]:
    """Elsewhere a broad except may only translate: it ends in a raise, and so hides nothing."""
    if path in BOUNDARIES:
        return []
    handlers = (node for node in _nodes(text) if isinstance(node, ast.ExceptHandler))
    return [
        f"line {handler.lineno}: broad except"
        for handler in handlers
        if _is_broad(handler.type) and not isinstance(handler.body[-1], ast.Raise)
    ]


def _is_broad(kind: ast.expr | None) -> bool:
    if isinstance(kind, ast.Tuple):
        return any(_is_broad(part) for part in kind.elts)
    return kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException"))


def reasons_beside_exceptions(_path: str, text: str) -> list[str]:
    """A silenced checker says why on its own line."""
    if "noqa" not in text and "ignore" not in text:
        return []
    problems = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            found = _NOQA.search(token.string) or _TYPE_IGNORE.search(token.string)
            if found and sum(letter.isalpha() for letter in found["reason"]) < _REASON_LETTERS_MIN:
                problems.append(f"line {token.start[0]}: {token.string} without a reason")
    return problems


def reasons_for_skips(_path: str, text: str) -> list[str]:
    nodes = _nodes(text)
    excused = {id(node.func) for node in nodes if isinstance(node, ast.Call) and _gives_reason(node)}
    return [
        f"line {node.lineno}: {node.attr} without a reason"
        for node in nodes
        if isinstance(node, ast.Attribute)
        and node.attr in ("skip", "skipif", "xfail", "skipTest")
        and id(node) not in excused
        and _is_of_a_test_runner(node.value)
    ]


def _is_of_a_test_runner(node: ast.expr) -> bool:
    return ast.unparse(node) in ("pytest", "pytest.mark", "mark", "unittest", "self")


def _gives_reason(call: ast.Call) -> bool:
    """Whether a call of skip, skipif or xfail says why: `reason=…`, or a text in first place."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "reason"] or call.args[:1]
    return any(not isinstance(value, ast.Constant) or bool(value.value) for value in given) and (
        bool(call.keywords) or not _needs_keyword(call)
    )


def _needs_keyword(call: ast.Call) -> bool:
    # The first argument of skipif and of the xfail mark is a condition.
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("skipif", "xfail")


def places_of_no_machine(_path: str, text: str) -> list[str]:
    """No path of somebody's machine, no address outside it, none that something is downloaded from."""
    return [
        f"line {number}: {found.group()}"
        for number, line in enumerate(text.splitlines(), 1)
        for pattern in (_MACHINE_PATH, _OUTSIDE, _DOWNLOAD)
        if (found := pattern.search(line))
    ]


PYTHON_RULES: Final[tuple[Rule, ...]] = (
    short_files,
    short_functions,
    said_purpose,
    absolute_imports,
    environment_in_one_place,
    telling_names,
    zmq_in_the_channel,
    broad_excepts_at_boundaries,
    reasons_beside_exceptions,
    reasons_for_skips,
)
TEXT_RULES: Final[tuple[Rule, ...]] = (places_of_no_machine,)
