"""Real Redis or Valkey servers that belong together: a cluster of masters, and a master with a replica watched by Sentinels."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.programs import program
from tests.redis_servers import Options, Server, Tls, free_port, running, until

SLOTS = 16384
SERVICE = "state"


class Cluster:
    """Masters that share the slots evenly, in the order of `nodes`; then replicas, one each, if asked for."""

    def __init__(self, nodes: list[Server], masters: int) -> None:
        self.nodes = nodes
        self.masters = masters

    @property
    def url(self) -> str:
        """As in the settings, with the masters as seeds."""
        seeds = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[: self.masters])
        tls = self.nodes[0].tls
        return f"rediss+cluster://{seeds}/?ca_file={tls.authority.file}" if tls else f"redis+cluster://{seeds}/"

    def node_of(self, slot: int) -> Server:
        """Who owns `slot`, in the words of the first node that answers."""
        for node in self.nodes:
            with suppress(redis.RedisError), node.client() as client:
                for first, last, owner, *_ in _slots(client):
                    if first <= slot <= last:
                        return next(node for node in self.nodes if node.port == owner[1])
        raise LookupError(f"nobody owns slot {slot}")

    def begin_move(self, slot: int, to: Server) -> Server:
        """Open `slot` for its move: keys that are absent at its old owner (returned) are asked for at `to`."""
        old = self.node_of(slot)
        with old.client() as source, to.client() as target:
            _do(target, "CLUSTER SETSLOT", slot, "IMPORTING", _my_id(source))
            _do(source, "CLUSTER SETSLOT", slot, "MIGRATING", _my_id(target))
        return old

    def move_slot(self, slot: int, to: Server) -> None:
        """Move `slot` with its keys, and wait until every node knows."""
        old = self.begin_move(slot, to)
        with old.client() as source, to.client() as target:
            while keys := _do(source, "CLUSTER GETKEYSINSLOT", slot, 100):
                _do(source, "MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
            owner = _my_id(target)
            _do(target, "CLUSTER SETSLOT", slot, "NODE", owner)
            _do(source, "CLUSTER SETSLOT", slot, "NODE", owner)
        until(lambda: self.node_of(slot) is to, f"slot {slot} at its new owner")

    def restore(self) -> None:
        """Empty it and give every slot back, for the next test."""
        masters = self.nodes[: self.masters]
        for node in masters:
            with node.client() as client:
                client.flushall()
                client.script_flush()
                for slot in _open_slots(client):
                    _do(client, "CLUSTER SETSLOT", slot, "STABLE")
        until(self._has_its_slots, "a whole cluster")

    def _has_its_slots(self) -> bool:
        """Return whether every node knows the first owner of each slot, and tell it to those that do not. What another
        node sent before may arrive after this and undo it, so it is told until all agree."""
        wrong = [node for node in self.nodes[: self.masters] if not _is_whole(node, self.masters)]
        for node in wrong:
            with node.client() as client:
                known = {slot: owner[1] for first, last, owner, *_ in _slots(client) for slot in range(first, last + 1)}
                for share, owner in zip(_shares(self.masters), self.nodes, strict=False):
                    with owner.client() as target:
                        identity = _my_id(target)
                    for slot in share:
                        if known.get(slot) != owner.port:
                            _do(client, "CLUSTER SETSLOT", slot, "NODE", identity)
        return not wrong


class Watched:
    """A master with a replica, and the Sentinels that watch them under the name `state`."""

    def __init__(self, servers: list[Server], sentinels: list[Server]) -> None:
        self.servers = servers
        self.sentinels = sentinels

    @property
    def url(self) -> str:
        """As in the settings, with every Sentinel."""
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}"

    @property
    def master(self) -> Server:
        """Who is the master, in the words of the first Sentinel that answers."""
        for sentinel in self.sentinels:
            with suppress(redis.RedisError), sentinel.client() as client:
                port = int(_do(client, "SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE)[1])
                return next(server for server in self.servers if server.port == port)
        raise LookupError("no Sentinel knows the master")

    @property
    def replica(self) -> Server:
        """The one that is not the master."""
        master = self.master
        return next(server for server in self.servers if server is not master)

    def failover(self, *, crash: bool = False) -> Server:
        """Make the replica the master, and return it: by order, or because the master is killed."""
        old, new = self.master, self.replica
        if crash:
            old.kill()
        else:
            with self.sentinels[0].client() as client:
                until(lambda: _do(client, "SENTINEL FAILOVER", SERVICE), "an accepted failover")
        until(lambda: self.master is new and _is_master(new), "the replica to be the master")
        return new

    def wait_ready(self) -> None:
        """Wait until every Sentinel knows the replica and the other Sentinels, and the replica is in step."""
        until(lambda: all(_knows(one, len(self.sentinels)) for one in self.sentinels), "Sentinels that know all")


def _shares(masters: int) -> list[range]:
    bounds = [SLOTS * index // masters for index in range(masters + 1)]
    return [range(first, last) for first, last in pairwise(bounds)]


def _do(client: redis.Redis, command: str, *arguments: object) -> Any:
    """Carry out a command as it is written, with the answer as Redis gave it."""
    with suppress(AttributeError):
        client.response_callbacks.clear()
    return client.execute_command(*command.split(" "), *arguments)  # type: ignore[no-untyped-call]


def _slots(client: redis.Redis) -> list[Any]:
    return list(_do(client, "CLUSTER SLOTS"))


def _my_id(client: redis.Redis) -> str:
    return str(_do(client, "CLUSTER MYID").decode())


def _open_slots(client: redis.Redis) -> list[int]:
    mine = next(line for line in _do(client, "CLUSTER NODES").decode().splitlines() if "myself" in line)
    return [int(part[1:].split("-")[0]) for part in mine.split()[8:] if part.startswith("[")]


def _is_whole(node: Server, masters: int) -> bool:
    with node.client() as client:
        known = _slots(client)
        info = _do(client, "CLUSTER INFO").decode()
        spans = [(first, last) for first, last, *_ in known]
    return "cluster_state:ok" in info and sorted(spans) == [(s.start, s.stop - 1) for s in _shares(masters)]


def _join(nodes: list[Server], masters: int) -> None:
    first = nodes[0]
    for epoch, node in enumerate(nodes, start=1):
        with node.client() as client:
            _do(client, "CLUSTER SET-CONFIG-EPOCH", epoch)
            if epoch <= masters:
                share = _shares(masters)[epoch - 1]
                _do(client, "CLUSTER ADDSLOTSRANGE", share.start, share.stop - 1)
    with first.client() as client:
        for node in nodes[1:]:
            bus = int(str(node.option("cluster-port")))
            _do(client, "CLUSTER MEET", "127.0.0.1", node.port, bus)
    until(lambda: all(_is_whole(node, masters) for node in nodes), "a cluster that agrees")
    for master, node in zip(nodes[:masters], nodes[masters:], strict=False):
        _follow(master, node)


def _follow(master: Server, replica: Server) -> None:
    with master.client() as source, replica.client() as client:
        identity = _my_id(source)
        until(lambda: identity in _do(client, "CLUSTER NODES").decode(), "a known master")
        _do(client, "CLUSTER REPLICATE", identity)
        until(lambda: b"master_link_status:up" in _do(client, "INFO", "replication"), "a replica in step")


@contextmanager
def cluster(
    masters: int = 3, *, replicas: bool = False, tls: Tls | None = None, name: str = "redis-server"
) -> Iterator[Cluster]:
    """Start a cluster; with `replicas`, each master has one, which takes over when it dies."""
    with ExitStack() as stack:
        nodes = []
        for _ in range(masters * (2 if replicas else 1)):
            options: Options = {
                "cluster-enabled": "yes",
                "cluster-port": free_port(),
                "cluster-announce-ip": "127.0.0.1",
                "cluster-node-timeout": 1000,
                "cluster-replica-validity-factor": 0,
            }
            nodes.append(stack.enter_context(running(options, name=name, tls=tls)))
        _join(nodes, masters)
        yield Cluster(nodes, masters)


def _is_master(server: Server) -> bool:
    with server.client() as client:
        return bool(_do(client, "ROLE")[0] == b"master")


def _knows(sentinel: Server, sentinels: int) -> bool:
    with sentinel.client() as client:
        facts = _pairs(_do(client, "SENTINEL MASTER", SERVICE))
        replicas = [_pairs(one) for one in _do(client, "SENTINEL REPLICAS", SERVICE)]
    in_step = [one for one in replicas if one["master-link-status"] == "ok" and one["flags"] == "slave"]
    return facts["flags"] == "master" and int(facts["num-other-sentinels"]) == sentinels - 1 and len(in_step) == 1


def _pairs(flat: Any) -> dict[str, str]:
    if isinstance(flat, dict):
        return {str(key, "utf-8"): str(value, "utf-8") for key, value in flat.items()}
    words = [str(word, "utf-8") for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))


class _Sentinel(Server):
    """A server that keeps its settings in a file, which it writes to."""

    def __init__(self, path: str, folder: Path, master_port: int, quorum: int) -> None:
        super().__init__(path, folder, {})
        self._conf = folder / "sentinel.conf"
        self._watch = f"sentinel monitor {SERVICE} 127.0.0.1 {master_port} {quorum}\n"

    def arguments(self) -> list[str]:
        lines = f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\n{self._watch}"
        for name, value in {"down-after-milliseconds": 500, "failover-timeout": 3000, "parallel-syncs": 1}.items():
            lines += f"sentinel {name} {SERVICE} {value}\n"
        self._conf.write_text(lines, encoding="utf-8")
        return [str(self._conf), "--sentinel"]

    def look(self, *, often: bool) -> None:
        """Look around every few milliseconds, or with the usual periods, where the server knows how.

        Often is for the start only: Sentinels in a hurry take a replica's promotion for a mistake, and undo it.
        """
        with suppress(redis.ResponseError), self.client() as client:
            _do(client, "SENTINEL DEBUG", "publish-period", 100 if often else 2000)
            _do(client, "SENTINEL DEBUG", "info-period", 100 if often else 1000)


@contextmanager
def watched(sentinels: int = 3, *, name: str = "redis-server") -> Iterator[Watched]:
    """Start a master, its replica, and Sentinels that agree by majority."""
    with ExitStack() as stack:
        master = stack.enter_context(running(name=name))
        replica = stack.enter_context(running({"replicaof": f"127.0.0.1 {master.port}"}, name=name))
        with replica.client() as client:
            until(lambda: b"master_link_status:up" in _do(client, "INFO", "replication"), "a replica in step")
        watchers = []
        for _ in range(sentinels):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sentinel-", ignore_cleanup_errors=True))
            one = _Sentinel(program(name), Path(folder), master.port, sentinels // 2 + 1)
            stack.callback(one.close)
            one.start()
            one.look(often=True)
            watchers.append(one)
        made = Watched([master, replica], list(watchers))
        made.wait_ready()
        for one in watchers:
            one.look(often=False)
        yield made


@pytest.fixture(scope="session")
def _cluster_session() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture
def redis_cluster(_cluster_session: Cluster) -> Cluster:
    """Three masters, shared by the session; emptied and its slots put back for each test. Do not kill a node."""
    _cluster_session.restore()
    return _cluster_session


@pytest.fixture
def redis_sentinel() -> Iterator[Watched]:
    """A master, a replica and three Sentinels of this test's own."""
    with watched() as made:
        yield made
