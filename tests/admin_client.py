"""The admin plane on a world of `admin_world`, and clients of it: an operator, a viewer, somebody unknown, a browser."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from starlette.testclient import TestClient
from starlette.types import ASGIApp

from breakloop.admin.api.operations import Operation
from breakloop.admin.app import admin_app
from breakloop.admin.auth import COOKIE, OPERATOR, VIEWER, AdminToken, AdminTokens, Auth
from breakloop.engine.pauses import Question
from breakloop.engine.quarantine import RUN, Hold
from tests.admin_records import PROJECT
from tests.admin_world import World

OWN, LOOKS = "token-of-ada", "token-of-grace"
ADA = AdminToken("ada", OPERATOR, sha256(OWN.encode()).digest())
GRACE = AdminToken("grace", VIEWER, sha256(LOOKS.encode()).digest())
URL = "http://127.0.0.1:8788"
KEY = b"k" * 32


def auth_of(world: World) -> Auth:
    """Two tokens: ada acts, grace looks. Whoever has to wait moves the clock."""

    async def sleep(seconds: float) -> None:
        world.clock.advance(seconds)

    return Auth(AdminTokens([ADA, GRACE]), KEY, world.clock, sleep)


def app_of(world: World, **options: Any) -> ASGIApp:
    """The whole application."""
    return admin_app(world.services, auth_of(world), **options)


def client(world: World, token: str = OWN, *, peer: str = "127.0.0.1", app: ASGIApp | None = None) -> TestClient:
    """Somebody with this token; without one, nobody."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    made = TestClient(app or app_of(world), URL, raise_server_exceptions=False, headers=headers, client=(peer, 50_000))
    made.follow_redirects = False
    return made


def browser(world: World, token: str = OWN) -> tuple[TestClient, str]:
    """Somebody who has signed in, and what the forms of the session carry."""
    auth = auth_of(world)
    made = client(world, "", app=admin_app(world.services, auth))
    known = auth._tokens.find(token)
    assert known is not None
    cookie = auth.sessions.open(known)
    made.cookies.set(COOKIE, cookie)
    session = auth.sessions.find(cookie)
    assert session is not None
    return made, session.csrf


def pause(world: World, agent: str = "planner") -> str:
    """Pause a run of this agent; return the id of the question."""
    now = world.clock.now()
    question = Question(f"{agent}-1", now + 1800, "deny")
    why = "repeat loop (`search` returned the same 37 bytes 5 times in a row)"
    hold = Hold(RUN, PROJECT, "key:4f2a", agent, now, now + 3600, why, "key:4f2a|s-1", question=question)
    world.operator._quarantine.pause(hold)
    return question.id


# A body and parts of the path with which each operation that changes something succeeds on `full()`.
EXAMPLES: Mapping[str, tuple[Mapping[str, str], Any]] = {
    "setAgent": ({"id": "planner"}, {"budget_usd_per_day": 5.0}),
    "killAgent": ({"id": "planner"}, {"reason": "spins"}),
    "releaseAgent": ({"id": "code-fixer"}, None),
    "releaseHolds": ({}, {"agent": "code-fixer"}),
    "setKillSwitch": ({}, {"scope_key": "agent:id", "scope_value": "planner"}),
    "liftKillSwitch": ({"id": "SWITCH"}, None),
    "answerPause": ({"id": "PAUSE"}, {"answer": "once"}),
    "setOverride": ({"name": "global_shadow"}, {"reason": "rollout", "expires_at": 1_800_003_600}),
    "liftOverride": ({"name": "kill_switch_override"}, None),
    "snoozeLoop": ({}, {"fingerprint": "9b0c44d1e2a7f350", "seconds": 600}),
    "resetBreaker": ({}, {"policy": "spend-guard", "key": "cb:default:spend-guard:per-team:blue"}),
    "resetTreeBudget": ({}, {"project": "default", "caller": "key:4f2a", "root": "nightly-refactor"}),
    "killTree": (
        {},
        {
            "project": "default",
            "caller": "key:4f2a",
            "root": "nightly-refactor",
            "session": "code-03",
            "reason": "too dear",
        },
    ),
    "landTree": (
        {},
        {
            "project": "default",
            "caller": "key:4f2a",
            "root": "nightly-refactor",
            "session": "code-03",
            "reason": "enough",
        },
    ),
    "releaseTree": ({}, {"project": "default", "caller": "key:4f2a", "root": "nightly-refactor", "session": "code-03"}),
    "applyBundle": ({}, b"version: 15\n"),
    "rollbackBundle": ({}, {"version": 13}),
    "promotePolicy": ({}, {"policy": "support-shadow"}),
    "addWebhook": ({}, {"url": "https://hooks.example.com/x", "events": ["loop.detected"], "allow_private": False}),
    "removeWebhook": ({"id": "wh_1"}, None),
    "testWebhook": ({"id": "wh_1"}, None),
    "rotateWebhook": ({"id": "wh_1"}, None),
    "sendAgain": ({"id": "msg_29"}, None),
}


def path_of(operation: Operation, parts: Mapping[str, str] | None = None) -> str:
    """The path of an operation, with something in every place."""
    names = {"id": "x", "name": "x"} | dict(parts or {})
    return "/api/v1" + operation.path.format(**names)


def send(made: TestClient, operation: Operation, world: World) -> Any:
    """Ask for an operation as its example says."""
    parts, body = EXAMPLES.get(operation.name, ({}, None))
    if operation.name == "liftKillSwitch":
        parts = {"id": world.operator.switches()[0].id}
    if operation.name == "liftOverride":
        world.operator.set_override(parts["name"], "for a while", world.clock.now() + 60, "ada")
    if operation.name == "answerPause":
        parts = {"id": pause(world)}
    given = {"content": body} if isinstance(body, bytes) else {"json": body} if body is not None else {}
    query = {"key": "tb:"} if operation.name == "listCounters" else {}
    return made.request(operation.method, path_of(operation, parts), params=query, **given)
