"""Starting a process: what is said about how one ended. The real thing is in tests/e2e/test_workers.py."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from breakloop.app.workers import supervisor
from breakloop.app.workers.ipc import CONTROL, ChildConfig, PipeMessage
from breakloop.config.settings import Settings
from tests.deadlines import DEADLINE_S


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exit code 0"), (1, "exit code 1"), (-9, "killed by SIGKILL"), (-250, "killed by signal 250")],
)
def test_how_it_ended(code: int, words: str) -> None:
    """In words that people know (S-5)."""
    assert supervisor.describe_exit(code) == words


def test_modules_are_not_looked_for_where_they_were_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`-m` alone would put the working directory first (S-5)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/usr/bin", *sys.path])
    assert supervisor._has_safe_path()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert not supervisor._has_safe_path()


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


@pytest.mark.e2e
def test_a_process_hears_and_is_heard(tmp_path: Path) -> None:
    """It is told its settings in memory, says that it is ready, ends when it is told to; a dead one says no more
    (S-5)."""
    settings = Settings.model_validate({"data_dir": str(tmp_path / "data"), "admin_port": 0, "secret": "sk-canary"})

    async def main() -> None:
        heard: asyncio.Queue[PipeMessage] = asyncio.Queue()
        handover = ChildConfig(CONTROL, 0, 2, settings)
        one = await supervisor.launch(handover, heard.put_nowait)
        other = await supervisor.launch(handover, heard.put_nowait)
        for _ in range(2):
            assert (await asyncio.wait_for(heard.get(), DEADLINE_S))["is"] == "ready"
        assert "sk-canary" not in command_line(one.pid)  # before it is ready, it may not have a command line yet
        assert "breakloop.app.workers control 0 " in command_line(one.pid)
        assert not one.is_traced
        one.send({"do": "stop"})
        assert await asyncio.wait_for(one.wait(), DEADLINE_S) == 0
        other.kill()
        assert await asyncio.wait_for(other.wait(), DEADLINE_S) == -9
        assert not other.send({"do": "stop"})
        other.kill()

    asyncio.run(main())
