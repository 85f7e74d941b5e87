"""What must not slip into the tree: paths of somebody's machine, prints, malformed names and files, dead links."""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import breakloop
from tests.conftest import FixedPortError, OutsideNetworkError
from tests.rules import assert_no_violations, tree

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "breakloop"
SKIPPED = {"__pycache__", "build", "dist", "node_modules", "vendor"}
HIDDEN = {".ci", ".editorconfig", ".gitignore"}  # whatever else begins with a dot is made by a tool
TEXT = {".cfg", ".css", ".html", ".ini", ".js", ".json", ".jsonl", ".lua", ".md", ".py", ".sh", ".toml", ".txt"}
TEXT |= {".conf", ".yaml", ".yml"}
NAMES = {"Makefile", "LICENSE", "run", ".gitignore", ".editorconfig"}

# Written with a bracket each, so that this file does not find itself.
MACHINE_PATHS = re.compile(r"/wor[k]/|/roo[t]/|/far[m]/|/hom[e]/[a-z]")
TEMPORARY = re.compile(r"/tm[p]/")
INDEX_HOSTS = re.compile(
    r"pypi\.or[g]|pythonhosted\.or[g]|npmjs\.or[g]|registry\.npmj[s]|crates\.i[o]|deb\.debian\.or[g]|--(extra-)?index-ur[l]"
)
OPENING_ID = re.compile(r"\s*(SPEC )?([A-Za-z]{1,2}[-_]\d{1,2}|C\d{1,2})\s*[:;,.]")
# What a file must contain to be worth parsing.
MAYBE_OPENING_ID = re.compile(rf"""['"]{OPENING_ID.pattern}""")
PRINTS = re.compile(r"\b(print|breakpoint)\s*\(")
FACADE = re.compile(r"\b(from|import)\s+breakloop\b(?!\.)")


@cache
def text_files() -> tuple[Path, ...]:
    """Every text file of the project that somebody wrote."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if _written(name)]
        found += [Path(folder, name) for name in names if _written(name)]
    return tuple(sorted(path for path in found if path.is_file() and (path.suffix in TEXT or path.name in NAMES)))


def _written(name: str) -> bool:
    return name not in SKIPPED and (not name.startswith(".") or name in HIDDEN)


@cache
def content(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="replace")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def mentions(pattern: re.Pattern[str], paths: Iterable[Path]) -> list[str]:
    return [
        f"{relative(path)}:{number}: {line.strip()[:100]}"
        for path in paths
        if pattern.search(content(path))
        for number, line in enumerate(content(path).splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_paths_of_a_machine() -> None:
    """Nothing in the tree knows where it was written."""
    found = mentions(MACHINE_PATHS, text_files())
    assert_no_violations("a path of one machine", "write a relative path, or ask for it in a setting", found)


def test_no_temporary_paths_in_product_and_docs() -> None:
    """What ships asks for a data directory; it does not assume one."""
    shipped = [path for path in text_files() if relative(path).startswith(("src/", "docs/")) or path.suffix == ".md"]
    found = mentions(TEMPORARY, shipped)
    assert_no_violations("a temporary path", "write a path below the data directory", found)


def test_no_package_index_is_named() -> None:
    """Where packages come from is the business of whoever installs them."""
    found = mentions(INDEX_HOSTS, text_files())
    assert_no_violations("a package index is named", "leave it to the configuration of the installer", found)


def test_product_does_not_print() -> None:
    """Only the command line writes to the terminal; everything else logs."""
    prints = [
        f"{relative(path)}:{node.lineno}"
        for path in SRC.rglob("*.py")
        if "cli" not in path.relative_to(SRC).parts and PRINTS.search(content(path))
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"print", "breakpoint"}
    ]
    assert_no_violations("print or breakpoint outside cli", "log it, or raise an error", prints)


def test_ids_of_the_specification_stand_behind_the_sentence() -> None:
    """A test docstring opens with what is promised; the id of the specification follows it in brackets."""
    wrong = []
    files = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if MAYBE_OPENING_ID.search(content(path)))
    for path in files:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                text = ast.get_docstring(node) or ""
                if OPENING_ID.match(text):
                    wrong.append(f"{relative(path)}:{node.lineno}: {text[:40]}")
    assert_no_violations("a docstring that opens with an id", "put the id behind the sentence, in brackets", wrong)


def test_version_stands_in_one_place() -> None:
    """`__version__` is the only place; the build reads it from there, and the command prints it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert re.fullmatch(r"\d+\.\d+\.\d+", breakloop.__version__)
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/breakloop/_version.py"
    quoted = re.compile(rf"""["']{re.escape(breakloop.__version__)}["']""")
    product = [path for path in text_files() if relative(path).startswith("src/") or path.name == "pyproject.toml"]
    assert "src/breakloop/_version.py" in {line.partition(":")[0] for line in mentions(quoted, product)}
    others = [line for line in mentions(quoted, product) if not line.startswith("src/breakloop/_version.py:")]
    assert_no_violations("the version is written a second time", "import breakloop._version", others)


def test_how_many_characters_make_a_token_stands_in_one_place() -> None:
    """Guesses that differ from each other would make sums that do not add up (L-3)."""
    declared = re.compile(r"^_?(CHARS|BYTES)_(A|PER)_TOKEN\b.*= *\d", re.MULTILINE)
    product = [path for path in text_files() if relative(path).startswith("src/")]
    found = mentions(declared, product)
    assert found
    assert_no_violations("set in two places", "import the one of model/call.py", found if len(found) > 1 else ())


def test_the_facade_is_for_users_alone() -> None:
    """A module that imports a public name from the facade depends on everything that stands above it."""
    package = ROOT / "src" / "breakloop"
    own = {path.stem for path in package.iterdir()} - {"__init__"}
    found = []
    for path in sorted(path for path in package.rglob("*.py") if FACADE.search(content(path))):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module == "breakloop":
                found += [f"{relative(path)}:{node.lineno}" for name in node.names if name.name not in own]
            elif isinstance(node, ast.Import):
                found += [f"{relative(path)}:{node.lineno}" for name in node.names if name.name == "breakloop"]
    assert_no_violations("imports from the facade", "import from the module that defines the name", found)


def test_public_names_are_sorted_and_exist() -> None:
    """The facade lists what it offers, in order, and nothing that is not there."""
    assert breakloop.__all__ == sorted(breakloop.__all__)
    assert [name for name in breakloop.__all__ if not hasattr(breakloop, name)] == []


SECTIONS = {"Added", "Changed", "Deprecated", "Fixed", "Removed", "Security"}


def test_changelog_is_well_formed() -> None:
    """Keep a Changelog: Unreleased first, then versions with dates, newest first; known sections with entries."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings
    assert headings[0] == "[Unreleased]"
    released = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - \d{4}-\d{2}-\d{2}", heading) for heading in headings[1:]]
    assert all(released), headings
    versions = [tuple(int(part) for part in match.groups()) for match in released if match]
    assert versions == sorted(versions, reverse=True)
    for block in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        sections = re.split(r"^### (.+)$", block, flags=re.MULTILINE)
        assert set(sections[1::2]) <= SECTIONS
        assert all(re.search(r"^- \S", body, re.MULTILINE) for body in sections[2::2]), "a section without an entry"


LINK = re.compile(r"(?<!!)\[[^]\n]*]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def unfenced(text: str) -> str:
    """The text without its code blocks; the lines keep their numbers."""
    return FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)


@cache
def anchors(path: Path) -> set[str]:
    """The names that a reader's renderer gives to the headings, and those that are set by hand."""
    text = unfenced(content(path))
    headings = re.findall(r"^#{1,6} (.+?)\s*#*$", text, re.MULTILINE)
    named = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    return named | set(re.findall(r'<a id="([\w-]+)"></a>', text))


def dead_links(path: Path) -> Iterator[str]:
    for number, line in enumerate(unfenced(content(path)).splitlines(), 1):
        for target in LINK.findall(line):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            name, _, anchor = target.partition("#")
            goal = path.parent / name if name else path
            if not goal.exists() or (anchor and goal.suffix == ".md" and anchor not in anchors(goal.resolve())):
                yield f"{relative(path)}:{number}: {target}"


def test_links_lead_somewhere() -> None:
    """A relative link names a file that is there, and a heading that is in it."""
    pages = [path for path in text_files() if path.suffix == ".md"]
    assert len(pages) > 50
    dead = [line for page in pages for line in dead_links(page)]
    assert_no_violations("a dead link", "name a file that exists, and a heading in it", dead)


def untidy(path: Path) -> Iterator[str]:
    """What is wrong with the bytes of a file, with its line."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        yield f"{relative(path)}: not UTF-8 at byte {error.start}"
        return
    lines = text.split("\n")
    if text and lines[-1]:
        yield f"{relative(path)}:{len(lines)}: no newline at the end"
    for number, line in enumerate(lines, 1):
        if "\r" in line:
            yield f"{relative(path)}:{number}: a carriage return"
        elif path.suffix != ".md" and line != line.rstrip():
            yield f"{relative(path)}:{number}: blanks at the end"


def test_text_files_are_tidy() -> None:
    """Text is UTF-8 with Unix line ends, a newline at the end, no blanks at line ends (Markdown and test data may need them)."""
    checked = [path for path in text_files() if path.suffix == ".py" or not relative(path).startswith("tests/")]
    assert len(checked) > 1000
    found = [line for path in checked for line in untidy(path)]
    assert_no_violations("an untidy text file", "save it as UTF-8 with Unix line ends, and run `make fmt`", found)


def test_shell_scripts_parse() -> None:
    """Every script is at least syntactically sound, and can be run."""
    wrong = []
    for script in [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]:
        interpreter = "bash" if "bash" in content(script).splitlines()[0] else "sh"
        parsed = subprocess.run([interpreter, "-n", str(script)], capture_output=True, text=True, check=False)
        wrong += [] if script.stat().st_mode & 0o111 else [f"{relative(script)}: not executable"]
        wrong += [f"{relative(script)}: {parsed.stderr.strip()}"] if parsed.returncode else []
    assert_no_violations("a broken script", "correct it, or set its executable bit", wrong)


def test_importing_the_package_is_cheap() -> None:
    """`import breakloop` pulls in no third-party package and opens nothing: libraries import it too."""
    code = "import sys, breakloop; print([m for m in ('click', 'pydantic', 'uvloop', 'ssl') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
def test_tests_cannot_leave_this_machine(host: str, outside_attempts: list[str]) -> None:
    """The guard in conftest.py refuses, and remembers; loopback stays open."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as outside, pytest.raises(OutsideNetworkError):
        outside.connect((host, 9))
    with pytest.raises(OutsideNetworkError):
        socket.getaddrinfo("api.example.com", 443)
    assert outside_attempts == [host, "api.example.com"]
    outside_attempts.clear()
    with socket.socket() as listener, socket.socket() as inside:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        inside.connect(listener.getsockname())


@pytest.mark.parametrize("port", [8787, 8788, 8789])
def test_tests_cannot_listen_where_a_server_does(port: int, outside_attempts: list[str]) -> None:
    """The guard refuses the default ports of the server, so that tests pass beside a running one."""
    with socket.socket() as listener, pytest.raises(FixedPortError):
        listener.bind(("127.0.0.1", port))
    assert outside_attempts == [f"port {port}"]
    outside_attempts.clear()


def test_uvloop_cannot_leave_this_machine(outside_attempts: list[str]) -> None:
    """uvloop resolves and connects in C; the guard holds there too."""
    import asyncio

    import uvloop

    async def leave() -> None:
        with pytest.raises(OutsideNetworkError):
            await asyncio.get_running_loop().create_connection(asyncio.Protocol, "192.0.2.1", 9)

    uvloop.run(leave())
    assert outside_attempts == ["192.0.2.1"]
    outside_attempts.clear()
