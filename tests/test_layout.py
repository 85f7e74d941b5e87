"""The tree is the table of contents: packages, names of files, docstrings of modules, declared dependencies."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "breakloop"
UNIT = ROOT / "tests" / "unit"
NOT_MODULES = {"__init__.py", "__main__.py"}

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


def test_unit_tests_follow_the_packages() -> None:
    """The tests of `src/breakloop/a/b.py` are in `tests/unit/a/`."""
    folders = {path.parent.relative_to(UNIT) for path in UNIT.rglob("test_*.py")}
    assert sorted(str(folder) for folder in folders if not (SRC / folder).is_dir()) == []


def test_few_modules_are_at_the_root() -> None:
    """A new module belongs in a package."""
    assert len(list(SRC.glob("*.py"))) <= 10


def test_file_names_say_what_is_inside() -> None:
    """No drawers: a file is named by the word a user would search for."""
    assert [module for module in modules() if Path(module).stem in VAGUE_NAMES] == []


def test_every_package_folder_is_a_package() -> None:
    """A folder without __init__.py would be left out by tools that look for packages."""
    folders = {path.parent for path in SRC.rglob("*.py")}
    assert sorted(str(folder.relative_to(SRC)) for folder in folders if not (folder / "__init__.py").is_file()) == []


def test_modules_open_with_their_role() -> None:
    """Each module says what it is for."""
    files = sorted(SRC.rglob("*.py"))
    assert [str(path) for path in files if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))] == []


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
