"""The public API as type checkers see it from outside: `user_side.py` under mypy and pyright, both strict."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.served import SRC
from tests.programs import found, missing

# Without a cache, mypy reads everything that is imported.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROOT = SRC.parent
FILE = Path(__file__).with_name("user_side.py")


def run(*command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(SRC), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_mypy() -> None:
    """Strict, and nothing is waved through (P-1)."""
    assert "type: ignore" not in FILE.read_text()
    assert "Success" in run(sys.executable, "-m", "mypy", "--strict", str(FILE))


def test_pyright(tmp_path: Path) -> None:
    """The same file in the other checker, as strict as it gets; and it can fail (P-1)."""
    pyright = found("pyright")
    if pyright is None:
        missing("pyright is not installed: it comes with the group `lint`, and brings its own node")
    (tmp_path / "user_side.py").write_text("# pyright: strict\n" + FILE.read_text())
    check = (pyright, "--pythonpath", sys.executable)
    (tmp_path / "wrong.py").write_text("from breakloop import Guard\nGuard().run(agent=3)\n")
    with pytest.raises(AssertionError, match=r"wrong\.py:2:\d+ - error: [^/]*reportArgumentType") as found_wrong:
        run(*check, str(tmp_path / "user_side.py"), str(tmp_path / "wrong.py"))
    assert "1 error, 0 warnings" in str(found_wrong.value)
