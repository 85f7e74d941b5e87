"""scripts/find-python.sh, without downloads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "scripts" / "find-python.sh"


def find(version: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable}
    return subprocess.run(["sh", SCRIPT, version], env=environment, capture_output=True, text=True, check=False)


def test_the_python_that_is_named_is_used() -> None:
    done = find(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert (done.returncode, done.stdout) == (0, f"{sys.executable}\n")


def test_without_one_the_message_says_what_to_do() -> None:
    """Debian has no such version to unpack."""
    done = find("3.99")
    assert done.returncode == 1
    assert done.stderr == (
        "find-python: there is no Python 3.99 here; install Python 3.99 with its venv module and name it: "
        "make test-python VERSION=3.99 PYTHON=/path/to/python3.99\n"
    )
