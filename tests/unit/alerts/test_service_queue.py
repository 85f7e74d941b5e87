"""From events to deliveries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from breakloop.alerts import router as states
from breakloop.alerts import service as module
from breakloop.alerts.channels.base import Target
from breakloop.alerts.channels.services import PagerDutyTarget, SlackTarget, WebhookTarget
from breakloop.alerts.delivery import AlertDatabase, Outbox
from breakloop.alerts.router import AlertRouter
from breakloop.alerts.rules import AlertRule
from breakloop.alerts.service import AlertConfig, AlertQueue
from breakloop.alerts.webhooks import Webhooks
from breakloop.clock import FakeClock
from breakloop.errors import StateError
from breakloop.model.events import Event
from tests.alert_world import NOW, killed, limited, loop, means, released, rule

TARGETS: dict[str, Target] = {
    "chat": SlackTarget(means(), "https://h.example"),
    "pager": PagerDutyTarget(means(), "key"),
    "hook": WebhookTarget(means(), "https://h.example", lambda _now: []),
}


@dataclass
class World:
    database: AlertDatabase
    outbox: Outbox
    webhooks: Webhooks
    intake: AlertQueue
    clock: FakeClock

    def waiting(self) -> list[tuple[str, str]]:
        return [(one["webhook"], one["event"]) for one in reversed(self.outbox.recent(10_000))]

    def bodies(self, target: str) -> list[Any]:
        return [json.loads(one.body) for one in self.outbox.due(target, self.clock.now(), (), 100)[0]]


def make(folder: Path, *rules: AlertRule) -> World:
    clock, database = FakeClock(NOW), AlertDatabase(folder, lambda _trouble: None)
    webhooks, outbox, router = Webhooks(database), Outbox(database), AlertRouter(rules)
    webhooks.load()
    states.load_states(database, router)
    return World(
        database, outbox, webhooks, AlertQueue(clock, AlertConfig(rules, TARGETS), webhooks, outbox, router), clock
    )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = make(tmp_path, rule("loops", ("loop",), ("chat", "pager", "hook")))
    yield made
    made.database.close()


def test_webhooks_get_what_they_want(world: World) -> None:
    """Every event of these names, whatever rules say (G-4)."""
    one = world.webhooks.add("https://a.example", ["loop.*"], allow_private=False, now=NOW)
    every = world.webhooks.add("https://b.example", [], allow_private=False, now=NOW + 1)
    assert world.intake.take([loop(), loop(at=NOW + 1), killed()])
    assert [(target, name) for target, name in world.waiting() if target.startswith("wh_")] == [
        (one.id, "loop.detected"), (every.id, "loop.detected"), (one.id, "loop.detected"), (every.id, "loop.detected"), (every.id, "agent.killed"),
    ]  # fmt: skip
    assert world.bodies(one.id)[0]["data"]["fingerprint"] == "a3f7c2d1b8e4"


def test_targets_get_what_rules_tell(world: World) -> None:
    """People a notice, webhooks a payload; of the end only those who asked for it, and pagers (G-4)."""
    world.intake.take([loop(), loop(at=NOW + 1), released(at=NOW + 2)])
    assert world.waiting() == [
        ("target:chat", "loop.detected"), ("target:pager", "loop.detected"), ("target:hook", "loop.detected"), ("target:pager", "agent.released"),
    ]  # fmt: skip
    (told,), (raw,) = world.bodies("target:chat"), world.bodies("target:hook")
    assert (told["rule"], told["state"], told["payload"]["data"]["agent"]) == ("loops", "firing", "summariser")
    assert (raw["event"], raw["data"]["rule_name"], raw["data"]["alert"]) == ("loop.detected", "loops", "firing")


def test_what_was_told_is_remembered(world: World) -> None:
    """The same loop, a moment later (G-4)."""
    assert world.intake.take([loop()])
    assert not world.intake.take([loop(at=NOW + 1)])
    assert len(world.waiting()) == 3


def test_the_default_project(world: World) -> None:
    """Of an event that comes from no request (G-4)."""
    world.intake.project = "fallback"
    hook = world.webhooks.add("https://a.example", [], allow_private=False, now=NOW)
    world.intake.take([loop(), Event("store.degraded", NOW, {"error": "x"})])
    assert [body["project_id"] for body in world.bodies(hook.id)] == ["default", "fallback"]


def test_a_flood_is_thin(world: World) -> None:
    """Nobody is told of each request (G-4)."""
    hook = world.webhooks.add("https://a.example", [], allow_private=False, now=NOW)
    world.intake.take([limited() for _ in range(5000)])
    assert world.waiting() == [(hook.id, "limit.exceeded")]
    assert not world.intake.take([])
    world.clock.advance(10)
    assert world.intake.take([])
    assert world.bodies(hook.id)[0]["data"].get("left_out") is None  # the first; the second waits behind it


def test_a_disk_that_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events wait in memory, and are written once, in order; what is too much is counted (G-4)."""
    hook = world.webhooks.add("https://a.example", ["loop.detected"], allow_private=False, now=NOW)
    real, fails = world.outbox.put, [True, True]

    def put(*arguments: Any) -> None:
        if fails and fails.pop():
            raise StateError("the disk is full")
        real(*arguments)

    monkeypatch.setattr(world.outbox, "put", put)
    monkeypatch.setattr(module, "_UNSAVED_MAX", 3)
    assert not world.intake.take([loop("a"), loop("b")])
    assert not world.intake.take([loop("c"), loop("d")])
    assert world.intake.lost == 1
    assert world.intake.take([])
    assert [body["data"]["agent"] for body in world.bodies(hook.id)] == ["b", "c", "d"]
    assert len([one for one in world.waiting() if one[0] == "target:chat"]) == 3
    assert not world.intake.take([])


def test_a_restart_goes_on_where_it_was(world: World, tmp_path: Path) -> None:
    """Told and not told are on disk together with what is to be sent (G-4)."""
    world.intake.take([loop()])
    again = make(tmp_path, rule("loops", ("loop",), ("chat", "pager", "hook")))
    assert not again.intake.take([loop(at=NOW + 1)])
    assert again.intake.take([released(at=NOW + 2)])
    assert again.waiting()[-1] == ("target:pager", "agent.released")
    again.database.close()
