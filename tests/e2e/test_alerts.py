"""`kill -9` at any moment, and receivers that come and go: nothing that was taken is lost, and its order is kept."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.alert_world import Got, Receiver, receiver
from tests.deadlines import DEADLINE_S
from tests.e2e.alerts_process import AGENTS

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parent.parent.parent


@contextmanager
def running(folder: Path, url: str, first: int) -> Iterator[subprocess.Popen[str]]:
    """The process, until it is killed."""
    command = [sys.executable, "-m", "tests.e2e.alerts_process", str(folder), url, str(first)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def kept(process: subprocess.Popen[str], number: int) -> int:
    """Let it take so many events, kill it, and return the last that it said to be on disk."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(number)]
    process.kill()
    lines += process.stdout.readlines()
    said = [int(line.split()[1]) for line in lines if line.startswith("kept ") and line.endswith("\n")]
    return max(said)


def numbers(got: list[Got]) -> list[int]:
    return [one.json["data"]["hit_count"] for one in got]


def wait_for(wanted: set[int], server: Receiver) -> None:
    ends = time.monotonic() + DEADLINE_S
    while not wanted <= set(numbers(server.got)):
        assert time.monotonic() < ends, f"missing: {sorted(wanted - set(numbers(server.got)))[:10]}"
        time.sleep(0.05)


def test_nothing_is_lost_and_the_order_stays(tmp_path: Path, free_port: Callable[[], int]) -> None:
    """Killed twice while the receiver is down, once while it answers 500, and once while it takes events (G-4)."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/hook"
    with running(tmp_path, url, 0) as process:
        first = kept(process, 40)
    with running(tmp_path, url, first + 1) as process:
        second = kept(process, 40)
    with receiver(port) as server:
        server.status = 500
        with running(tmp_path, url, second + 1) as process:
            server.wait(1)
            third = kept(process, 20)
        refused, server.status = len(server.got), 200
        with running(tmp_path, url, third + 1) as process:
            server.wait(refused + 1, 60)
            last = kept(process, 20)
        with running(tmp_path, url, -1):
            wait_for(set(range(last + 1)), server)
        got = server.got[refused:]
    assert last >= 119
    _check_order(got)


def _check_order(got: list[Got]) -> None:
    """What comes twice was under way when the process was killed, and has the same id."""
    ids: dict[int, set[str]] = {}
    for one in got:
        ids.setdefault(one.json["data"]["hit_count"], set()).add(one.headers["webhook-id"])
    # Killed between keeping an event and saying so, whoever emits it does so again: that is another one.
    assert sum(len(found) - 1 for found in ids.values()) <= 4
    for agent in range(AGENTS):
        mine = [number for number in dict.fromkeys(numbers(got)) if number % AGENTS == agent]
        assert mine == sorted(mine)
    # One of each agent may have been under way when the process that delivered was killed.
    assert len(got) - sum(map(len, ids.values())) <= AGENTS
