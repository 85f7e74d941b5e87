"""What `doctor` says about real servers."""

from __future__ import annotations

import pytest

from breakloop.cli.doctor import examine_redis
from tests.redis_groups import Cluster, Watched
from tests.redis_servers import Server, running

pytestmark = pytest.mark.e2e


def said(url: str) -> list[tuple[str, str]]:
    """Level, and the text after the address. Latency is a note or a warning, depending on how busy this machine is."""
    found = [(one.level, one.message.partition(": ")[2] or one.message) for one in examine_redis(url)]
    return [("note", "latency") if text.startswith("latency ") else (level, text) for level, text in found]


NOTHING_KEPT = "has no persistence: a restart loses kill switches, holds and budgets (set appendonly yes)"


def test_a_server(any_server: Server) -> None:
    (kind, *rest) = said(any_server.url)
    assert kind[0] == "note"
    assert kind[1].split()[0] == {"redis-server": "Redis", "valkey-server": "Valkey"}[any_server.name]
    assert rest == [("warning", NOTHING_KEPT), ("note", "latency")]


def test_one_that_keeps_and_one_that_evicts() -> None:
    """Durability is what its AOF gives, and `doctor` reports it (S-1)."""
    with running({"appendonly": "yes", "requirepass": "hunter2"}) as server:
        assert [level for level, _ in said(server.url)] == ["note", "note"]
        assert said(server.url.replace("hunter2", "wrong"))[0][0] == "problem"
        client = server.client()
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "volatile-lru")
        client.config_set("appendfsync", "no")
        texts = {text.split()[0]: level for level, text in said(server.url)}
        assert texts["maxmemory-policy"] == "warning"
        assert texts["appendfsync"] == "note"


def test_a_user_who_may_not_be_told() -> None:
    with running() as server:
        client = server.client()
        client.acl_setuser("agent", enabled=True, passwords=["+x"], commands=["+ping", "+eval"], keys=["*"])
        url = server.url.replace("//", "//agent:x@")
        assert said(url)[0] == ("note", "INFO is not allowed: version, eviction and persistence were not checked")
        client.acl_setuser("agent", enabled=True, passwords=["+x"], commands=["+ping", "-eval"], keys=["*"])
        assert [text[:24] for level, text in said(url) if level == "problem"] == ["scripts are not allowed:"]


def test_a_cluster(redis_cluster: Cluster) -> None:
    findings = said(redis_cluster.url)
    assert [level for level, _ in findings] == 3 * ["note", "warning", "note"]
    assert ("problem", "is a node of a cluster: write redis+cluster://") in said(redis_cluster.nodes[0].url)


def test_behind_sentinel(redis_sentinel: Watched) -> None:
    assert [level for level, _ in said(redis_sentinel.url)] == ["note", "warning", "note"]
    for sentinel in redis_sentinel.sentinels[1:]:
        sentinel.kill()
    gone = [text for level, text in said(redis_sentinel.url) if "refused the connection" in text]
    assert len(gone) == 2
