"""Tests of `admin.operations`: every field of a request, and what is said about a wrong one."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.admin.api.operations import ends
from breakloop.admin.errors import ApiError
from tests.admin_client import client
from tests.admin_world import World, full


@pytest.fixture(scope="module")
def world() -> World:
    return full()


def _error(answer: Any) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error.get("field", ""), error["message"]


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({}, "reason", "is required"),
        ({"reason": 1}, "reason", "must be text, got a whole number"),
        ({"reason": None}, "reason", "must be text, got nothing"),
        ({"reason": ""}, "reason", "must not be empty"),
        ({"reason": "x" * 257}, "reason", "must have a length of at most 256"),
        ({"reason": "x", "why": "y"}, "why", "is not known"),
        ({"reason": "a\0b"}, "reason", "must not contain a NUL character"),
        ({"reason": "x", "expires_at": []}, "expires_at", "must be a number or text or nothing, got a list"),
        ({"reason": "x", "expires_at": "soon"}, "expires_at", "must be a time like 2027-01-31T18:00:00Z"),
        ({"reason": "x", "expires_at": "2027-01-31T18:00:00"}, "expires_at", "has no time zone: add Z for UTC: 2027-01-31T18:00:00Z"),
        ({"reason": "x", "expires_at": 1e300}, "expires_at", "must be seconds since 1970"),
        ({"reason": "x", "expires_at": 5}, "expires_at", "expires_at: has passed"),
        ([], "", "the body must be a map, got a list"),
    ],
)  # fmt: skip
def test_a_wrong_body_is_refused_by_field(world: World, body: Any, field: str, message: str) -> None:
    """One shape, with the field's name (X-1)."""
    assert _error(client(world).post("/api/v1/agents/a/kill", json=body)) == (400, field, message)


@pytest.mark.parametrize(
    ("query", "field", "message"),
    [
        ("most=x", "most", "must be a whole number, got text"),
        ("most=0", "most", "must be >= 1"),
        ("most=501", "most", "must be <= 500"),
        ("most=1&most=2", "most", "is given twice"),
        ("limit=5", "limit", "is not known"),
        ("since=nan", "since", "must be >= 0.0"),
        ("since=null", "since", "must not be null: leave it out"),
        ("agent=%00", "agent", "must not contain a NUL character"),
        ("follow=maybe", "follow", "must be true or false, got text"),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(world: World, query: str, field: str, message: str) -> None:
    assert _error(client(world).get(f"/api/v1/events?{query}")) == (400, field, message)


def test_a_list_may_be_given_by_repeating_it(world: World) -> None:
    answer = client(world).get("/api/v1/events?name=loop.detected&name=agent.killed&most=500").json()
    assert {one["name"] for one in answer["events"]} == {"loop.detected", "agent.killed"}


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"{", "application/json", 400, "bad_json"),
        (b"\xff", "application/json", 400, "bad_json"),
        (b"[" * 10_000, "application/json", 400, "bad_json"),
        (b'{"reason": "x"}', "text/plain", 415, "unsupported_media_type"),
        (b"reason=x", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
    ],
)
def test_only_json_is_read(world: World, content: bytes, kind: str, status: int, code: str) -> None:
    answer = client(world).post("/api/v1/agents/a/kill", content=content, headers={"content-type": kind})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_no_body_is_an_empty_one(world: World) -> None:
    assert client(world).post("/api/v1/agents/a/release").json() == {"released": [], "loops": 0, "shared": True}
    assert _error(client(world).post("/api/v1/agents/a/kill")) == (400, "reason", "is required")


def test_an_agents_settings_must_be_a_map(world: World) -> None:
    assert _error(client(world).patch("/api/v1/agents/a", json=[1])) == (400, "", "the body must be a map")
    assert _error(client(world).patch("/api/v1/agents/a", json={"timezone": "\0"}))[1] == "timezone"


def test_a_nul_in_a_path_is_refused(world: World) -> None:
    assert _error(client(world).get("/api/v1/incidents/a%00b"))[:2] == (400, "id")


def test_a_moment_is_a_number_or_a_text() -> None:
    assert ends(None) is None
    assert ends(12.5) == 12.5
    assert ends("2027-01-15T08:00:00Z") == 1_800_000_000.0
    assert ends("2027-01-15T09:00:00+01:00") == 1_800_000_000.0
    with pytest.raises(ApiError, match="no time zone"):
        ends("2027-01-15")
