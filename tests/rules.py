"""Rules about files: one test per rule, which lists every violation instead of stopping at the first."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path


def assert_no_violations(rule: str, remedy: str, places: Iterable[str]) -> None:
    """Fail with one line per violation: where it is (`file:line`), the rule, and what to do about it."""
    lines = [f"{place}: {rule}; {remedy}" for place in places]
    assert not lines, "\n".join([f"violations: {len(lines)}", *lines])


def tree(path: Path) -> ast.Module:
    """The parsed file. It is not kept: a million nodes would slow down the garbage collector for all later tests."""
    return ast.parse(path.read_text(encoding="utf-8"))
