"""The bundle that was pushed, as a source: on a shelf that is played. A real Redis is asked in tests/e2e."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import pytest

from breakloop.errors import BundleError, StateError, UnreadableError
from breakloop.policy.load import BundleBytes, BundleDocument, load_fetched
from breakloop.policy.sources import PollBackoff, RedisOrigin, to_push
from breakloop.store.redis.bundle import NoPushedBundleError, PushedBundle, RedisBundle

DATA = b"bundle_version: 3\npolicies: []\n"
PACE = PollBackoff(0.5, 5, lambda: 0.0)


class PlayedShelf(RedisBundle):
    """Holds one thing, or fails."""

    name = "redis://127.0.0.1:6379/"

    def __init__(self, held: PushedBundle | StateError) -> None:
        self.held = held

    def fetch(self, known: tuple[object, ...] | None) -> PushedBundle | None:
        if isinstance(self.held, StateError):
            raise self.held
        return None if known == self.held.stamp else self.held

    def push(self, bundle: PushedBundle) -> bool:
        self.held = bundle
        return True

    def close(self) -> None:
        pass


def shelved(data: bytes = DATA) -> PushedBundle:
    fetched = BundleBytes((BundleDocument("p.yaml", data),), (), "ed25519:abc\nhmac-sha256:def\n")
    return replace(to_push(fetched, load_fetched(fetched), by="me@here", force=False), pushed_at="17.5")


def test_what_is_pushed_is_fetched() -> None:
    """The exact bytes, with their signature; the same stamp is nothing new (B-3)."""
    source = RedisOrigin(PlayedShelf(shelved()), PACE)
    fetched = source.fetch(None)
    assert fetched is not None
    assert fetched.documents == (BundleDocument("redis://127.0.0.1:6379/#bl:bundle", DATA),)
    assert (fetched.signature.split(), fetched.forced) == (["ed25519:abc", "hmac-sha256:def"], False)
    assert fetched.stamp == (sha256(DATA).hexdigest(), "17.5")
    assert source.fetch(fetched.stamp) is None
    assert (source.whole, source.key, source.wait_s(0)) == (True, source.name, 0.5)


def test_what_is_pushed_says_what_it_is() -> None:
    """Version, digest of the bytes, who, and whether it was forced (B-3)."""
    fetched = BundleBytes((BundleDocument("p.yaml", DATA),))
    pushed = to_push(fetched, load_fetched(fetched), by="me@here", force=True)
    assert pushed == PushedBundle(3, sha256(DATA).hexdigest(), DATA, "", forced=True, pushed_by="me@here")


def test_tampered_bytes_are_refused() -> None:
    """What does not have its digest was not pushed by us (B-3)."""
    source = RedisOrigin(PlayedShelf(replace(shelved(), data=DATA + b"#")), PACE)
    with pytest.raises(BundleError, match="does not match its digest") as caught:
        source.fetch(None)
    assert not isinstance(caught.value, UnreadableError)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StateError("Connection refused"), "cannot be read: Connection refused"),
        (NoPushedBundleError("x"), r"no bundle was pushed yet \(breakloop bundle push FILE\)"),
    ],
)
def test_no_redis_and_no_bundle_may_pass(error: StateError, said: str) -> None:
    """Both are looked at again (B-3)."""
    with pytest.raises(UnreadableError, match=said):
        RedisOrigin(PlayedShelf(error), PACE).fetch(None)
