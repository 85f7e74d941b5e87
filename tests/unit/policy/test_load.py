"""Bundles from texts, files and directories; the broken ones are in test_load_museum.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from breakloop.errors import BundleError, Problem
from breakloop.policy.load import load_bundle, load_text
from tests.growth import growth


def test_all_unreadable_files_of_a_directory_are_reported(tmp_path: Path) -> None:
    """Every problem at once, sorted by file (B-2)."""
    (tmp_path / "b.yaml").write_text("a: [")
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "c.yaml").mkdir()
    with pytest.raises(BundleError) as caught:
        load_bundle(tmp_path)
    assert [Path(problem.file).name for problem in caught.value.problems] == ["a.json", "b.yaml", "c.yaml"]
    assert caught.value.problems[2].message == "cannot be read: Is a directory"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """Also that has a file and a reason (B-2)."""
    with pytest.raises(BundleError) as caught:
        load_bundle(tmp_path / "policy.yaml")
    assert str(caught.value) == f"{tmp_path / 'policy.yaml'}:1:1: cannot be read: No such file or directory"


def test_every_problem_is_reported_at_once() -> None:
    """Fields, cross-field checks and duplicates together, in the order of the file (B-2)."""
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
    """Layout, comments and the order of keys do not matter; values do (B-3)."""
    one = load_text(b"bundle_version: 1\npolicies: []\n", "a.yaml")
    same = load_text(b'{"policies": [], "bundle_version": 1}', "b.json")
    other = load_text(b'{"policies": [], "bundle_version": 2}', "b.json")
    assert one.digest == same.digest
    assert len(one.digest) == 64
    assert one.digest != other.digest


@pytest.mark.slow
def test_a_large_bundle_needs_no_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand policies are read by the fast path alone; positions are looked for when somebody asks (B-3)."""
    monkeypatch.setattr("breakloop.policy.documents.JsonPlaces._items", None)
    rule = {
        "name": "r",
        "limit_keys": ["jwt:sub"],
        "algorithm": "token_bucket",
        "algorithm_config": {"rps": 1, "burst": 1},
    }
    policies = [{"id": f"p{n}", "spec": {"selector": {"pathPrefix": f"/{n}/"}, "rules": [rule]}} for n in range(10_000)]
    loaded = load_text(json.dumps({"bundle_version": 1, "policies": policies}).encode(), "p.json")
    assert len(loaded.bundle.policies) == 10_000


def test_a_bundle_full_of_mistakes_costs_no_more_than_a_hundred_of_them() -> None:
    """All are counted, the first are explained; a viewer may have a bundle validated (B-1, Y-2)."""

    def load(unknown: int) -> list[Problem]:
        fields = {"bundle_version": 1, "policies": [], **{f"polcies_{number}": 0 for number in range(unknown)}}
        with pytest.raises(BundleError) as raised:
            load_text(json.dumps(fields).encode(), "b.json")
        return raised.value.problems

    found = load(1000)
    assert len(found) == 51
    assert 'unknown field "polcies_0"' in found[0].message
    assert found[-1].message == "and 950 more problems"
    assert growth(load, 200) < 1.5
