"""docs/how-to/i-use.md: everything that breakloop works with is there, in five lines at most, and what it names exists."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from breakloop.cli.init import CHOICES
from tests.apart import APART
from tests.each import each

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "i-use.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| I use")
]
WANTED = [
    *(
        "OpenAI's SDK",
        "Anthropic's SDK",
        "LangChain",
        "LangGraph",
        "LiteLLM",
        "OpenAI Agents SDK",
        "Pydantic AI",
        "Haystack",
        "AutoGen",
        "AG2",
        "Semantic Kernel",
        "DSPy",
        "Agno",
        "LlamaIndex",
        "smolagents",
        "Strands Agents",
        "Microsoft Agent Framework",
        "Google ADK",
        "CrewAI",
        "Codex",
    ),
    *("Vercel AI SDK", "Mastra", "LangChain.js"),
    *("OpenCode", "Cline", "Goose", "aider", "Cursor"),
    *("Claude Code", "Claude Agent SDK", "MCP", "httpx", "ASGI", "a loop of my own"),
    *("nginx", "Envoy", "Traefik", "Caddy", "HAProxy", "Kong", "Docker", "Kubernetes"),
]


@each("name", WANTED)
def test_it_has_a_row(name: str) -> None:
    """Whoever uses it finds it (P-3, P-4)."""
    assert [row for row in ROWS if name in row[0]] != []


@each("row", {row[0]: row for row in ROWS})
def test_a_row_is_short_and_true(row: list[str]) -> None:
    """Five lines at most; its pages, their headings and the words after `init --for` exist."""
    assert len(row) == 3
    assert len(row[1].split("<br>")) <= 5
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", row[2])
    assert links
    for path, heading in links:
        page = (PAGE.parent / path).resolve()
        assert page.is_file(), path
        if heading:
            titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert [name for name in re.findall(r"init --for ([a-z-]+)", row[2]) if name not in CHOICES] == []


def test_everything_that_init_knows_has_a_row() -> None:
    """`breakloop init --for` and this page are about the same."""
    assert set(re.findall(r"`(?:breakloop )?init --for ([a-z-]+)`", TEXT)) == set(CHOICES)


@pytest.mark.slow  # it imports frameworks
def test_what_is_imported_can_be() -> None:
    """The names that people copy from there (P-1 to P-3)."""
    imports = re.findall(r"`from (breakloop[a-z0-9_.]*) import (\w+)`", TEXT)
    assert len(imports) >= 5
    apart = [(module, name) for module, name in imports if module in APART]
    for module, name in set(imports) - set(apart):
        assert hasattr(import_module(module), name), f"{module}.{name}"
    for module, name in apart:  # tested in an environment of its own
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        assert re.search(rf"^(def|class) {name}\b", Path(spec.origin).read_text(encoding="utf-8"), re.MULTILINE)


def test_it_is_found_from_the_first_pages() -> None:
    """From the README and the list of contents."""
    assert "](docs/how-to/i-use.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](how-to/i-use.md)" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
