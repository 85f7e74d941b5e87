"""Bundles in a real Redis: pushed once, taken by all; of two pushers one wins; what is tampered with is refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from breakloop.clock import SystemClock
from breakloop.errors import StateError
from breakloop.model.events import Event
from breakloop.policy.load import BundleBytes, BundleDocument, load_fetched
from breakloop.policy.signing import Signer, Verifier
from breakloop.policy.sources import PollBackoff, RedisOrigin, to_push
from breakloop.policy.watch import FROM_LAST_GOOD, BundleSource
from breakloop.store.redis.bundle import BUNDLE_KEY, NoPushedBundleError, PushDeniedError, PushedBundle, open_shelf
from tests.deadlines import DEADLINE_S
from tests.redis_groups import Cluster, Watched
from tests.redis_servers import Server, running, until

pytestmark = pytest.mark.e2e

SECRET = b"a shared secret of some length"


def bundle(version: int, more: str = "", *, force: bool = False, secret: bytes = b"") -> PushedBundle:
    bare = BundleBytes((BundleDocument("p.yaml", f"bundle_version: {version}\npolicies: []\n{more}".encode()),))
    fetched = replace(bare, signature=Signer(secret).sign(bare)) if secret else bare
    return to_push(fetched, load_fetched(fetched), by="me@here", force=force)


class Instance:
    """A process as far as it concerns bundles: looks again and again, in a thread."""

    def __init__(self, url: str, folder: Path, verifier: Verifier | None = None) -> None:
        self.shelf = open_shelf(url)
        self.versions: list[int] = []
        self.events: list[Event] = []
        self.stop = threading.Event()
        self.source = BundleSource(
            RedisOrigin(self.shelf, PollBackoff(0.5, 5.0, lambda: 0.5)),
            load=load_fetched,
            on_bundle=lambda loaded: self.versions.append(loaded.bundle.bundle_version),
            clock=SystemClock(),
            publish=self.events.append,
            data_dir=folder,
            verifier=verifier,
        )

    def run(self) -> None:
        while not self.stop.wait(self.source.wait_s):
            self.source.poll()


@contextmanager
def instance(url: str, folder: Path, verifier: Verifier | None = None, *, watch: bool = True) -> Iterator[Instance]:
    one = Instance(url, folder, verifier)
    one.source.start()
    thread = threading.Thread(target=one.run, daemon=True)
    if watch:
        thread.start()
    try:
        yield one
    finally:
        one.stop.set()
        if watch:
            thread.join()
        one.shelf.close()


def test_a_push_is_applied_by_all(any_server: Server, tmp_path: Path) -> None:
    """Pushed once, applied by every instance; what was pushed is what was read (B-3)."""
    shelf = open_shelf(any_server.url)
    with pytest.raises(NoPushedBundleError):
        shelf.fetch(None)
    assert shelf.push(bundle(1))
    with instance(any_server.url, tmp_path / "a") as one, instance(any_server.url, tmp_path / "b") as other:
        assert one.versions == other.versions == [1]
        for version in (2, 3, 4):
            assert shelf.push(bundle(version))
            until(lambda v=version: one.versions[-1] == other.versions[-1] == v, f"version {version}")  # type: ignore[misc]
        found = shelf.fetch(None)
        assert found is not None
        assert replace(found, pushed_at="") == bundle(4)
        assert 0 <= time.time() - float(found.pushed_at) < 3600
        assert shelf.fetch(found.stamp) is None
    shelf.close()


def test_a_push_is_told_to_whoever_listens(redis_server: Server) -> None:
    """A message on the channel, once a change; pushing the same again is no change (B-3)."""
    shelf = open_shelf(redis_server.url)
    with redis_server.client() as client:
        heard = client.pubsub(ignore_subscribe_messages=True)
        heard.subscribe(BUNDLE_KEY)
        heard.get_message(timeout=DEADLINE_S)
        assert shelf.push(bundle(1))
        message = heard.get_message(timeout=DEADLINE_S)
        assert message["data"].decode() == bundle(1).digest
        assert not shelf.push(bundle(1))
        assert heard.get_message(timeout=0.1) is None
        heard.close()
        assert client.ttl(BUNDLE_KEY) == -1
    shelf.close()


def test_versions_go_up_unless_forced(redis_server: Server, tmp_path: Path) -> None:
    """Lower, or other content with the same version, is refused with who was there before (B-3)."""
    shelf = open_shelf(redis_server.url)
    assert shelf.push(bundle(5))
    with pytest.raises(PushDeniedError, match=r"Redis has version 5, pushed by me@here at .* and 4 is lower"):
        shelf.push(bundle(4))
    with pytest.raises(PushDeniedError, match="Redis has version 5 with different content"):
        shelf.push(bundle(5, "# other"))
    client = redis.Redis.from_url(redis_server.url)
    client.hset(BUNDLE_KEY, "field of another version", "x")
    assert shelf.push(bundle(5, secret=SECRET)), "signing it afterwards is no other content"
    assert not client.hexists(BUNDLE_KEY, "field of another version")  # a push replaces all that was there
    client.close()
    with instance(redis_server.url, tmp_path) as one:
        assert shelf.push(bundle(4, force=True))
        until(lambda: one.versions == [5, 4], "the forced version")
        assert shelf.push(bundle(6))
        until(lambda: one.versions == [5, 4, 6], "the next one")
    shelf.close()


def test_of_two_pushers_one_wins(redis_server: Server) -> None:
    """At the same moment, with the same version: one is there, the other knows that it is not (B-3)."""
    for version in range(1, 11):
        start = threading.Barrier(2)
        outcomes: dict[str, object] = {}

        def push(name: str, version: int = version, start: threading.Barrier = start) -> None:
            shelf = open_shelf(redis_server.url)
            start.wait(DEADLINE_S)
            try:
                outcomes[name] = shelf.push(replace(bundle(version, f"# {name}"), pushed_by=name))  # noqa: B023
            except PushDeniedError as error:
                outcomes[name] = error  # noqa: B023
            shelf.close()

        threads = [threading.Thread(target=push, args=(name,)) for name in ("anna", "bert")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        (winner,) = [name for name, outcome in outcomes.items() if outcome is True]
        (loser,) = outcomes.keys() - {winner}
        assert f"pushed by {winner}" in str(outcomes[loser])
        shelf = open_shelf(redis_server.url)
        found = shelf.fetch(None)
        shelf.close()
        assert found is not None
        assert (found.version, found.pushed_by) == (version, winner)


def test_tampering_is_refused(redis_server: Server, tmp_path: Path) -> None:
    """Changed bytes do not have their digest; with a new digest they do not have the signature (B-3, B-4)."""
    shelf = open_shelf(redis_server.url)
    shelf.push(bundle(1, secret=SECRET))
    with (
        redis_server.client() as client,
        instance(redis_server.url, tmp_path, Verifier(secret=SECRET), watch=False) as one,
    ):
        assert one.versions == [1]
        data = bundle(2).data
        client.hset(BUNDLE_KEY, mapping={"data": data, "pushed_at": "1"})
        one.source.poll()
        assert "does not match its digest" in one.source.problems[0].message
        client.hset(BUNDLE_KEY, mapping={"digest": bundle(2).digest, "pushed_at": "2"})
        one.source.poll()
        one.source.poll()
        assert "has an invalid signature" in one.source.problems[0].message
        client.hset(BUNDLE_KEY, mapping={"signature": "", "version": "x", "forced": "1"})
        one.source.poll()
        one.source.poll()
        assert "is not signed" in one.source.problems[0].message
        assert one.versions == [1]
        shelf.push(bundle(2, secret=SECRET))
        one.source.poll()
        assert one.versions == [1, 2]
    shelf.close()


def test_redis_gone(own_redis: Server, tmp_path: Path) -> None:
    """The last good one stays, over a restart too; what is pushed after its return is taken (B-3)."""
    shelf = open_shelf(own_redis.url)
    shelf.push(bundle(1))
    with instance(own_redis.url, tmp_path) as one:
        own_redis.kill()
        until(lambda: one.source.problems, "the loss to be told")
        assert one.versions == [1]
        with instance(own_redis.url, tmp_path, watch=False) as again:
            assert again.source.origin == FROM_LAST_GOOD
            assert again.versions == [1]
        with pytest.raises(StateError):
            shelf.push(bundle(2))
        own_redis.restart()
        until(lambda: shelf.push(bundle(2)) or True, "a push")
        until(lambda: one.versions[-1] == 2, "what was pushed afterwards")
        assert one.source.problems == []
    shelf.close()


def test_a_redis_that_hangs(own_redis: Server, tmp_path: Path) -> None:
    """A look ends by itself (B-3)."""
    shelf = open_shelf(own_redis.url)
    shelf.push(bundle(1))
    own_redis.pause()
    with pytest.raises(StateError, match=r"(?i)time"):
        shelf.fetch(None)
    own_redis.resume()
    assert shelf.fetch(None) is not None
    shelf.close()


def test_with_tls_and_password(redis_tls: Server) -> None:
    """Every way in that the state's URL knows (B-3)."""
    for url, version in ((redis_tls.url, 1),):
        shelf = open_shelf(url)
        assert shelf.push(bundle(version))
        shelf.close()
    with running({"requirepass": "canary"}) as locked:
        shelf = open_shelf(locked.url)
        assert shelf.push(bundle(1))
        shelf.close()
        wrong = open_shelf(locked.url.replace("canary", "guess"))
        with pytest.raises(StateError) as caught:
            wrong.fetch(None)
        assert "guess" not in str(caught.value) + wrong.name
        wrong.close()


def test_in_a_cluster(redis_cluster: Cluster) -> None:
    """One key, on whichever node it belongs to (B-3)."""
    shelf = open_shelf(redis_cluster.url)
    assert shelf.push(bundle(1))
    found = shelf.fetch(None)
    assert found is not None
    assert found.version == 1
    shelf.close()


def test_behind_sentinel(redis_sentinel: Watched) -> None:
    """The master takes it, also after it has changed (B-3)."""
    shelf = open_shelf(redis_sentinel.url)
    assert shelf.push(bundle(1))
    redis_sentinel.failover()
    until(lambda: _pushed(shelf.push, bundle(2)), "a push to the new master")
    found = shelf.fetch(None)
    assert found is not None
    assert found.version == 2
    shelf.close()


def _pushed(push, what: PushedBundle) -> bool:  # type: ignore[no-untyped-def]
    try:
        push(what)
    except StateError:
        return False
    return True
