"""Copies of windows: what is known, what is taken for written, what has to be read again."""

from __future__ import annotations

from breakloop.engine.remote import RemoteWindowCache, WindowVersions
from breakloop.store.ops import StoredWindow, WindowWrite


def write(key: str, version: int, data: bytes | None) -> WindowWrite:
    return WindowWrite(key, version, data, 60.0)


def test_a_copy_is_used_until_it_is_too_old() -> None:
    """The least recently used goes (S-2)."""
    cache = RemoteWindowCache(2)
    cache.put("a", StoredWindow(1, b"a"))
    cache.put("b", StoredWindow(1, b"b"))
    assert cache.get("a") == StoredWindow(1, b"a")
    cache.put("c", StoredWindow(1, b"c"))
    assert cache.missing(["a", "b", "c"]) == ["b"]
    assert (len(cache), cache.get("b")) == (2, StoredWindow(0, b""))


def test_what_is_sent_is_taken_for_written() -> None:
    """The next request of the session goes on from it (S-2)."""
    cache = RemoteWindowCache()
    cache.put("a", StoredWindow(3, b"old"))
    cache.sent([write("a", 3, b"new"), write("b", 7, None)])
    assert cache.get("a") == StoredWindow(4, b"new")
    assert cache.missing(["a", "b"]) == ["b"]


def test_what_was_refused_is_known_anew_or_read_again() -> None:
    """Nothing of a commit that conflicts was written (E-5)."""
    cache = RemoteWindowCache()
    cache.sent([write("a", 3, b"mine"), write("b", 1, b"mine")])
    cache.refused([write("a", 3, b"mine"), write("b", 1, b"mine")], {"a": StoredWindow(9, b"theirs")})
    assert cache.get("a") == StoredWindow(9, b"theirs")
    assert cache.missing(["a", "b"]) == ["b"]


def test_a_reply_that_is_older_than_what_is_sent_is_not_cached() -> None:
    """Decisions that arrive together build on each other, whenever their replies come (S-2, LD-12)."""
    cache = RemoteWindowCache()
    cache.put("a", StoredWindow(3, b"read"))
    cache.sent([write("a", 3, b"one"), write("a", 4, b"two")])
    cache.put("a", StoredWindow(3, b"read"))  # another decision had asked for it, too
    assert cache.get("a") == StoredWindow(5, b"two")
    cache.refused([write("a", 3, b"one")], {"a": StoredWindow(9, b"theirs")})
    cache.sent([write("a", 9, b"one again")])
    cache.refused([write("a", 4, b"two")], {"a": StoredWindow(9, b"theirs")})  # was sent before, and is late
    assert cache.get("a") == StoredWindow(10, b"one again")
    cache.refused([write("a", 9, b"one again")], {"a": StoredWindow(12, b"newer")})
    assert cache.get("a") == StoredWindow(12, b"newer")


def test_versions_of_two_processes_differ() -> None:
    """So nothing that builds on a refused write can take what another process wrote for its own (E-5)."""
    chains = []
    for _ in range(2):
        versions, version = WindowVersions(), 0
        chain = []
        for _ in range(50):
            [made] = versions.of([write("a", version, b"x")._replace(first=1_800_000_000_000)])
            version = made.becomes
            chain.append(version)
        assert chain == sorted(chain)
        assert chain[-1] < 2**53
        chains.append(chain)
    assert len({*chains[0]} & {*chains[1]}) < 2  # two lines have a point in common at most, unless they are the same


def test_what_was_lost_is_good_enough_without_the_store() -> None:
    """Its data is still there, its version is not (S-3)."""
    cache = RemoteWindowCache()
    cache.sent([write("a", 3, b"mine")])
    cache.lost([write("a", 3, b"mine"), write("x", 3, b"gone meanwhile")])
    assert cache.missing(["a"]) == ["a"]
    assert cache.get("a").data == b"mine"
    assert len(cache) == 1
    cache.drop(["a", "never there"])
    assert len(cache) == 0
