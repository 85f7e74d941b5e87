"""The commands against the real admin API: the paths, fields and answers are the ones that both sides mean."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest

from breakloop.admin.app import AdminServer
from breakloop.cli.main import run
from tests import admin_world
from tests.admin_client import LOOKS, OWN, app_of
from tests.admin_records import NOW
from tests.admin_world import World
from tests.deadlines import DEADLINE_S


class Served:
    """The admin plane of a world, on a port of its own in a thread of its own."""

    def __init__(self, make: Callable[[], World]) -> None:
        self._make = make
        self._ready = Event()
        self._done: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.world: World
        self.port = 0
        self._thread = Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        self.world = self._make()
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        server = AdminServer(app_of(self.world), "127.0.0.1", 0)
        self.port = await server.start()
        self._ready.set()
        await self._done.wait()
        await server.stop()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(DEADLINE_S)

    def stop(self) -> None:
        assert self._loop is not None
        assert self._done is not None
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(DEADLINE_S)


@contextmanager
def serving(make: Callable[[], World] = admin_world.full) -> Iterator[Served]:
    served = Served(make)
    served.start()
    try:
        yield served
    finally:
        served.stop()


@pytest.fixture(autouse=True)
def _same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides have the same clock."""
    monkeypatch.setattr("breakloop.clock.SystemClock.now", lambda _: NOW)


def ask(served: Served, capsys: pytest.CaptureFixture[str], *command: str, token: str = OWN) -> Any:
    code = run([*command, "--url", f"http://127.0.0.1:{served.port}", "--token", token, "--json"])
    said = json.loads(capsys.readouterr().out)
    return code, said


def test_everything_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON and as text, by whoever may look (X-3, T-2)."""
    with serving() as served:
        where = ["--url", f"http://127.0.0.1:{served.port}", "--token", LOOKS]
        for command in (["status"], ["agents"], ["agents", "code-fixer"], ["events"], ["switch", "list"]):
            assert run([*command, *where]) == 0, command
            assert capsys.readouterr().out.strip()
        _, status = ask(served, capsys, "status", token=LOOKS)
        assert status["bundle"]["version"] == 14
        _, found = ask(served, capsys, "agents", "--find", "code", token=LOOKS)
        assert [agent["agent"] for agent in found["agents"]] == ["code-fixer"]
        _, events = ask(served, capsys, "events", "--most", "3", "--name", "loop.detected", token=LOOKS)
        ids = [event["id"] for event in events["events"]]
        assert ids == sorted(ids)
        assert {event["name"] for event in events["events"]} == {"loop.detected"}


def test_an_agent_is_held_and_released(capsys: pytest.CaptureFixture[str]) -> None:
    """And the audit log names who did it (G-1, T-2)."""
    with serving() as served:
        code, killed = ask(served, capsys, "kill", "team/a b", "--reason", "burns money", "--for", "1h")
        assert (code, killed["hold"]["agent"], killed["shared"]) == (0, "team/a b", True)
        assert [hold.agent for hold in served.world.operator.holds() if hold.agent == "team/a b"] == ["team/a b"]
        _, shown = ask(served, capsys, "agents", "team/a b")
        assert [hold["reason"] for hold in shown["holds"]] == ["burns money"]
        _, released = ask(served, capsys, "release", "team/a b")
        assert [hold["agent"] for hold in released["released"]] == ["team/a b"]
        actions = [(one.who, one.action) for one in served.world.history.audit()[:2]]
        assert actions == [("ada", "agent.release"), ("ada", "agent.kill")]


def test_a_switch_is_set_listed_and_lifted(capsys: pytest.CaptureFixture[str]) -> None:
    """A switch is set, listed and lifted (K-3)."""
    with serving(admin_world.empty) as served:
        _, made = ask(served, capsys, "switch", "set", "agent:id", "scraper", "--route", "/v1/*", "--for", "30m")
        _, listed = ask(served, capsys, "switch", "list")
        assert [(one["id"], one["route"], one["by"]) for one in listed["kill_switches"]] == [
            (made["id"], "/v1/*", "ada")
        ]
        assert ask(served, capsys, "switch", "lift", made["id"]) == (0, {"ok": True, "shared": True})
        code, again = ask(served, capsys, "switch", "lift", made["id"])
        assert (code, again["ok"]) == (1, False)


@pytest.mark.parametrize(
    "command", [["kill", "a"], ["release", "a"], ["switch", "set", "agent:id", "a"], ["switch", "lift", "x"]]
)
def test_whoever_only_looks_cannot_act(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever only looks cannot act (X-1, X-3)."""
    with serving(admin_world.empty) as served:
        code, said = ask(served, capsys, *command, token=LOOKS)
        assert code == 1
        assert said["error"].endswith("your role is viewer, and this needs operator (use the token of an operator)")
        assert served.world.operator.holds() == []


def test_a_wrong_token(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong token: exit code 1, and what to do (X-1)."""
    with serving(admin_world.empty) as served:
        code, said = ask(served, capsys, "status", token="wrong")
        assert code == 1
        assert "give the token with --token" in said["error"]
