"""What a process remembers, put together: memory with its files, or a Redis that is or is not there."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from breakloop.app.runtime import Runtime
from breakloop.app.state import ProcessState, StateConnection, open_state
from breakloop.clock import SharedClock, SystemClock
from breakloop.config.settings import Settings
from breakloop.errors import SettingsError
from breakloop.store.orders import HOLD
from tests.builders import call, chat
from tests.fake_redis import array, bulk, fake_redis, polite

LOOP_GUARD = 5


def made(folder: Path, **more: Any) -> Settings:
    return Settings(data_dir=str(folder), admin_port=0, **more)


async def lived(folder: Path, do: Any = None) -> Runtime:
    """One life of a process, from its start to its orderly end."""
    runtime = Runtime(made(folder))
    runtime.load()
    if do is not None:
        do(runtime)
    await runtime.state.finish()
    return runtime


def test_counts_survive_a_restart(tmp_path: Path) -> None:
    """A loop goes on to be counted where the life before has ended (S-1)."""

    def sends(runtime: Runtime) -> None:
        for _ in range(LOOP_GUARD):
            assert runtime.engine.decide(chat()).allowed

    def is_blocked(runtime: Runtime) -> None:
        assert not runtime.engine.decide(chat()).allowed

    async def test() -> None:
        await lived(tmp_path, sends)
        await lived(tmp_path, is_blocked)

    asyncio.run(test())


def test_slow_saves_do_not_come_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a crash loses is the time between two saves and that of one, which a busy process needs longer for (S-1)."""
    began: list[float] = []
    took_s = 0.25

    async def test() -> None:
        now = 1000.0
        state = ProcessState(tmp_path, 100, SystemClock(), None)

        async def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds

        async def save(_aside: Any) -> None:
            nonlocal now
            began.append(now)
            now += took_s

        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        monkeypatch.setattr(state.snapshots, "save", save)
        for _ in range(4):
            await state._save()

    asyncio.run(test())
    assert [later - earlier + took_s for earlier, later in pairwise(began)] == [1.0, 1.0, 1.0]


def test_orders_survive_a_restart(tmp_path: Path) -> None:
    """On disk before they are acknowledged (S-1, K-3, G-1)."""

    def orders(runtime: Runtime) -> None:
        runtime.operator.kill("default", "bot", "too loud", "ann")
        runtime.operator.set_switch("header:x-team", "red", "ann", reason="leak")

    def holds(runtime: Runtime) -> None:
        quiet = runtime.engine.decide(call("/x", headers={"x-agent-id": "bot"}))
        red = runtime.engine.decide(call("/x", headers={"x-team": "red"}))
        assert (quiet.reason, red.reason) == ("agent_quarantined", "kill_switch")

    async def test() -> None:
        await lived(tmp_path, orders)
        await lived(tmp_path, holds)

    asyncio.run(test())


def test_without_a_data_directory_everything_runs(tmp_path: Path) -> None:
    """Never a failed start (S-1)."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")

    async def test() -> None:
        runtime = await lived(blocked / "data", lambda one: one.engine.decide(chat()))
        assert runtime.state.readiness() == {"state": "memory", "state_kept": False}

    asyncio.run(test())


def test_what_is_ready_says_whether_state_is_kept(tmp_path: Path) -> None:
    """What is ready says whether state is kept (S-1, D-5)."""

    async def test() -> None:
        runtime = Runtime(made(tmp_path))
        runtime.load()
        assert runtime.readiness()[1]["state_kept"] is True
        assert [name for name, _ in runtime.state.jobs()] == ["orders", "save"]
        await runtime.state.finish()

    asyncio.run(test())


def test_state_in_this_process_needs_no_opening(tmp_path: Path) -> None:
    """State in this process needs no opening: the default (S-1)."""
    opened = asyncio.run(open_state(made(tmp_path)))
    assert (type(opened.clock), opened.shared, opened.secret) == (SystemClock, None, "")


def test_a_redis_that_is_not_there_is_no_reason_not_to_start(tmp_path: Path) -> None:
    """Decided on local state, and the secret is the one that is kept here (S-3)."""
    (tmp_path / "secret").write_text("kept\n")

    async def test() -> None:
        opened = await open_state(made(tmp_path, state="redis://127.0.0.1:1/0"))
        assert (type(opened.clock), opened.secret) == (SharedClock, "kept")
        runtime = Runtime(made(tmp_path, state="redis://127.0.0.1:1/0"), opened=opened)
        runtime.load()
        assert runtime.state.readiness() == {"state": "redis", "degraded": True}
        verdicts: list[Any] = []
        assert runtime.admission.remote is not None
        runtime.admission.remote.decide(chat(), verdicts.append)
        assert (verdicts[0].allowed, verdicts[0].degraded) == (True, True)
        await runtime.state.finish()

    asyncio.run(test())


def test_a_fleet_agrees_on_its_secret(tmp_path: Path) -> None:
    """LD: the first that was put there holds for all, and a copy is kept."""

    def script(command: tuple[bytes, ...]) -> bytes | None:
        if command[:2] == (b"SET", b"bl:secret"):
            return b"$-1\r\n"  # there is one already
        if command[0] == b"GET":
            return bulk(b"theirs")
        return array(0) if command[0] == b"SCAN" else polite(command)

    async def test() -> None:
        async with fake_redis(script) as redis:
            settings = made(tmp_path, state=f"redis://127.0.0.1:{redis.port}/0")
            opened = await open_state(settings)
            assert opened.secret == "theirs"
            assert (tmp_path / "secret").read_text() == "theirs\n"
            assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
            assert opened.shared is not None
            await opened.shared.close()

    asyncio.run(test())


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it (T-1)."""
    import sys

    monkeypatch.setitem(sys.modules, "breakloop.app.shared_state", None)
    with pytest.raises(SettingsError, match=r'pip install "breakloop\[redis\]"'):
        asyncio.run(open_state(made(tmp_path, state="redis://127.0.0.1:1/0")))


def test_the_clock_may_be_given(tmp_path: Path) -> None:
    """Tests and replay have their own."""
    clock = SystemClock()
    assert Runtime(made(tmp_path), opened=StateConnection(clock)).clock is clock
    assert HOLD == "hold"
