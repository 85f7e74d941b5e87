"""Bundles from texts, files and directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from breakloop.errors import BundleError
from breakloop.policy.load import load_bundle, load_text

POLICIES = Path(__file__).parents[2] / "policies"
NOW = 1_800_000_000.0  # January 2027


def test_a_directory_is_one_bundle() -> None:
    """B-3: files in the order of their names, lists joined, maps merged; dot files and others left alone."""
    bundle = load_bundle(POLICIES / "good" / "directory").bundle
    assert bundle.bundle_version == 9
    assert [policy.id for policy in bundle.policies] == ["base", "team"]
    assert [switch.route for switch in bundle.kill_switches] == [None, "/v1/*"]
    assert list(bundle.agents) == ["one", "two"]
    assert list(bundle.projects) == ["default"]


def test_notes_of_a_directory_name_the_right_files() -> None:
    """B-2: path in the whole bundle, place in the file."""
    directory = POLICIES / "good" / "directory"
    notes = [str(note).removeprefix(f"{directory}/") for note in load_bundle(directory).notes]
    assert notes == [
        "00-base.yaml:4:1: agents: is valid, but this version does not enforce it yet",
        '10-team.json:4:54: policies[1].spec.rules[0].algorithm: "cost_based" is valid, but this version does not enforce it yet',
        "20-more.yml:2:5: kill_switches[1]: can never fire: kill_switches[0] already stops all of it",
    ]


def test_all_unreadable_files_of_a_directory_are_reported(tmp_path: Path) -> None:
    """B-2: every problem at once, sorted by file."""
    (tmp_path / "b.yaml").write_text("a: [")
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "c.yaml").mkdir()
    with pytest.raises(BundleError) as caught:
        load_bundle(tmp_path)
    assert [Path(problem.file).name for problem in caught.value.problems] == ["a.json", "b.yaml", "c.yaml"]
    assert caught.value.problems[2].message == "cannot be read: Is a directory"


def test_lists_of_the_wrong_kind_in_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("bundle_version: 1\npolicies: []\nagents: []\n")
    (tmp_path / "b.yaml").write_text("policies: {}\nagents: {a: {}}\n")
    with pytest.raises(BundleError) as caught:
        load_bundle(tmp_path)
    assert [(Path(p.file).name, p.line, p.path) for p in caught.value.problems] == [
        ("b.yaml", 1, "policies"),
        ("b.yaml", 2, "agents"),
    ]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """B-2: also that has a file and a reason."""
    with pytest.raises(BundleError) as caught:
        load_bundle(tmp_path / "policy.yaml")
    assert str(caught.value) == f"{tmp_path / 'policy.yaml'}:1:1: cannot be read: No such file or directory"


def test_every_problem_is_reported_at_once() -> None:
    """B-2: fields, cross-field checks and duplicates together, in the order of the file."""
    text = b"""bundle_version: 0
policies:
  - id: a
    spec:
      selector: {hosts: [http://x]}
      rules:
        - {name: r, limit_keys: [], algorithm: token_bucket, algorithm_config: {rps: 2, burst: 1}}
        - {name: r, limit_keys: [], algorithm: token_bucket, algorithm_config: {rps: 2, burst: 2}}
  - {id: a, spec: {selector: {}}}
  - 5
"""
    with pytest.raises(BundleError) as caught:
        load_text(text, "p.yaml")
    assert [(p.line, p.path) for p in caught.value.problems] == [
        (1, "bundle_version"),
        (5, "policies[0].spec.selector.hosts[0]"),
        (7, "policies[0].spec.rules[0].algorithm_config.burst"),
        (8, "policies[0].spec.rules[1].name"),
        (9, "policies[1].id"),
        (10, "policies[2]"),
    ]


def test_the_digest_is_of_the_content() -> None:
    """B-3: layout, comments and the order of keys do not matter; values do."""
    one = load_text(b"bundle_version: 1\npolicies: []\n", "a.yaml")
    same = load_text(b'{"policies": [], "bundle_version": 1}', "b.json")
    other = load_text(b'{"policies": [], "bundle_version": 2}', "b.json")
    assert one.digest == same.digest
    assert len(one.digest) == 64
    assert one.digest != other.digest


def test_what_has_expired_is_a_note() -> None:
    """B-5: an expired bundle or override is not an outage."""
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
        (3, "has passed; the bundle goes on being enforced"),
        (8, "has passed, so global_shadow is not active"),
        (14, "has passed, so the kill switch is not active"),
    ]
    assert load_text(text, "p.json").notes == []


def loops(*blocks: dict[str, Any]) -> list[tuple[str, str]]:
    spec = {"selector": {"pathPrefix": "/"}, "loop_detection": blocks[0] if len(blocks) == 1 else list(blocks)}
    data = {"bundle_version": 1, "policies": [{"id": "p", "spec": spec}]}
    notes = load_text(json.dumps(data).encode(), "p.json").notes
    return [(note.path.removeprefix("policies[0].spec.loop_detection"), note.message.split(" ")[0]) for note in notes]


def test_notes_on_loop_blocks() -> None:
    """LD-5: what this version does not do yet is said when the bundle is loaded."""
    tail = {"similarity": "tail"}
    assert loops(tail) == []
    assert loops({**tail, "action": "kill"}) == [(".action", '"kill"')]
    assert loops({**tail, "ladder": {"block": "steer"}}, tail) == [("[0].ladder.block", '"steer"')]
    assert loops({"similarity": "simhash"}, {**tail, "retry_free": 1}) == [
        ("[0].similarity", '"simhash"'),
        ("[1].retry_free", "is"),
    ]
    assert loops({"similarity": "steps", "enabled": False}) == []


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
    """K-2: the first match wins, so a later one that it covers is dead."""
    base = {"scope_key": "agent:id", "scope_value": "x"}
    data = {"bundle_version": 1, "policies": [], "kill_switches": [{**base, **first}, {**base, **second}]}
    notes = load_text(json.dumps(data).encode(), "p.json").notes
    assert [note.path for note in notes] == (["kill_switches[1]"] if covered else [])


def test_a_large_bundle_needs_no_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """B-3: ten thousand policies are read by the fast path alone; positions are looked for when somebody asks."""
    monkeypatch.setattr("breakloop.policy.json_positions.JsonPlaces._items", None)
    rule = {
        "name": "r",
        "limit_keys": ["jwt:sub"],
        "algorithm": "token_bucket",
        "algorithm_config": {"rps": 1, "burst": 1},
    }
    policies = [{"id": f"p{n}", "spec": {"selector": {"pathPrefix": f"/{n}/"}, "rules": [rule]}} for n in range(10_000)]
    loaded = load_text(json.dumps({"bundle_version": 1, "policies": policies}).encode(), "p.json")
    assert len(loaded.bundle.policies) == 10_000
