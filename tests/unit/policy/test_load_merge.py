"""Several files as one bundle."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakloop.errors import BundleError
from breakloop.policy.load import load_bundle

POLICIES = Path(__file__).parents[2] / "policies"


def test_a_directory_is_one_bundle() -> None:
    """Files in the order of their names, lists joined, maps merged; dot files and others left alone (B-3)."""
    bundle = load_bundle(POLICIES / "good" / "directory").bundle
    assert bundle.bundle_version == 9
    assert [policy.id for policy in bundle.policies] == ["base", "team"]
    assert [switch.route for switch in bundle.kill_switches] == [None, "/v1/*"]
    assert list(bundle.agents) == ["one", "two"]
    assert list(bundle.projects) == ["default"]


def test_notes_of_a_directory_name_the_right_files() -> None:
    """Path in the whole bundle, place in the file (B-2)."""
    directory = POLICIES / "good" / "directory"
    notes = [str(note).removeprefix(f"{directory}/") for note in load_bundle(directory).notes]
    assert notes == [
        "20-more.yml:2:5: kill_switches[1]: can never match: kill_switches[0] already covers it",
    ]


def test_lists_of_the_wrong_kind_in_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("bundle_version: 1\npolicies: []\nagents: []\n")
    (tmp_path / "b.yaml").write_text("policies: {}\nagents: {a: {}}\n")
    with pytest.raises(BundleError) as caught:
        load_bundle(tmp_path)
    assert [(Path(p.file).name, p.line, p.path) for p in caught.value.problems] == [
        ("b.yaml", 1, "policies"),
        ("b.yaml", 2, "agents"),
    ]
