"""History, alerts, metrics and the admin plane of one process, put together."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from breakloop import __version__
from breakloop.admin.actions import Actions
from breakloop.admin.auth import OPERATOR, AdminIdentity
from breakloop.app import operations as module
from breakloop.app.operations import Operations
from breakloop.app.runtime import Runtime
from breakloop.clock import FakeClock
from breakloop.config.settings import Settings
from breakloop.engine.breakers import Breakers, BreakerState
from breakloop.errors import HistoryError, SettingsError
from breakloop.model.call import Answer, Usage
from breakloop.model.events import Event
from breakloop.model.records import EventFilter, IncidentFilter
from breakloop.observe.events import BATCH
from tests.alert_world import receiver
from tests.builders import chat, user
from tests.deadlines import DEADLINE_S
from tests.each import each
from tests.redis_servers import free_port

TOKEN = "bl_a-token-for-tests"
LOOP = 6


def made(folder: Path, **more: Any) -> Runtime:
    given = {"data_dir": str(folder), "admin_port": free_port(), "admin_token": TOKEN, **more}
    return Runtime(Settings.model_validate(given))


def looped(runtime: Runtime, **names: str) -> None:
    for _ in range(LOOP):
        asked = chat(headers={"authorization": "Bearer k", "x-agent-id": "bot", **names}, model="gpt-4.1")
        asked.tracked = True
        if runtime.engine.decide(asked).allowed:
            runtime.engine.settle(asked, Answer(200, usage=Usage(1000, 100), complete=True))


async def lived(runtime: Runtime, do: Callable[[Any], Any]) -> Any:
    """Start it, let it do something, and end it in order."""
    runtime.load()
    operations = runtime.operations
    assert operations is not None
    await operations.start()
    try:
        result = do(operations)
        return await result if asyncio.iscoroutine(result) else result
    finally:
        await operations.finish()
        await runtime.state.finish()


def get(url: str, token: str = TOKEN) -> Any:
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=DEADLINE_S) as answer:
        return json.load(answer)


def test_what_happened_is_kept(tmp_path: Path) -> None:
    """Events, the incident with what it cost and saved, the agent; written by the end at the latest (G-2, G-3, G-1)."""
    runtime = made(tmp_path)

    async def test() -> None:
        await lived(runtime, lambda _operations: looped(runtime))
        again = made(tmp_path)

        def look(operations: Operations) -> None:
            history = operations.history
            assert [event.name for event in history.events(EventFilter(names=["loop.detected"]))] == ["loop.detected"]
            [incident] = history.incidents(IncidentFilter())
            assert (incident.agent, incident.state, incident.kind, incident.saved_requests) == (
                "bot",
                "stopped",
                "tail",
                1,
            )
            assert incident.saved_microusd > 0
            [agent] = history.agents()
            assert (agent.requests, agent.denied, agent.input_tokens, agent.cost_microusd) == (6, 1, 5000, 14_000)

        await lived(again, look)

    asyncio.run(test())


def test_the_admin_plane_shows_it(tmp_path: Path) -> None:
    """On its own port, with the token; status, breakers, counters, metrics (X-1)."""
    runtime = made(tmp_path)

    async def look(operations: Operations) -> None:
        looped(runtime)
        base = operations.admin_url + "/api/v1/"
        status = await asyncio.to_thread(get, base + "status")
        assert (status["requests"], status["denied"], status["ready"]) == (6, {"loop_detected": 1}, True)
        assert (await asyncio.to_thread(get, base + "breakers"))["breakers"] == []
        counters = await asyncio.to_thread(get, base + "counters?key=cnt:default:")
        assert [one["kind"] for one in counters["counters"]] == ["cooldowns"]
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            await asyncio.to_thread(get, base + "status", "wrong")
        refused.value.close()

    asyncio.run(lived(runtime, look))


def test_wrong_tokens_are_in_the_audit_log_and_in_the_metrics(tmp_path: Path) -> None:
    """Of requests and of the login form; by the end at the latest (Y-3)."""

    async def attempt(operations: Operations) -> None:
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            await asyncio.to_thread(get, operations.admin_url + "/api/v1/status", "wrong")
        refused.value.close()
        form = urllib.request.Request(operations.admin_url + "/login", b"token=wrong")
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            await asyncio.to_thread(urllib.request.urlopen, form, timeout=DEADLINE_S)
        refused.value.close()
        assert b"breakloop_admin_denied_total 2.0" in operations.metrics.text()

    asyncio.run(lived(made(tmp_path), attempt))
    [entry] = asyncio.run(lived(made(tmp_path), lambda operations: operations.history.audit()))
    assert (entry.who, entry.action, entry.target) == ("unknown", "login.denied", "127.0.0.1")
    assert entry.detail == {"attempts": 2, "addresses": "127.0.0.1 (2)"}


@pytest.mark.parametrize("before", [0, BATCH])
def test_an_incident_has_what_its_first_requests_spent(tmp_path: Path, before: int) -> None:
    """Also if the history is written between the detection and the next turn of the bus (G-3)."""
    runtime = made(tmp_path)

    async def look(operations: Operations) -> None:
        for _ in range(before):
            operations.bus(Event("limit.exceeded", 0.0, {}))
        looped(runtime)
        await next(one for one in operations.dispatcher.listeners if one.name == "history").drain()
        await operations.dispatcher.finish()
        [incident] = operations.history.incidents(IncidentFilter())
        assert (incident.spent_requests, incident.saved_requests) == (5, 1)

    asyncio.run(lived(runtime, look))


async def alerted(operations: Operations) -> None:
    """Send the alerts of what happened before it is the history's turn to be written."""
    operations.dispatcher.distribute()
    await next(one for one in operations.dispatcher.listeners if one.name == "alerts").drain()
    await operations.alerts.flush()


def test_alerts_about_a_loop_have_its_incident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Webhooks get its id, its link and what it cost; messages for people link to it, too (G-3, G-4)."""
    with receiver() as hook, receiver() as chat_service:
        monkeypatch.setenv("CHAT", chat_service.url)
        runtime = made(
            tmp_path,
            dashboard_url="https://ops.example/breakloop/",
            alert_targets={"chat": {"type": "slack", "url": "env:CHAT", "allow_private": True}},
            alerts=[{"name": "loops", "type": ["loop"], "targets": ["chat"]}],
        )

        async def look(operations: Operations) -> None:
            operations.alerts.add_webhook(hook.url, ["loop.detected"], allow_private=True)
            looped(runtime, **{"x-agent-session": "s", "x-agent-parent": "lead 1"})
            await alerted(operations)
            [incident] = operations.history.incidents(IncidentFilter())
            data = hook.wait(1)[0].json["data"]
            link = f"https://ops.example/breakloop/incidents/{incident.id}"
            assert (data["incident"], data["incident_url"]) == (incident.id, link)
            assert data["tree"] == "lead 1"
            assert data["tree_url"].startswith("https://ops.example/breakloop/tree?project=default&caller=key%3A")
            assert data["tree_url"].endswith("&root=lead+1")
            assert data["spent_microusd"] == incident.spent_microusd > 0
            assert (data["saved_requests"], data["saved_microusd"]) == (1, incident.saved_microusd)
            assert link in chat_service.wait(1)[0].body.decode()

        asyncio.run(lived(runtime, look))


@pytest.mark.parametrize("hangs", [False, True])
def test_alerts_without_a_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, hangs: bool) -> None:
    """A history that fails or does not respond does not stop alerts (G-4)."""
    monkeypatch.setattr("breakloop.app.operations._HISTORY_WAIT_S", 0.0 if hangs else DEADLINE_S)
    runtime, ended, waited = made(tmp_path), threading.Event(), []

    def write(*_: object) -> None:
        waited.append(not hangs or ended.wait(DEADLINE_S))
        raise HistoryError("the database is locked")

    async def look(operations: Operations) -> None:
        monkeypatch.setattr(operations.history, "write", write)
        operations.alerts.add_webhook(hook.url, ["loop.detected"], allow_private=True)
        looped(runtime)
        await alerted(operations)
        assert "incident" not in hook.wait(1)[0].json["data"]
        ended.set()

    with receiver() as hook:
        asyncio.run(lived(runtime, look))
    assert all(waited)  # no alert waited for it


@each(
    "given, url",
    [
        ({}, "http://127.0.0.1:8788"),
        ({"admin_host": "::1"}, "http://[::1]:8788"),
        ({"admin_host": "0.0.0.0"}, ""),
        ({"admin_host": "::"}, ""),
        ({"admin_port": 0}, ""),
        ({"dashboard_url": "https://ops.example/x/", "admin_host": "0.0.0.0"}, "https://ops.example/x"),
    ],
)
def test_where_links_lead(given: dict[str, Any], url: str) -> None:
    """To the dashboard as people reach it; nowhere if that is not known (G-4)."""
    assert module._dashboard_url(Settings.model_validate(given)) == url


def test_pages_are_told_when_it_is_kept(tmp_path: Path) -> None:
    """Whoever looks again then finds it; before, he would look in vain and not be told once more (X-2)."""
    runtime = made(tmp_path)

    async def look(operations: Operations) -> None:
        told = operations.live.subscribe()
        looped(runtime)
        await operations.dispatcher.finish()
        async for item in told:
            if item.get("kept"):
                assert len(operations.history.incidents(IncidentFilter())) == item["kept"] == 1
                return

    asyncio.run(lived(runtime, look))


def test_it_tells_when_a_loop_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    """`loop.cleared`, after ten quiet minutes, also where nothing else happens (G-2)."""
    monkeypatch.setattr("breakloop.app.operations._CLEAR_EVERY_S", 0.0)
    given = {"data_dir": str(tmp_path), "admin_port": free_port(), "admin_token": TOKEN}
    runtime = Runtime(Settings.model_validate(given), clock=clock)

    async def look(operations: Operations) -> None:
        looped(runtime)
        await operations.dispatcher.finish()
        [incident] = operations.history.incidents(IncidentFilter())
        await operations._clear()
        assert operations.history.incidents(IncidentFilter())[0].ended_at is None
        clock.advance(606)
        await operations._clear()
        await operations.dispatcher.finish()
        [cleared] = operations.history.events(EventFilter(names=["loop.cleared"]))
        assert (cleared.incident, cleared.agent) == (incident.id, "bot")
        assert operations.history.incidents(IncidentFilter())[0].state == "cleared"

    asyncio.run(lived(runtime, look))


def test_open_breakers_are_in_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for now and then, wherever they are (G-5)."""
    monkeypatch.setattr("breakloop.app.operations._CLEAR_EVERY_S", 0.0)
    runtime = made(tmp_path)

    async def look(operations: Operations) -> None:

        async def two(_self: Breakers) -> list[BreakerState]:
            return [
                BreakerState("p", f"k{at}", "", state, 7, 5, "usd", "d") for at, state in enumerate(("open", "closed"))
            ]

        monkeypatch.setattr(Breakers, "states", two)
        await operations._count_breakers()
        assert b"breakloop_breakers_open 1.0" in operations.metrics.text()

    asyncio.run(lived(runtime, look))


def test_a_token_is_made_once_and_shown_once(tmp_path: Path) -> None:
    """At the first start; afterwards its digest is enough (X-1)."""

    async def test() -> None:
        shown: list[str] = []
        for _ in range(2):
            runtime = made(tmp_path, admin_token="")
            await lived(runtime, lambda operations: shown.append(operations.new_token))
        assert shown[0].startswith("bl_")
        assert shown[1] == ""

    asyncio.run(test())


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    """Which one, and what to do (T-2)."""

    async def test() -> None:
        first = made(tmp_path / "a")
        second = made(tmp_path / "b", admin_port=first.settings.admin_port)

        async def collide(_operations: Operations) -> None:
            with pytest.raises(SettingsError, match=r"in use .* --admin-port"):
                await lived(second, lambda _: None)

        await lived(first, collide)

    asyncio.run(test())


def test_settings_of_an_agent_and_snoozes_are_in_force_at_once(tmp_path: Path) -> None:
    """What the admin plane orders goes through the operator (G-1, LD-6)."""
    runtime = made(tmp_path)

    async def order(operations: Operations) -> None:
        actions = Actions(operations.services(), AdminIdentity("ann", OPERATOR))
        await actions.set_agent("default", "bot", {"active": False})
        asked = chat(headers={"x-agent-id": "bot"})
        assert runtime.engine.decide(asked).reason == "agent_inactive"
        await actions.set_agent("default", "bot", {"active": None})
        assert runtime.operator.agent_settings() == {}
        await actions.snooze("f" * 32, 60)
        assert list(runtime.operator.snoozes()) == ["f" * 32]

    asyncio.run(lived(runtime, order))


def test_alerts_that_cannot_be_are_a_wrong_setting(tmp_path: Path) -> None:
    """Alerts that cannot be are a wrong setting (T-1)."""
    with pytest.raises(SettingsError, match=r"alert_targets|NO_SUCH"):
        made(
            tmp_path,
            alert_targets={"chat": {"type": "slack", "url": "env:NO_SUCH_VARIABLE"}},
            alerts=[{"name": "a", "type": ["loop"], "targets": ["chat"]}],
        )


def test_how_it_is_in_numbers(tmp_path: Path) -> None:
    """What `breakloop status` shows (X-1)."""
    runtime = made(tmp_path)

    def look(operations: Operations) -> None:
        looped(runtime)
        status = operations.status()
        assert (status["version"], status["workers"], status["held"]) == (__version__, 1, 0)
        assert status["allowed"] == {"no_matching_policy": 5}
        assert set(status["events_dropped"]) == {"bus", "history", "alerts", "live", "counts"}

    asyncio.run(lived(runtime, look))


def test_trees_are_seen_as_their_requests_arrive(tmp_path: Path) -> None:
    """The picture of a tree, and what is left of its budget, come from the traffic (G-6)."""
    runtime = made(tmp_path)

    async def look(operations: Operations) -> None:
        for session, parent in (("root", ""), ("child", "root"), ("root", "")):
            headers = {"x-agent-id": f"the {session}", "x-agent-session": session}
            runtime.engine.decide(chat(user(session), headers=headers | ({"x-agent-parent": parent} if parent else {})))
        await operations._write([])
        [tree] = operations.trees.all()
        assert [(one.session, one.use.agent, one.depth) for one in tree.nodes] == [
            ("root", "the root", 1),
            ("child", "the child", 2),
        ]
        assert await operations.tree_budgets.states() == []
        assert await operations.tree_budgets.reset("default", tree.caller, "root") is None

    asyncio.run(lived(runtime, look))


def test_breakers_are_those_of_the_engine(tmp_path: Path) -> None:
    """Listed and closed where the state is (CB-2)."""
    runtime = made(tmp_path)

    async def look(operations: Operations) -> None:
        assert await operations.breakers.states() == []
        assert await operations.breakers.reset("p", "no such") is None

    asyncio.run(lived(runtime, look))
