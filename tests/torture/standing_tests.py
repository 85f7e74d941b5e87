"""Scenarios that `make test` has already, with real processes: their tests are run, and each file is a row."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Final

from tests.e2e.forking import ROOT
from tests.torture.gateway import Rig
from tests.torture.table import Row

# name: what is done, what must hold, where
_TESTS: Final = {
    "kill-9-and-counters": (
        "`kill -9` at 20 random moments under load",
        "at most the last second of counters is lost, and no quarantine",
        "test_crash.py",
    ),
    "kill-9-and-orders": (
        "`kill -9` right after an order of an operator is acknowledged",
        "the order is in force after the start",
        "test_operator_crash.py",
    ),
    "kill-9-and-alerts": (
        "`kill -9` at random moments, and receivers that come and go",
        "no alert is lost, and their order stays",
        "test_alerts.py",
    ),
    "redis-faults": (
        "Redis is killed, paused, restarted empty, out of memory, slow, fluttering, or absent at the start, under load",
        "no request fails; limits and loops are enforced locally; Redis is used again when it is back",
        "test_redis_faults.py",
    ),
    "workers": (
        "workers, the control process and the supervisor are killed, stopped and signalled",
        "the others go on; what died is replaced; nothing is left behind",
        "test_workers.py",
    ),
    "upstream-faults": (
        "upstreams that refuse, stall, break off, answer nonsense or are killed",
        "an error in the client's format, or an aborted stream; never a clean end of a cut response",
        "test_proxy_faults.py",
    ),
    "framing": (
        "ambiguous and malformed requests and responses",
        "400 or 502; nothing is read in two ways",
        "test_proxy_framing.py",
    ),
    "back-pressure": (
        "clients and upstreams that do not read, and bodies of 50 and 100 MB",
        "the sender is stopped, and memory hardly grows",
        "test_proxy_pressure.py",
    ),
    "tls": (
        "old TLS versions, clients without TLS, untrusted upstreams, TLS that ends without its goodbye",
        "refused, or cut; nothing is passed on as complete",
        "test_proxy_tls.py",
    ),
}


def _run(file: str, promise: str, done: str, rig: Rig, row: Row) -> None:
    row.done = f"{done}: `tests/e2e/{file}`"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-o", f"cache_dir={ROOT}/.cache/pytest", f"tests/e2e/{file}"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = (found.stdout.strip().splitlines() or [found.stderr[-200:]])[-1]
    passed = re.search(r"(\d+) passed", last)
    row.expect(promise, found.returncode == 0, f"{passed[1]} tests pass" if passed and not found.returncode else last)


SCENARIOS: Final[dict[str, Callable[[Rig, Row], None]]] = {
    name: partial(_run, file, promise, done) for name, (done, promise, file) in _TESTS.items()
}
