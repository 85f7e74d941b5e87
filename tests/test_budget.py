"""Upper bounds of files, functions and parameter lists. Each exception carries its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.rules import assert_no_violations, tree

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "bench", "scripts")
FILE_LINES = 800
FUNCTION_LINES = 60
PARAMETERS = 7

# path -> (lines it may have, why)
LONG_FILES: dict[str, tuple[int, str]] = {}
# path:function -> (lines it may have, why)
LONG_FUNCTIONS: dict[str, tuple[int, str]] = {}
# path:function -> (parameters it may have, why)
MANY_PARAMETERS: dict[str, tuple[int, str]] = {
    "src/breakloop/model/call.py:Call.__init__": (13, "one named field each; a frozen dataclass costs 3 us a request"),
    "src/breakloop/sdk/guard.py:Guard._step": (8, "those of the public method, and what it waits with"),
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Every function below `node` with its dotted name, nested ones and methods included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):  # most of a tree, and without functions that have a name
            continue
        if isinstance(child, Function):
            yield prefix + child.name, child
        inner = f"{prefix}{child.name}." if isinstance(child, Function | ast.ClassDef) else prefix
        yield from functions(child, inner)


def measure(path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, lines and parameters (without self and cls) of every function in a file."""
    relative = path.relative_to(ROOT).as_posix()
    for name, function in functions(tree(path)):
        arguments = function.args
        names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        count = len(names) - (bool(names) and names[0] in {"self", "cls"})
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        yield f"{relative}:{name}", lines, count


@cache
def measured() -> list[tuple[str, int, int]]:
    """All functions outside of tests."""
    return [one for path in files(*FOLDERS) for one in measure(path)]


def over(found: dict[str, int], budget: int, exceptions: dict[str, tuple[int, str]]) -> list[str]:
    """What passes its budget or its own exception, and exceptions that are not needed any more."""
    too_much = [
        f"{name}: {value} > {exceptions.get(name, (budget,))[0]}"
        for name, value in found.items()
        if value > exceptions.get(name, (budget,))[0]
    ]
    unneeded = [f"{name}: exception not needed any more" for name in exceptions if found.get(name, 0) <= budget]
    return too_much + unneeded


def line_counts(*folders: str) -> dict[str, int]:
    return {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in files(*folders)
    }


def test_files_are_one_concept() -> None:
    """A file is a concept; past 800 lines it is two."""
    assert_no_violations(
        "a file of more than 800 lines",
        "split it by concept",
        over(line_counts("tests", *FOLDERS), FILE_LINES, LONG_FILES),
    )


def test_functions_are_short() -> None:
    """At most 60 lines a function."""
    lines = {name: lines for name, lines, _ in measured()}
    assert_no_violations("a function of more than 60 lines", "split it", over(lines, FUNCTION_LINES, LONG_FUNCTIONS))


def test_functions_take_few_parameters() -> None:
    """At most 7 parameters, self not counted."""
    counts = {name: count for name, _, count in measured()}
    assert_no_violations(
        "more than 7 parameters", "group those that belong together", over(counts, PARAMETERS, MANY_PARAMETERS)
    )


def test_exceptions_say_why() -> None:
    """An exception without a reason is not one."""
    every = {**LONG_FILES, **LONG_FUNCTIONS, **MANY_PARAMETERS}
    found = [name for name, (_, reason) in every.items() if len(reason.split()) < 3]
    assert_no_violations("an exception without a reason", "write why it is needed", found)


def test_the_measure_sees_methods_and_nested_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget is not blind: lines and parameters of a method and of a function inside it are counted."""
    file = tmp_path / "a.py"
    file.write_text("class A:\n    def b(self, x, *, y):\n        def c(z):\n            return z\n        return c\n")
    monkeypatch.setitem(measure.__globals__, "ROOT", tmp_path)
    assert list(measure(file)) == [("a.py:A.b", 4, 2), ("a.py:A.b.c", 2, 1)]


def test_over_reports_both_ways() -> None:
    """Too much is reported, and so is an exception that could go."""
    assert over({"a": 8, "b": 7}, 7, {}) == ["a: 8 > 7"]
    assert over({"a": 8}, 7, {"a": (8, "why it is so")}) == []
    assert over({"a": 9}, 7, {"a": (8, "why it is so")}) == ["a: 9 > 8"]
    assert over({"a": 7}, 7, {"a": (8, "why it is so")}) == ["a: exception not needed any more"]
