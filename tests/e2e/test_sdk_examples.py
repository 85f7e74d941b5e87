"""Examples of the library that no page shows the output of. The others are run by `test_page_commands.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from breakloop.testing import ThreadedLLM
from tests.deadlines import DEADLINE_S
from tests.e2e.served import SRC, serving

pytestmark = pytest.mark.e2e

EXAMPLES = SRC.parent / "examples"


def script(path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("BREAKLOOP_", "OPENAI_"))}
    return subprocess.run(
        [sys.executable, str(EXAMPLES / path)],
        env={**clean, "PYTHONPATH": str(SRC), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


def test_drop_in_clients(llm: ThreadedLLM, tmp_path: Path) -> None:
    """The sixth try is stopped, with the SDK's error that is ours (P-2)."""
    with serving(tmp_path, "--upstream", f"anthropic={llm.url}") as served:
        done = script("drop-in-clients/anthropic_agent.py", BREAKLOOP_URL=served.url)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1].startswith("attempt 6: stopped after 6 alike, for 30 s: ")
