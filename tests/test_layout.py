"""The tree is the table of contents: every module has its own test file, in the same place, under the same name."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "breakloop"
UNIT = ROOT / "tests" / "unit"
NOT_MODULES = {"__init__.py", "__main__.py"}

# Modules without a test file of their own, and the file that proves them instead. This list may only shrink.
TESTED_ELSEWHERE: dict[str, str] = {}

VAGUE_NAMES = {"common", "helpers", "manager", "misc", "util", "utils"}

# Import name -> distribution, where the two differ.
DISTRIBUTIONS = {
    "agents": "openai-agents",
    "grpc": "grpcio",
    "opentelemetry": "opentelemetry-sdk",
    "pydantic_core": "pydantic",
    "jwt": "pyjwt",
    "ruamel": "ruamel-yaml",
    "toktok": "toktok-rs",
}


def modules() -> list[str]:
    return sorted(path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py") if path.name not in NOT_MODULES)


def own_test(module: str) -> Path:
    path = Path(module)
    return UNIT / path.parent / f"test_{path.stem}.py"


def test_every_module_has_its_test_file() -> None:
    """src/breakloop/a/b.py is tested by tests/unit/a/test_b.py, or where TESTED_ELSEWHERE says."""
    wanted = [ROOT / TESTED_ELSEWHERE[name] if name in TESTED_ELSEWHERE else own_test(name) for name in modules()]
    missing = [path.relative_to(ROOT).as_posix() for path in wanted if not path.is_file()]
    assert not missing, "missing:\n" + "\n".join(missing)


def test_exceptions_are_still_needed() -> None:
    """The list of exceptions shrinks: an entry for a module that is gone, or has its own test now, must go."""
    stale = [module for module in TESTED_ELSEWHERE if module not in modules() or own_test(module).exists()]
    assert stale == []


def test_every_unit_test_file_belongs_to_a_module() -> None:
    """tests/unit/a/test_b.py or test_b_<aspect>.py tests src/breakloop/a/b.py or the package a/b."""
    names = {module.removesuffix(".py") for module in modules()}
    names |= {path.parent.relative_to(SRC).as_posix() for path in SRC.rglob("__init__.py")}
    strays = []
    for path in UNIT.rglob("test_*.py"):
        folder = path.relative_to(UNIT).parent
        words = path.stem.removeprefix("test_").split("_")
        candidates = {(folder / "_".join(words[: count + 1])).as_posix() for count in range(len(words))}
        if not candidates & names:
            strays.append(path.relative_to(ROOT).as_posix())
    assert strays == []


def test_file_names_say_what_is_inside() -> None:
    """No drawers: a file is named by the word a user would search for."""
    assert [module for module in modules() if Path(module).stem in VAGUE_NAMES] == []


def test_every_package_folder_is_a_package() -> None:
    """A folder without __init__.py would be left out by tools that look for packages."""
    folders = {path.parent for path in SRC.rglob("*.py")}
    assert sorted(str(folder.relative_to(SRC)) for folder in folders if not (folder / "__init__.py").is_file()) == []


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda path: path.relative_to(SRC).as_posix())
def test_modules_open_with_their_role(path: Path) -> None:
    """A few lines: what the module is for, and what it leaves to its neighbour; at most a short list of steps."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False)
    assert text, "no docstring"
    drawing = path.name == "errors.py"  # the error tree is drawn in it
    assert drawing or len(text.strip().splitlines()) <= 12


def third_party_imports() -> set[str]:
    names: set[str] = set()
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return {name for name in names if name not in sys.stdlib_module_names and name != "breakloop"}


def declared(project: dict[str, object]) -> tuple[set[str], set[str]]:
    def name(requirement: str) -> str:
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        assert match, requirement
        return re.sub(r"[-_.]+", "-", match[0]).lower()

    required = project["dependencies"]
    extras = project["optional-dependencies"]
    assert isinstance(required, list)
    assert isinstance(extras, dict)
    return {name(one) for one in required}, {name(one) for group in extras.values() for one in group}


def test_dependencies_are_what_is_imported() -> None:
    """Everything imported is declared, and everything required is imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required, optional = declared(project)
    imported = {DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in third_party_imports()}
    assert imported - required - optional == set(), "imported but not declared"
    assert required - imported == set(), "declared but not imported"


def test_everything_in_e2e_is_marked() -> None:
    """`make check` starts no other programs."""
    files = (ROOT / "tests" / "e2e").glob("test_*.py")
    assert [file.name for file in files if "pytest.mark.e2e" not in file.read_text(encoding="utf-8")] == []
