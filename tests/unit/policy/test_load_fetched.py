"""What sources hand over."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakloop.clock import FakeClock
from breakloop.policy.load import BundleBytes, BundleDocument
from breakloop.policy.sources import BundleOrigin, FileOrigin, HttpGet, HttpOrigin, PollBackoff


def test_nothing_is_signed_or_forced_unless_it_is_said() -> None:
    """The defaults are the safe ones (B-3, B-4)."""
    fetched = BundleBytes((BundleDocument("a.yaml", b"x"),))
    assert (fetched.signature, fetched.forced, fetched.directory) == ("", False, False)
    assert (fetched.documents[0].kind, fetched.documents[0].unread) == ("", None)


@pytest.mark.parametrize("kind", ["file", "http"])
def test_sources_are_sources(kind: str, tmp_path: Path) -> None:
    """Each kind is the same to whoever uses it (B-3)."""
    pace = PollBackoff(5, 60, lambda: 0.0)
    http = HttpOrigin("https://x/policy.yaml?sig=1", HttpGet(FakeClock()), pace)
    source: BundleOrigin = FileOrigin(tmp_path / "a.yaml") if kind == "file" else http
    assert source.name == (str(tmp_path / "a.yaml") if kind == "file" else "https://x/policy.yaml")
    assert source.key == (str(tmp_path / "a.yaml") if kind == "file" else "https://x/policy.yaml?sig=1")
    assert source.whole is (kind == "http")
    assert source.wait_s(0) == (0.5 if kind == "file" else 5)
