"""The tree is the table of contents: packages, names of files, docstrings of modules, declared dependencies."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.rules import assert_no_violations, tree

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "breakloop"
UNIT = ROOT / "tests" / "unit"
NOT_MODULES = {"__init__.py", "__main__.py"}

VAGUE_NAMES = {"common", "helpers", "manager", "misc", "util", "utils"}

# Import name -> distribution, where the two differ.
DISTRIBUTIONS = {
    "agent_framework": "agent-framework-core",
    "agents": "openai-agents",
    "google": "google-adk",
    "autogen_core": "autogen-core",
    "grpc": "grpcio",
    "haystack": "haystack-ai",
    "llama_index": "llama-index-core",
    "opentelemetry": "opentelemetry-sdk",
    "pydantic_ai": "pydantic-ai-slim",
    "pydantic_core": "pydantic",
    "jwt": "pyjwt",
    "ruamel": "ruamel-yaml",
    "strands": "strands-agents",
    "toktok": "toktok-rs",
}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def modules() -> list[str]:
    return sorted(path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py") if path.name not in NOT_MODULES)


def test_unit_tests_follow_the_packages() -> None:
    """The tests of `src/breakloop/a/b.py` are in `tests/unit/a/`."""
    folders = {path.parent.relative_to(UNIT) for path in UNIT.rglob("test_*.py")}
    found = sorted(f"tests/unit/{folder.as_posix()}" for folder in folders if not (SRC / folder).is_dir())
    assert_no_violations("no package of this name", "move the tests to the folder of the package that they test", found)


def test_few_modules_are_at_the_root() -> None:
    """A new module belongs in a package."""
    names = sorted(f"src/breakloop/{path.name}" for path in SRC.glob("*.py"))
    assert_no_violations(
        "more than 10 modules at the root", "move one into a package", names if len(names) > 10 else ()
    )


def test_file_names_say_what_is_inside() -> None:
    """No drawers: a file is named by the word a user would search for."""
    found = [f"src/breakloop/{module}" for module in modules() if Path(module).stem in VAGUE_NAMES]
    assert_no_violations("a vague file name", "name it after the concept inside", found)


def test_every_package_folder_is_a_package() -> None:
    """A folder without __init__.py would be left out by tools that look for packages."""
    folders = {path.parent for path in SRC.rglob("*.py")}
    found = sorted(relative(folder) for folder in folders if not (folder / "__init__.py").is_file())
    assert_no_violations("a folder without __init__.py", "add one that opens with what the package is for", found)


class Module(NamedTuple):
    path: Path
    docstring: str | None
    imports: frozenset[str]  # names of packages


@cache
def parsed() -> list[Module]:
    return [Module(path, ast.get_docstring(read := tree(path)), imports(read)) for path in sorted(SRC.rglob("*.py"))]


def imports(module: ast.Module) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return frozenset(names)


def test_modules_open_with_their_role() -> None:
    """Each module says what it is for."""
    found = [f"{relative(module.path)}:1" for module in parsed() if not module.docstring]
    assert_no_violations("no docstring", "open the module with a few lines about its role", found)


def third_party_imports() -> set[str]:
    names = frozenset[str]().union(*(module.imports for module in parsed()))
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
    undeclared = sorted(f"pyproject.toml: {name}" for name in imported - required - optional)
    assert_no_violations("imported but not declared", "add it to the dependencies or to an extra", undeclared)
    unused = sorted(f"pyproject.toml: {name}" for name in required - imported)
    assert_no_violations("declared but not imported", "remove it from the dependencies", unused)


def test_everything_in_e2e_is_marked() -> None:
    """`make check` starts no other programs."""
    files = sorted((ROOT / "tests" / "e2e").glob("test_*.py"))
    found = [relative(file) for file in files if "pytest.mark.e2e" not in file.read_text(encoding="utf-8")]
    assert_no_violations("not marked as e2e", "write `pytestmark = pytest.mark.e2e`", found)
