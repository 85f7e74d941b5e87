"""`Any` stays out of the types that hold the engine together: the model, the operations of a store, and the engine."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "breakloop"
CHECKED = ("model/*.py", "engine/*.py", "store/ops.py", "store/keys.py", "limits/*.py")
# JSON documents, whose values have any type. Nothing else belongs here.
ALLOWED = {
    "engine/operator.py": "values of orders, as they are stored",
    "model/records.py": "data of events and settings of agents, as the history stores them",
}


def any_lines(path: Path) -> list[int]:
    """The lines that name `Any`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "Any"]


def test_the_joints_of_the_engine_are_typed() -> None:
    """A file that names `Any` is in the list, and a file in the list still needs it."""
    found: dict[str, list[int]] = {}
    for pattern in CHECKED:
        for path in SOURCE.glob(pattern):
            lines = any_lines(path)
            if lines:
                found[path.relative_to(SOURCE).as_posix()] = lines
    assert found.keys() == ALLOWED.keys(), {name: lines for name, lines in found.items() if name not in ALLOWED}
