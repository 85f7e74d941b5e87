"""The last good copy: what is written comes back, what is damaged does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from breakloop.errors import BundleError
from breakloop.policy.load import LoadedBundle, load_bundle, load_text
from breakloop.policy.watch import LastGood

GOOD = Path(__file__).resolve().parent.parent.parent / "policies" / "good"
TEXT = (
    b"bundle_version: 3\npolicies: [{id: a, spec: {selector: {pathPrefix: /v1/}}}]\nexpires_at: 2030-01-31T00:00:00Z\n"
)


def loaded() -> LoadedBundle:
    return load_text(TEXT, "bundle.yaml")


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    """Bundle, version and the digest of its source survive (B-3)."""
    kept = LastGood(tmp_path / "data", tmp_path / "bundle.yaml")
    assert kept.write(loaded()) == ""
    found = kept.read()
    assert found is not None
    assert found.bundle == loaded().bundle
    assert found.digest == loaded().digest
    assert found.bundle.expires_at is not None
    assert list(kept.path.parent.iterdir()) == [kept.path], "nothing half-written is left"


@pytest.mark.parametrize("file", sorted(GOOD.glob("*")), ids=lambda file: file.name)
def test_every_valid_bundle_comes_back(tmp_path: Path, file: Path) -> None:
    """Whatever loads can be kept, short forms and aliases included (B-3)."""
    bundle = load_bundle(file)
    kept = LastGood(tmp_path, file)
    assert kept.write(bundle) == ""
    found = kept.read()
    assert found is not None
    assert (found.bundle, found.digest) == (bundle.bundle, bundle.digest)


def test_each_source_has_its_own_copy(tmp_path: Path) -> None:
    """Two processes with different bundles can share a data directory (B-3)."""
    one, other = LastGood(tmp_path, tmp_path / "a.yaml"), LastGood(tmp_path, tmp_path / "b.yaml")
    one.write(loaded())
    assert other.read() is None
    assert one.read() is not None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: "[" * 100_000,
        lambda text: text.replace("/v1/", "/v2/"),
        lambda text: text.replace('"format": 1', '"format": 2'),
        lambda text: text.replace("bundle.yaml", "other.yaml"),
        lambda text: json.dumps({**json.loads(text), "digest": 5}),
    ],
)
def test_damaged_copy_is_refused(tmp_path: Path, damage: Callable[[str], str]) -> None:
    """A copy that is not what was written is never enforced (B-3)."""
    kept = LastGood(tmp_path, tmp_path / "bundle.yaml")
    kept.write(loaded())
    kept.path.write_text(damage(kept.path.read_text()))
    with pytest.raises(BundleError, match="the last good copy cannot be used"):
        kept.read()


def test_unwritable_directory_is_said(tmp_path: Path) -> None:
    """A copy that cannot be written is a reason, not an exception."""
    (tmp_path / "data").write_text("a file")
    assert LastGood(tmp_path / "data", tmp_path / "bundle.yaml").write(loaded()) != ""


def test_unreadable_copy_is_damaged(tmp_path: Path) -> None:
    """A copy that is a directory is reported like any damage."""
    kept = LastGood(tmp_path, tmp_path / "bundle.yaml")
    kept.path.mkdir(parents=True)
    with pytest.raises(BundleError, match="cannot be used: Is a directory"):
        kept.read()
