"""The shelf in Redis without a Redis: what is refused before connecting, and what a failure is called. With real
servers: tests/e2e/test_bundle_redis.py."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from breakloop.errors import SettingsError, StateError
from breakloop.store.redis.bundle import PushedBundle, open_shelf


def test_nobody_listens() -> None:
    """An error that can be shown, without the password; it can be tried again (B-3)."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        shelf = open_shelf(f"redis://user:canary@127.0.0.1:{bound.getsockname()[1]}/2")
        for _ in range(2):
            with pytest.raises(StateError, match="Connection refused") as caught:
                shelf.fetch(None)
            assert "canary" not in str(caught.value) + shelf.name
        with pytest.raises(StateError, match="Connection refused"):
            shelf.push(PushedBundle(1, "d", b"x"))
        assert shelf._client is None  # the next request connects anew, perhaps to another server
        shelf.close()
    assert shelf.name.startswith("redis://user:***@127.0.0.1:")


@pytest.mark.parametrize("url", ["memory://", "sqlite://x", ""])
def test_only_redis_has_a_shelf(url: str) -> None:
    """Other state cannot be pushed to (B-3)."""
    with pytest.raises(SettingsError, match="set state to a Redis URL"):
        open_shelf(url)


def test_certificate_files_are_looked_at_first(tmp_path: Path) -> None:
    """A wrong path is said at start, not once a second (B-3)."""
    with pytest.raises(SettingsError, match="ca_file"):
        open_shelf(f"rediss://127.0.0.1/?ca_file={tmp_path / 'none.pem'}")


def test_the_package_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, how to get it is said (B-3)."""
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(SettingsError, match=r"pip install .breakloop\[redis\]"):
        open_shelf("redis://127.0.0.1")
