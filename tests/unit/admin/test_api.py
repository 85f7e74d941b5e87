"""Tests of `admin.api`: every operation of the table, checked the same way; and the names that T-2 fixes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from breakloop.admin.api import OPERATIONS, encoded
from breakloop.admin.api.operations import Operation
from breakloop.errors import BreakloopError, HistoryError, StateError
from tests.admin_client import EXAMPLES, LOOKS, browser, client, path_of, pause, send
from tests.admin_world import World, full
from tests.each import each

CHANGING = [one for one in OPERATIONS if one.acts]


def named(operation: Operation) -> str:
    return operation.name


@pytest.fixture
def world() -> World:
    return full()


@each(
    "method, path",
    [
        ("GET", "/agents"),
        ("GET", "/agents/{id}"),
        ("PATCH", "/agents/{id}"),
        ("POST", "/agents/{id}/kill"),
        ("POST", "/agents/{id}/release"),
        ("GET", "/incidents"),
        ("GET", "/incidents/{id}"),
        ("GET", "/events"),
        ("GET", "/kill-switches"),
        ("POST", "/kill-switches"),
        ("DELETE", "/kill-switches/{id}"),
        ("GET", "/overrides"),
        ("PUT", "/overrides/{name}"),
        ("DELETE", "/overrides/{name}"),
        ("GET", "/quarantine"),
        ("POST", "/snooze"),
        ("GET", "/breakers"),
        ("POST", "/breakers/reset"),
        ("GET", "/trees"),
        ("GET", "/tree"),
        ("POST", "/tree/kill"),
        ("POST", "/tree/land"),
        ("POST", "/tree/release"),
        ("GET", "/tree-budgets"),
        ("POST", "/tree-budgets/reset"),
        ("GET", "/bundle"),
        ("POST", "/bundle/validate"),
        ("POST", "/bundle/apply"),
        ("POST", "/bundle/diff"),
        ("POST", "/bundle/rollback"),
        ("GET", "/bundle/history"),
        ("GET", "/counters"),
        ("GET", "/webhooks"),
        ("POST", "/webhooks"),
        ("DELETE", "/webhooks/{id}"),
        ("POST", "/webhooks/{id}/test"),
        ("POST", "/webhooks/{id}/rotate"),
        ("POST", "/deliveries/{id}/again"),
        ("GET", "/deliveries"),
        ("GET", "/alerts/rules"),
        ("GET", "/audit"),
        ("GET", "/status"),
        ("GET", "/settings"),
    ],
)
def test_the_fixed_names_are_there(method: str, path: str) -> None:
    """Others build on these (T-2, X-1)."""
    assert [one for one in OPERATIONS if (one.method, one.path) == (method, path)]


def test_every_operation_without_or_with_a_wrong_token_is_401(world: World) -> None:
    """Generated from the table (X-1)."""
    for token in ("", "wrong"):
        made = client(world, token)
        assert {send(made, one, world).status_code for one in OPERATIONS} == {401}


@pytest.mark.parametrize("operation", CHANGING, ids=named)
def test_a_viewer_cannot_act(world: World, operation: Operation) -> None:
    """403, and nothing has changed (X-1)."""
    pause(world)
    before = (world.operator.holds(), world.operator.switches(), len(world.history.audit_rows))
    answer = send(client(world, LOOKS), operation, world)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert (world.operator.holds(), world.operator.switches(), len(world.history.audit_rows)) == before
    assert (world.bundles.promoted, world.snoozed, world.reset) == ([], {}, [])


@pytest.mark.parametrize("operation", CHANGING, ids=named)
def test_a_session_acts_only_with_its_csrf_text(operation: Operation) -> None:
    """A session acts only with its CSRF text (Y-3)."""
    world = full()
    made, csrf = browser(world)
    assert send(made, operation, world).json()["error"]["code"] == "csrf"
    made.headers["x-csrf-token"] = csrf
    assert send(made, operation, world).status_code == operation.status


@pytest.mark.parametrize("operation", CHANGING, ids=named)
def test_what_is_done_is_in_the_audit_log(world: World, operation: Operation) -> None:
    """Who, in which role, what, to whom, and when (K-3, X-1)."""
    before = len(world.history.audit_rows)
    assert send(client(world), operation, world).status_code == operation.status
    assert len(world.history.audit_rows) == before + 1
    entry = world.history.audit_rows[0]
    assert (entry.who, entry.role, entry.at) == ("ada", "operator", world.clock.now())
    assert "." in entry.action
    assert entry.target
    assert "whsec" not in json.dumps(dict(entry.detail))


@pytest.mark.parametrize("operation", CHANGING, ids=named)
def test_what_cannot_be_written_down_is_not_acknowledged(
    world: World, operation: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Audited before it is acknowledged (K-3)."""

    def full_disk(*_: Any) -> None:
        raise HistoryError("the disk is full")

    monkeypatch.setattr(world.history, "add_audit", full_disk)
    answer = send(client(world), operation, world)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_audited")
    assert "the action was done" in answer.json()["error"]["message"]


@pytest.mark.parametrize("operation", [one for one in OPERATIONS if not one.acts], ids=named)
def test_a_viewer_sees_everything(world: World, operation: Operation) -> None:
    parts = {"getAgent": {"id": "planner"}, "getIncident": {"id": world.history.incident_rows[0].id}}
    tree = {"project": "default", "caller": "key:4f2a", "root": "nightly-refactor"}
    query = {"listCounters": {"key": "tb:"}, "getTree": tree}.get(operation.name, {})
    given: dict[str, Any] = {"content": b"version: 15\n"} if operation.body else {}
    answer = client(world, LOOKS).request(
        operation.method, path_of(operation, parts.get(operation.name)), params=query, **given
    )
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"


def test_every_changing_operation_has_an_example() -> None:
    """Whoever adds one writes how it is used, or the tests above would prove nothing."""
    assert {one.name for one in CHANGING} == set(EXAMPLES)
    assert len({one.name for one in OPERATIONS}) == len(OPERATIONS)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(StateError("gone"), 503, "no_state"), (BreakloopError("odd"), 500, "internal")],
)
def test_errors_have_one_shape(
    world: World, monkeypatch: pytest.MonkeyPatch, error: BreakloopError, status: int, code: str
) -> None:
    async def broken() -> None:
        raise error

    monkeypatch.setattr(world.services, "breakers", broken)
    answer = client(world).get("/api/v1/breakers")
    assert (answer.status_code, answer.json()) == (status, {"error": {"code": code, "message": str(error)}})


def test_what_is_not_there_has_the_shape_too(world: World) -> None:
    made = client(world)
    assert made.get("/api/v1/nope").json() == {"error": {"code": "not_found", "message": "not found"}}
    wrong = made.delete("/api/v1/agents")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"]
    assert made.head("/api/v1/agents").status_code == 200


def test_answers_are_json_whatever_is_in_them() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    found: Mapping[str, Any] = {"a": MappingProxyType({"b": float("inf")}), "c": {1}, "d": Odd()}
    assert json.loads(encoded(found)) == {"a": {"b": None}, "c": [1], "d": "odd"}
    assert json.loads(encoded({"half": "\ud800"})) == {"half": "\ud800"}
