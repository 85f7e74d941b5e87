"""`kill -9` loses no order that was acknowledged (S-1, K-3)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from breakloop.engine.quarantine import AGENT, NAME
from breakloop.store.orders import HOLD, SWITCH, FileOrderStore

pytestmark = pytest.mark.e2e

CRASHES = 10
ROOT = Path(__file__).resolve().parent.parent.parent


def said_until(folder: Path, lines: int) -> list[tuple[str, str]]:
    """Let the process order until it has said so much, then kill it at once; return everything it said."""
    command = [sys.executable, "-m", "tests.e2e.operator_process", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        said += process.stdout.read().splitlines(keepends=True)
    whole = [line.split() for line in said if line.endswith("\n")]
    assert len(whole) >= lines
    return [(what, which) for what, which in whole]


@pytest.mark.parametrize("crash", range(CRASHES))
def test_what_was_acknowledged_is_there_after_a_crash(tmp_path: Path, crash: int) -> None:
    """Holds of persons and detectors, switches and releases: on disk before anybody hears of them."""
    said = said_until(tmp_path, 1 + 3 * crash)
    book = FileOrderStore(tmp_path, lambda trouble: pytest.fail(str(trouble)))
    book.load()
    now = 1.0
    held = {tuple(record.value["of"]) for record in book.ledger.live(HOLD, now)}
    switches = {record.key for record in book.ledger.live(SWITCH, now)}
    released = {which for what, which in said if what == "released"}
    last = max(int(which) for what, which in said if what == "killed")
    for what, which in said:
        name, agent = (NAME, "default", "", which), (AGENT, "default", which, which)
        if what == "set":
            assert which in switches
        elif what == "released":
            assert name not in held
            assert agent not in held
        elif which not in released and which != f"{last - 1}":  # whose release may be on disk, and not be said yet
            assert (name if what == "killed" else agent) in held
