"""`kill -9` at any moment: whatever a save had said is there again, and the file is good."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from breakloop.clock import SystemClock
from breakloop.store.limit_ops import ChargeBudget
from breakloop.store.ops import CountFingerprint, FingerprintCount, Op
from tests.durable_state import Life
from tests.e2e.durable_process import BUDGET, COUNT, KEYS
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parent.parent.parent


def killed(folder: Path, word: str, times: int) -> tuple[int, int]:
    """Run until `word` was said so often, kill; return what was surely saved, and what may have been."""
    command = [sys.executable, "-m", "tests.e2e.durable_process", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if sum(one.startswith(word) for one in lines) >= times:
                break
        process.kill()
        lines += process.stdout.read().splitlines(keepends=True)
    told = [line.split() for line in lines if line.endswith("\n")]
    assert [words for words in told if words[0] == "problem"] == []
    surely = max((int(number) for what, number in told if what == "saved"), default=0)
    return surely, max((int(number) for what, number in told if what == "saving"), default=0)


@pytest.mark.parametrize(
    ("word", "times"), [("loaded", 1), *((word, n) for word in ("saving", "saved") for n in (1, 2, 9))]
)
def test_what_was_saved_is_there_again(tmp_path: Path, word: str, times: int) -> None:
    """Twice in a row on one directory, so that the second life begins with what the first has left (S-1)."""
    killed(tmp_path, word, times)
    surely, perhaps = killed(tmp_path, word, times)
    life = Life(tmp_path, SystemClock())
    assert life.told == []
    now = life.clock.now()
    for number in range(KEYS if perhaps else 0):
        window = life.store.read_window(f"win:{number}", now)
        assert surely <= window.version <= perhaps + 1
        assert window.data == (b"%d" % window.version if window.version else b"")
        ops: list[Op] = [
            CountFingerprint(COUNT, f"ld:{number}", NO_OWNER),
            ChargeBudget(BUDGET, f"tpd:{number}", 1, now + 86_400.0, NO_LIMITER, NO_RULE),
        ]
        hits, used = life.store.commit(ops, now).results
        assert isinstance(hits, FingerprintCount)
        assert (hits.hits, used) == (window.version + 1, window.version + 1)
    life.end()


def test_a_save_is_whole_or_not_at_all(tmp_path: Path) -> None:
    """Killed in the middle of the ninth save, all keys are of one and the same save (S-1)."""
    killed(tmp_path, "saving", 9)
    life = Life(tmp_path, SystemClock())
    versions = {life.store.read_window(f"win:{number}", life.clock.now()).version for number in range(KEYS)}
    assert len(versions) == 1
    assert versions <= {8, 9, 10}
    life.end()
