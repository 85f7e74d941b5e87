"""Each part of a call is written by one package only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import breakloop

SOURCE = Path(breakloop.__file__).parent
# `PendingResult` restores a call whose request is gone.
WRITERS = {
    "parsed": {"policy", "dialects", "model/call.py", "engine/decision_state.py"},
    "identity": {"policy", "engine/decision_state.py"},
    # The stream guard of `steps` and the crowd of unnamed sessions are known to their detectors alone.
    "decision": {"engine", "detect"},
}


def writes(tree: ast.Module) -> Iterator[str]:
    """The parts that a module assigns to, by attribute (`call.parsed.chat`) or by a local name (`parsed.chat`)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            owner = node.value
            yield owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            if node.attr == "decision" and isinstance(owner, ast.Name) and owner.id == "call":
                yield "decision"


@pytest.mark.slow
@pytest.mark.parametrize("part", WRITERS)
def test_one_writer_each(part: str) -> None:
    """Everyone else reads (Q-1)."""
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if part in writes(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found
    allowed = WRITERS[part]
    assert not {file for file in found if file not in allowed and file.split("/", maxsplit=1)[0] not in allowed}
