"""The servers of the tests do what their names say; where one does not, this fails first, and says so."""

from __future__ import annotations

import pytest
import redis
from redis.crc import key_slot

from tests.redis_groups import SLOTS, Cluster, Watched, cluster
from tests.redis_servers import Server, running, until

pytestmark = pytest.mark.e2e


def test_standalone(any_server: Server) -> None:
    """Answers, and is empty for each test."""
    with any_server.client() as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


def test_emptied(any_server: Server) -> None:
    with any_server.client() as client:
        assert client.dbsize() == 0


def test_pause_kill_restart(own_redis: Server) -> None:
    """A paused server hangs, goes on when resumed; killed, it comes back on its port, empty or not."""
    hanging = own_redis.client(socket_timeout=0.05)
    own_redis.pause()
    with pytest.raises(redis.TimeoutError):
        hanging.ping()
    own_redis.resume()
    client, port = own_redis.client(), own_redis.port
    client.set("a", "1")
    own_redis.restart(empty=False)
    assert (own_redis.port, own_redis.client().get("a")) == (port, b"1")
    own_redis.kill()
    with pytest.raises(redis.ConnectionError):
        own_redis.client().ping()
    own_redis.restart()
    assert own_redis.client().get("a") is None


def test_options() -> None:
    with running({"requirepass": "secret"}) as server:
        assert server.client().ping()
        with pytest.raises(redis.AuthenticationError):
            server.client(password=None).ping()


def test_tls(redis_tls: Server) -> None:
    assert redis_tls.client().ping()
    with pytest.raises(redis.ConnectionError):
        redis_tls.client(ssl=False).ping()


def test_a_bad_option_says_so() -> None:
    with pytest.raises(RuntimeError, match="no-such-option"), running({"no-such-option": 1}):
        pass


def test_cluster(redis_cluster: Cluster) -> None:
    """Slots move, with their keys, and go back for the next test."""
    slot = key_slot(b"{p}a")
    old = redis_cluster.node_of(slot)
    new = next(node for node in redis_cluster.nodes if node is not old)
    old.client().set("{p}a", "1")
    redis_cluster.move_slot(slot, new)
    assert new.client().get("{p}a") == b"1"
    with pytest.raises(redis.exceptions.MovedError):
        old.client().get("{p}a")
    redis_cluster.restore()
    assert redis_cluster.node_of(slot) is old
    assert redis_cluster.node_of(SLOTS - 1) is redis_cluster.nodes[2]


def test_cluster_replicas_take_over() -> None:
    with cluster(replicas=True) as made:
        owner = made.node_of(0)
        owner.kill()
        until(lambda: made.nodes[3].client().role()[0] in (b"master", "master"), "a new master")


@pytest.mark.parametrize("crash", [False, True])
def test_sentinel(redis_sentinel: Watched, crash: bool) -> None:
    old = redis_sentinel.master
    new = redis_sentinel.failover(crash=crash)
    assert new is not old
    assert redis_sentinel.master is new
    assert new.client().set("a", "1")
