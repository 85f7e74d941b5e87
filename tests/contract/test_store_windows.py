"""What every store does with windows, which are written by version, and what it drops. The rest is in test_store.py."""

from __future__ import annotations

import pytest

from breakloop.store.limit_ops import TakeTokens
from breakloop.store.ops import (
    CommitResult,
    CountFingerprint,
    FingerprintCount,
    Op,
    Settle,
    Store,
    StoredWindow,
    WindowWrite,
)
from tests.contract.test_store import COOLING, IDLE, KINDS, NOW, TEN, end, hit, start, take
from tests.redis_store import NewStore
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE


@pytest.fixture
def store(new_store: NewStore) -> Store:
    """An empty store of each kind."""
    return new_store()


def test_a_window_is_written_by_version(store: Store) -> None:
    """Version 0 is none; each write moves it on (E-5)."""
    assert store.read_window("win:a", NOW) == StoredWindow(0, b"")
    assert store.commit([], NOW, [WindowWrite("win:a", 0, b"one", 60.0)]).conflict is None
    assert store.read_window("win:a", NOW) == StoredWindow(1, b"one")
    assert store.commit([], NOW, [WindowWrite("win:a", 1, b"two", 60.0)]).conflict is None
    assert store.read_window("win:a", NOW) == StoredWindow(2, b"two")


def test_a_conflict_changes_nothing(store: Store) -> None:
    """The newer window comes back; neither counts nor limits moved (E-5)."""
    store.commit([], NOW, [WindowWrite("win:a", 0, b"one", 60.0)])
    ops: list[Op] = [CountFingerprint(IDLE, "ld:k", NO_OWNER), TakeTokens(TEN, "tb:k", 1, NO_LIMITER, NO_RULE)]
    for stale in (0, 2):
        done = store.commit(ops, NOW, [WindowWrite("win:a", stale, b"two", 60.0)])
        assert done == CommitResult([], -1, {"win:a": StoredWindow(1, b"one")})
    assert store.read_window("win:a", NOW) == StoredWindow(1, b"one")
    assert hit(store, IDLE) == FingerprintCount(1)
    assert take(store) == 9.0


def test_all_windows_that_moved_on_come_back(store: Store) -> None:
    """Not only the first, and none that did not, so that the next attempt can succeed (E-5, S-2)."""
    store.commit([], NOW, [WindowWrite(key, 0, key.encode(), 60.0) for key in ("win:a", "win:b", "win:c")])
    store.commit([], NOW, [WindowWrite("win:c", 1, b"new", 60.0)])
    writes = [
        WindowWrite(key, version, b"x", 60.0)
        for key, version in (("win:a", 0), ("win:b", 1), ("win:c", 1), ("win:d", 1))
    ]
    done = store.commit([], NOW, writes)
    assert done.conflict == {
        "win:a": StoredWindow(1, b"win:a"),
        "win:c": StoredWindow(2, b"new"),
        "win:d": StoredWindow(0, b""),
    }
    assert [store.read_window(key, NOW).version for key in ("win:a", "win:b", "win:c", "win:d")] == [1, 1, 2, 0]


def test_a_window_may_only_be_looked_at(store: Store) -> None:
    """A decision goes by a copy: it has to be the newest, and is left as it is (E-5, S-2)."""
    looks = WindowWrite("win:a", 0, None, 60.0)
    assert store.commit([TakeTokens(TEN, "tb:k", 1, NO_LIMITER, NO_RULE)], NOW, [looks]).results == [9.0]
    assert store.read_window("win:a", NOW) == StoredWindow(0, b"")
    store.commit([], NOW, [WindowWrite("win:a", 0, b"", 60.0)])
    assert store.commit([TakeTokens(TEN, "tb:k", 1, NO_LIMITER, NO_RULE)], NOW, [looks]).conflict == {
        "win:a": StoredWindow(1, b"")
    }
    assert store.commit(
        [TakeTokens(TEN, "tb:k", 1, NO_LIMITER, NO_RULE)], NOW, [looks._replace(version=1)]
    ).results == [8.0]
    assert store.read_window("win:a", NOW) == StoredWindow(1, b"")
    assert store.read_window("win:a", NOW + 60).version == 0  # and it does not live longer for it


def test_a_window_goes_with_its_commit(store: Store) -> None:
    """Together with the operations, also when the request is denied (E-5)."""
    done = store.commit(
        [TakeTokens(TEN, "tb:k", 11, NO_LIMITER, NO_RULE)], NOW, [WindowWrite("win:a", 0, b"one", 60.0)]
    )
    assert done.denied_at == 0
    assert store.read_window("win:a", NOW).version == 1


def test_a_window_expires(store: Store) -> None:
    """Everything has a time to live (S-2)."""
    store.commit([], NOW, [WindowWrite("win:a", 0, b"one", 60.0)])
    assert store.read_window("win:a", NOW + 59.9).version == 1
    assert store.read_window("win:a", NOW + 60) == StoredWindow(0, b"")


def test_drop(store: Store) -> None:
    """An operator's release drops entries of every kind (G-1)."""
    hit(store, IDLE, key="a:ld")
    take(store, key="a:tb")
    for _ in range(3):
        hit(store, COOLING, key="a:cool")
    hit(store, IDLE, key="b:ld")
    flown = start(store, KINDS["idle"], key="a:ld")[1]
    for _ in range(3):
        end(store, start(store, KINDS["idle"], 2, key="a:ld")[1], 2, failed=True)
    start(store, KINDS["idle"], 2, key="a:ld")
    store.commit([], NOW, [WindowWrite("a:win", 0, b"one", 60.0)])
    store.drop(["a:ld", "a:tb", "a:cool", "a:win", "nobody"])
    assert start(store, KINDS["idle"], 2, key="a:ld")[0] == 1
    assert end(store, Settle(flown.spec, "a:ld", NOW + 2), 2, failed=True) == 1
    assert take(store, key="a:tb") == 9.0
    assert hit(store, COOLING, key="a:cool") == FingerprintCount(1)
    assert store.read_window("a:win", NOW).version == 0
    assert hit(store, IDLE, key="b:ld") == FingerprintCount(2)


def test_drop_is_exact(store: Store) -> None:
    """What is kept under these very keys goes, and nothing whose key begins alike (G-1)."""
    counts = [CountFingerprint(COOLING, key, NO_OWNER) for key in ("cnt:a", "cnt:ab")]
    store.commit(counts, NOW, [WindowWrite(key, 0, b"x", 60.0) for key in ("win:a:", "win:a:b:")])
    store.drop(["cnt:a", "win:a:", "never there"])
    assert [store.read_window(key, NOW).version for key in ("win:a:", "win:a:b:")] == [0, 1]
    assert [hit(store, COOLING, key=key).hits for key in ("cnt:a", "cnt:ab")] == [1, 2]


def test_a_window_may_begin_with_a_version_of_its_own(store: Store) -> None:
    """So that a copy of one that was dropped is never taken for the one that took its place (S-2)."""
    assert store.commit([], NOW, [WindowWrite("win:a", 0, b"one", 60.0, 1_800_000_000_123)]).conflict is None
    assert store.read_window("win:a", NOW) == StoredWindow(1_800_000_000_123, b"one")
    assert store.commit([], NOW, [WindowWrite("win:a", 1_800_000_000_123, b"two", 60.0, 7)]).conflict is None
    assert store.read_window("win:a", NOW).version == 1_800_000_000_124
