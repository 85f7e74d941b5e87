"""Bundles behind a URL of a real server: conditions, kinds, signatures, and what its faults are called."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from breakloop.clock import SystemClock
from breakloop.errors import BundleError, UnreadableError
from breakloop.policy import sources
from breakloop.policy.load import load_fetched
from breakloop.policy.sources import HttpGet, HttpOrigin, PollBackoff
from tests.bundle_server import BundleServer, bundle_server

PACE = PollBackoff(5, 60, lambda: 0.0)
YAML = "bundle_version: 3\npolicies: []\n"


@pytest.fixture
def server() -> Iterator[BundleServer]:
    with bundle_server() as running:
        yield running


def source(server: BundleServer, path: str = "/policy.yaml", *, signed: bool = False) -> HttpOrigin:
    return HttpOrigin(server.url + path, HttpGet(SystemClock()), PACE, signed=signed)


def refused(source: HttpOrigin) -> str:
    with pytest.raises(UnreadableError) as caught:
        source.fetch(None)
    (problem,) = caught.value.problems
    assert problem.file == source.name
    return str(problem)


def test_an_etag_saves_the_way(server: BundleServer) -> None:
    """304 is nothing new; another ETag is another bundle (B-3)."""
    server.put("/policy.yaml", YAML, etag='"1"')
    own = source(server)
    first = own.fetch(None)
    assert first is not None
    assert first.documents[0].data == YAML.encode()
    assert first.documents[0].name == server.url + "/policy.yaml"
    assert own.fetch(first.stamp) is None
    assert (server.gave, server.field("If-None-Match")) == ([200, 304], '"1"')
    server.put("/policy.yaml", YAML + "# more", etag='"2"')
    second = own.fetch(first.stamp)
    assert second is not None
    assert second.stamp != first.stamp
    assert own.fetch(None) is not None
    assert server.field("If-None-Match") is None


def test_a_date_does_too(server: BundleServer) -> None:
    """Last-Modified, for servers without ETags (B-3)."""
    server.put("/policy.yaml", YAML, modified="Sat, 31 Jan 2026 10:00:00 GMT")
    own = source(server)
    first = own.fetch(None)
    assert first is not None
    assert own.fetch(first.stamp) is None
    assert server.gave == [200, 304]


def test_without_either_the_bytes_are_compared(server: BundleServer) -> None:
    """The same content is nothing new, however it came (B-3)."""
    server.put("/policy.yaml", YAML)
    own = source(server)
    first = own.fetch(None)
    assert first is not None
    assert own.fetch(first.stamp) is None
    assert server.gave == [200, 200]


@pytest.mark.parametrize(
    ("status", "said"),
    [(500, "returned 500"), (404, "returned 404 (is the path right?)"), (401, "returned 401 (set policy_token")],
)
def test_other_statuses_are_problems(server: BundleServer, status: int, said: str) -> None:
    """Named by their number, with what to do where that is known (B-3)."""
    server.put("/policy.yaml", "x", status=status)
    assert said in refused(source(server))


def test_an_unasked_304_is_a_problem(server: BundleServer) -> None:
    """Nobody has what it speaks of (B-3)."""
    server.put("/policy.yaml", "", status=304)
    assert "returned 304" in refused(source(server))


def test_packed_and_huge_answers(server: BundleServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is unpacked, and sizes are those of files (B-3)."""
    server.put("/policy.yaml", YAML, headers={"Content-Encoding": "gzip"})
    assert "compressed the response" in refused(source(server))
    monkeypatch.setattr(sources, "MAX_BYTES", 10)
    server.put("/policy.yaml", YAML)
    assert f"has {len(YAML)} bytes, more than the 10 allowed" in refused(source(server))


@pytest.mark.parametrize(
    ("path", "kind", "body", "said"),
    [
        ("/p", "application/json", '{"bundle_version": 1,', "JSON"),
        ("/p", "application/vnd.x+json; charset=utf-8", "bundle_version: 1", "JSON"),
        ("/p.json", "application/octet-stream", "bundle_version: 1", "JSON"),
        ("/p.json", "application/yaml", "bundle_version: 1\npolicies: []", ""),
        ("/p.json", "text/x-yaml", "bundle_version: 1\npolicies: []", ""),
        ("/p", "text/plain", "bundle_version: 1\npolicies: []", ""),
        ("/p", "text/plain", '{"bundle_version": 1, "policies": []}', ""),
    ],
)
def test_json_or_yaml(server: BundleServer, path: str, kind: str, body: str, said: str) -> None:
    """By content type, else by the path, else by what it looks like (B-1, B-3)."""
    server.put(path, body, headers={"Content-Type": kind})
    fetched = source(server, path).fetch(None)
    assert fetched is not None
    if not said:
        assert load_fetched(fetched).bundle.bundle_version == 1
        return
    with pytest.raises(BundleError, match=said):
        load_fetched(fetched)


def test_a_signature_comes_with_it_or_lies_beside_it(server: BundleServer) -> None:
    """The header field first, else the path with .sig; it is asked for only where it is needed (B-4)."""
    server.put("/policy.yaml", YAML, headers={"X-Breakloop-Signature": "ed25519:abc, ed25519:def"})
    own = source(server, "/policy.yaml?key=1", signed=True)
    fetched = own.fetch(None)
    assert fetched is not None
    assert fetched.signature.split() == ["ed25519:abc", "ed25519:def"]
    server.put("/policy.yaml", YAML)
    unsigned = own.fetch(None)
    assert unsigned is not None
    assert unsigned.signature == ""
    assert server.seen[-1][0] == "/policy.yaml.sig?key=1"
    server.put("/policy.yaml.sig", "hmac-sha256:xyz\n")
    beside = own.fetch(None)
    assert beside is not None
    assert beside.signature == "hmac-sha256:xyz\n"
    server.put("/policy.yaml.sig", "", status=503)
    assert "returned 503 for its signature" in refused(own)
    count = len(server.seen)
    assert source(server).fetch(None) is not None
    assert len(server.seen) == count + 1


def test_a_query_is_not_told(server: BundleServer) -> None:
    """It may hold a credential (Y-1)."""
    own = source(server, "/policy.yaml?sig=canary")
    assert "canary" not in refused(own) + own.name
    assert own.key.endswith("?sig=canary")
    assert (own.whole, own.wait_s(0), own.wait_s(2)) == (True, 5, 20)
