"""The request a gateway asks about."""

from __future__ import annotations

import pytest

from breakloop.errors import RequestError
from breakloop.gateway.decision import envoy_call, nginx_call, original_call
from tests.builders import Fields, request
from tests.each import each


def test_x_original() -> None:
    """Method, path, query and host of the original; headers, peer and body as they came (D-3)."""
    fields = {
        "x-original-uri": "/a/b?c=d%20e",
        "x-original-method": "PATCH",
        "x-original-host": "H.example:80",
        "x-y": "z",
    }
    made = original_call(request(headers=fields, body=b"body", peer="192.0.2.1"), "id-1")
    assert (made.method, made.path, made.query, made.host) == ("PATCH", "/a/b", "c=d%20e", "h.example")
    assert (made.body, made.peer, made.request_id, made.header("x-y")) == (b"body", "192.0.2.1", "id-1", "z")
    assert made.body_unseen is False


def test_nothing_but_the_request_itself() -> None:
    """Without any of these headers the question is about itself (D-3)."""
    made = original_call(request("/v1/decision?a=1", {"host": "h"}, "GET"), "")
    assert (made.method, made.path, made.query, made.host) == ("GET", "/v1/decision", "a=1", "h")


@each(
    "uri, path, query",
    [
        ("/", "/", ""),
        ("/a?", "/a", ""),
        ("/a?b?c", "/a", "b?c"),
        ("http://h/a?b=1", "/a", "b=1"),
        ("HTTPS://h:1/a", "/a", ""),
        ("http://h", "/", ""),
        ("http://h?x=1", "/", "x=1"),
        ("http://h?x=/free", "/", "x=/free"),
        ("/a/../b//c/.", "/b/c/", ""),
        ("/%7euser", "/~user", ""),
        ("/agents/bot/v1/x", "/v1/x", ""),
    ],
)
def test_targets(uri: str, path: str, query: str) -> None:
    """Whole URLs lose their authority, the query is split off, the path is normalised (D-3, R-3)."""
    for read in (original_call, nginx_call):
        made = read(request(headers={"x-original-uri": uri}), "")
        assert (made.path, made.query) == (path, query)


@pytest.mark.parametrize("uri", ["a/b", "//%2f", "ws://h/a", "javascript:x", "/%2e%2e%2f", "/a%5c"])
def test_refused_targets(uri: str) -> None:
    """400 for what has no one meaning (R-3)."""
    with pytest.raises(RequestError) as raised:
        original_call(request(headers={"x-original-uri": uri}), "")
    assert raised.value.status == 400


def test_agent_in_the_path() -> None:
    """`/agents/{agent}` is taken off and kept (C-7)."""
    made = original_call(request(headers={"x-original-uri": "/agents/a%20b/v1/x"}), "")
    assert (made.path_agent, made.path) == ("a b", "/v1/x")


def test_envoy() -> None:
    """What follows the prefix is the original; headers that name another one are not read (D-3)."""
    fields = {"host": "h:8080", "x-original-uri": "/no", "x-forwarded-host": "no"}
    made = envoy_call(request("/v1/decision/envoy/a/b?c=1", fields, "DELETE"), "")
    assert (made.method, made.path, made.query, made.host) == ("DELETE", "/a/b", "c=1", "h")


@pytest.mark.parametrize(
    ("fields", "body", "unseen"),
    [
        ({}, b"", False),
        ({"x-original-content-length": "0"}, b"", False),
        ({"x-original-content-length": ""}, b"", False),
        ({"x-original-content-length": "5"}, b"", True),
        ({"x-original-content-length": "5"}, b"12345", False),
    ],
)
def test_a_body_that_was_kept_back(fields: Fields, body: bytes, unseen: bool) -> None:
    """The gateway can say that there is a body it did not send (D-3, LD-1)."""
    assert nginx_call(request(headers=fields, body=body), "").body_unseen is unseen


def test_a_contradiction_names_the_fields() -> None:
    """So that whoever configures the gateway finds it; an empty field says nothing (D-3)."""
    with pytest.raises(RequestError, match="x-original-uri and x-forwarded-uri differ"):
        original_call(request(headers={"x-original-uri": "/a", "x-forwarded-uri": "/b"}), "")
    assert original_call(request(headers={"x-original-uri": "", "x-forwarded-uri": "/b"}), "").path == "/b"


@pytest.mark.parametrize("name", ["x-original-uri", "x-original-method", "x-original-host", "x-forwarded-uri"])
def test_a_field_that_says_two_things_is_refused(name: str) -> None:
    """`X_Original_URI` of a client beside the gateway's own; the same value twice does no harm (D-3, Y-3)."""
    asked = request(headers={name: "/a"}, repeated=((name, b"/b"),))
    reads = (original_call,) if name.startswith("x-forwarded") else (original_call, nginx_call)
    for read in reads:
        with pytest.raises(RequestError, match=f"{name} was sent twice") as raised:
            read(asked, "")
        assert raised.value.status == 400
        read(request(headers={name: "/a"}, repeated=((name, b"/a"), ("accept", b"b"))), "")


def test_a_length_is_believed_beside_the_uri_of_the_same_kind() -> None:
    """Traefik and Caddy pass on what a client says about a length, so alone it hides nothing (D-3, LD-1)."""
    fields: Fields = {"x-forwarded-uri": "/a", "x-forwarded-method": "POST", "x-original-content-length": "5"}
    assert original_call(request(headers=fields), "").body_unseen is False
    assert original_call(request(headers={**fields, "x-original-uri": "/a"}), "").body_unseen is True
