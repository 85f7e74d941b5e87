"""The specification and the tests agree: every id that is used has an anchor, and every anchor has a test or a benchmark."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("reference/specification.md", "explanation/detection-study.md")
# Only the families of the specification, so that UTF-8, SHA-256 and the like are no ids.
ID = re.compile(r"(?<![\w%-])(?:(?:LD|CB|[ABCDEGKLPQRSTXY])-\d{1,2}|C(?:[1-9]|[12]\d|3[0-5]))(?![\w-])")
ANCHOR = re.compile(r'<a id="([a-z]{1,2}-?\d+)"></a>')
DOCSTRING = re.compile(r'^ *(?:async )?def test_\w+\([^"]*?:\n +"""(.*?)"""', re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^### ((?:LD|CB|[A-Z])-\d+) ", re.MULTILINE)


def published() -> list[str]:
    """Return the ids of all anchors, in the order of the pages."""
    texts = [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES]
    return [anchor.upper() for text in texts for anchor in ANCHOR.findall(text)]


def named_by_benchmarks() -> Iterator[str]:
    """Yield the ids in the docstrings of benchmarks: of what is measured and has a target."""
    for path in (ROOT / "bench").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                yield from ID.findall(ast.get_docstring(node) or "")


def named_by_tests() -> Iterator[str]:
    """Yield the ids in the docstrings of test functions. Parsing all files would take seconds."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for docstring in DOCSTRING.findall(path.read_text(encoding="utf-8")):
            yield from ID.findall(docstring)


def test_every_id_in_use_has_an_anchor() -> None:
    """A reader of the code can look up every id that it names."""
    files = [path for root in ("src", "tests") for path in (ROOT / root).rglob("*.py") if path != Path(__file__)]
    known = set(published())
    unknown = {
        f"{path.relative_to(ROOT)}: {one}" for path in files for one in ID.findall(path.read_text()) if one not in known
    }
    assert sorted(unknown) == []


def test_every_item_has_a_test() -> None:
    """An item that no test and no benchmark names is a promise that nothing holds."""
    named = {*named_by_tests(), *named_by_benchmarks()}
    assert [one for one in published() if one not in named] == []


def test_every_item_has_one_heading_and_one_anchor() -> None:
    """A link to an id leads to its own item."""
    text = (ROOT / "docs" / PAGES[0]).read_text(encoding="utf-8")
    assert HEADING.findall(text) == [anchor.upper() for anchor in ANCHOR.findall(text)]
    assert len(published()) == len(set(published())) > 100
