"""Notes: valid, but surprising."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.policy.load import load_text

NOW = 1_800_000_000.0  # January 2027


def test_what_has_expired_is_a_note() -> None:
    """An expired bundle or override is not an outage (B-5)."""
    text = json.dumps(
        {
            "bundle_version": 1,
            "expires_at": "2020-01-01T00:00:00Z",
            "policies": [],
            "global_shadow": {"enabled": True, "reason": "x", "expires_at": "2020-01-01T00:00:00Z"},
            "kill_switches": [{"scope_key": "jwt:sub", "scope_value": "x", "expires_at": "2020-01-01T00:00:00Z"}],
        },
        indent=1,
    ).encode()
    assert [(n.line, n.message) for n in load_text(text, "p.json", now=NOW).notes] == [
        (3, "has passed; the bundle stays in force"),
        (8, "has passed, so global_shadow is not active"),
        (14, "has passed, so the kill switch is not active"),
    ]
    assert load_text(text, "p.json").notes == []


def loops(*blocks: dict[str, Any]) -> list[tuple[str, str]]:
    spec = {"selector": {"pathPrefix": "/"}, "loop_detection": blocks[0] if len(blocks) == 1 else list(blocks)}
    data = {"bundle_version": 1, "policies": [{"id": "p", "spec": spec}]}
    notes = load_text(json.dumps(data).encode(), "p.json").notes
    return [(note.path.removeprefix("policies[0].spec.loop_detection"), note.message.split(" ")[0]) for note in notes]


def test_loop_blocks_need_no_notes() -> None:
    """Every detector and every action is carried out (LD-1 to LD-5)."""
    tail = {"similarity": "tail"}
    assert loops(tail, {"similarity": "simhash"}, {"similarity": "steps"}) == []
    assert loops({**tail, "action": "kill"}) == []


def test_notes_on_agents() -> None:
    """Everything that can be said of an agent is enforced (B-1)."""
    agents = {
        "a": {"active": False, "max_steps_per_run": 5},
        "b": {"max_usd_per_run": 5, "allowed_hours": "08:00-18:00"},
    }
    data = {"bundle_version": 1, "policies": [], "agents": agents}
    notes = load_text(json.dumps(data).encode(), "p.json").notes
    assert notes == []


def test_equal_notes_become_one() -> None:
    """Thousands of policies do not make thousands of notes."""
    policies = [{"id": f"p{n}", "spec": {"selector": {}}} for n in range(1000)]
    data = {"bundle_version": 1, "policies": policies}
    (note,) = load_text(json.dumps(data).encode(), "p.json").notes
    assert note.path == "policies[0].spec.selector"
    assert note.hint == "and 999 more like it"


@pytest.mark.parametrize(
    ("first", "second", "covered"),
    [
        ({}, {}, True),
        ({}, {"route": "/a"}, True),
        ({"route": "/a*"}, {"route": "/ab"}, True),
        ({"route": "/a*"}, {"route": "/ab*"}, True),
        ({"route": "/a"}, {"route": "/ab"}, False),
        ({"route": "/a"}, {}, False),
        ({"expires_at": "2030-01-01T00:00:00Z"}, {}, False),
        ({"expires_at": "2030-01-01T00:00:00Z"}, {"expires_at": "2029-01-01T00:00:00Z"}, True),
        ({"scope_value": "other"}, {}, False),
    ],
)
def test_kill_switches_that_can_never_fire(first: dict[str, str], second: dict[str, str], covered: bool) -> None:
    """The first match wins, so a later one that it covers is dead (K-2)."""
    base = {"scope_key": "agent:id", "scope_value": "x"}
    data = {"bundle_version": 1, "policies": [], "kill_switches": [{**base, **first}, {**base, **second}]}
    notes = load_text(json.dumps(data).encode(), "p.json").notes
    assert [note.path for note in notes] == (["kill_switches[1]"] if covered else [])
