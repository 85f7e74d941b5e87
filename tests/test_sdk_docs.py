"""The pages about the library: their code runs, and what they print is what happens."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from breakloop import Guard
from breakloop.clock import FakeClock

HOW_TO = Path(__file__).resolve().parent.parent / "docs" / "how-to"
PAGES = ("python-guard", "openai-anthropic-clients", "httpx", "asgi", "langchain", "mcp-middleware", "openai-agents")


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (HOW_TO / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(6))
def test_the_code_of_the_guards_page_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Each block by itself, as a reader would paste it (D-4)."""
    names: dict[str, Any] = {}
    code = blocks("python-guard")
    assert len(code) == 6
    exec(compile(code[number], f"block {number}", "exec"), names)
    assert names["guard"].faults == 0
    if number == 0:
        assert capsys.readouterr().out == "repeat 30 `search` returned the same 10 bytes 5 times in a row\n"


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_every_page_is_python_and_its_names_exist(page: str) -> None:
    """What is imported from us is there (P-3)."""
    for code in blocks(page):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("breakloop"):
                module = __import__(str(node.module), fromlist=["x"])
                assert all(hasattr(module, alias.name) for alias in node.names), code


def test_the_table_of_calls(clock: FakeClock) -> None:
    """When a tool is warned about, stopped, and not run at all (LD-4)."""
    guard, ran = Guard(clock=clock), 0

    @guard.tool(on_block="return")
    def search(query: str) -> str:
        nonlocal ran
        ran += 1
        return "no results"

    with guard.run():
        said = [search("x") for _ in range(6)]
    assert said[:2] == ["no results"] * 2
    printed = "[breakloop] You repeat yourself: `search` returned the same 10 bytes 3 times"
    assert printed in said[2]
    assert printed in (HOW_TO / "python-guard.md").read_text(encoding="utf-8")
    assert [one.startswith("Blocked") for one in said[3:]] == [False, True, True]
    assert ran == 5
