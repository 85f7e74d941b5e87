"""Each part of a call is written by one package only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import breakloop
from tests.rules import tree

SOURCE = Path(breakloop.__file__).parent
# `PendingResult` restores a call whose request is gone.
WRITERS = {
    "parsed": {"policy", "dialects", "model/call.py", "engine/decision_state.py"},
    "identity": {"policy", "engine/decision_state.py"},
    # The stream guard of `steps` and the crowd of unnamed sessions are known to their detectors alone.
    "decision": {"engine", "detect"},
}


def writes(module: ast.Module) -> Iterator[str]:
    """The parts that a module assigns to, by attribute (`call.parsed.chat`) or by a local name (`parsed.chat`)."""
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            owner = node.value
            yield owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            if node.attr == "decision" and isinstance(owner, ast.Name) and owner.id == "call":
                yield "decision"


@cache
def written() -> dict[str, set[str]]:
    """The parts that each module assigns to, by its path."""
    return {str(path.relative_to(SOURCE)): set(writes(tree(path))) for path in SOURCE.rglob("*.py")}


@pytest.mark.slow
@pytest.mark.parametrize("part", WRITERS)
def test_one_writer_each(part: str) -> None:
    """Everyone else reads (Q-1)."""
    found = {file for file, parts in written().items() if part in parts}
    assert found
    allowed = WRITERS[part]
    assert not {file for file in found if file not in allowed and file.split("/", maxsplit=1)[0] not in allowed}
