"""Requests from files: raw HTTP and JSON, with located problems."""

from __future__ import annotations

import pytest

from breakloop.cli.explain import read_request
from breakloop.errors import BundleError
from breakloop.replay.cases import CaseRequest


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_raw_http(end: str) -> None:
    """Request line, fields, an empty line, the body; line ends as editors leave them (T-2)."""
    text = end.join(["POST /a?b=c HTTP/1.1", "Host: h.example.com", "X-A:  1 ", "x-a: 2", "", '{"a": 1}', ""])
    assert read_request(text.encode(), "r") == CaseRequest(
        "POST", "/a?b=c", "h.example.com", (("Host", "h.example.com"), ("X-A", "1"), ("x-a", "2")), b'{"a": 1}'
    )


def test_the_body_is_as_long_as_it_says() -> None:
    """A line end that an editor added is no part of a body with a length; one that is announced is kept."""
    assert read_request(b"PUT / HTTP/1.1\nContent-Length: 3\n\nabc\n", "r").body == b"abc"
    assert read_request(b"PUT / HTTP/1.1\nContent-Length: 4\n\nabc\n", "r").body == b"abc\n"
    assert read_request(b"PUT / HTTP/1.1\nContent-Length: 99\n\nabc\n", "r").body == b"abc"
    assert read_request(b"GET / HTTP/1.1", "r").body == b""


def test_short_forms() -> None:
    """The version may be left out; a whole URL names the host."""
    assert read_request(b"GET /a", "r") == CaseRequest("GET", "/a", "localhost")
    absolute = read_request(b"GET https://h.example.com/a?b HTTP/1.1\nHost: other\n\n", "r")
    assert (absolute.host, absolute.path) == ("h.example.com", "/a?b")
    assert read_request(b"GET http://h.example.com HTTP/1.1", "r").path == "/"


def test_bytes_that_are_not_text_survive() -> None:
    """Header values are bytes on the wire."""
    request = read_request(b"GET / HTTP/1.1\nX-A: caf\xe9\n\n", "r")
    assert request.headers[0][1].encode("utf-8", "surrogateescape") == b"caf\xe9"


def test_json() -> None:
    """{method, path, headers, body}; a Host header names the host (T-2)."""
    text = b'{"method": "PUT", "path": "/a", "headers": {"Host": "h", "X-A": ["1", "2"]}, "body": {"b": [1]}}'
    assert read_request(text, "r.json") == CaseRequest(
        "PUT", "/a", "h", (("Host", "h"), ("X-A", "1"), ("X-A", "2")), b'{"b":[1]}'
    )
    assert read_request(b'{"path": "/a", "host": "g", "headers": {"Host": "h"}}', "r").host == "g"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "r:1:1: is empty (give a raw HTTP request, or JSON with method, path, headers and body)"),
        (b"hello", 'r:1:1: "hello" is not a request line (write GET /path HTTP/1.1)'),
        (b"GET a HTTP/1.1", 'r:1:1: "a" is not a path (it begins with /)'),
        (
            b"GET / HTTP/1.1\nHost h",
            'r:2:1: "Host h" is not a header field (write Name: value; an empty line ends them)',
        ),
        (
            b"PUT / HTTP/1.1\nTransfer-Encoding: chunked\n\n0\n",
            "r:1:1: has a chunked body (write the body plainly and leave Transfer-Encoding out)",
        ),
        (b'{"method": "GET"}', "r:1:1: lacks path (write path: /v1/chat/completions)"),
        (
            b'{"path": "/a", "methd": "GET"}',
            'r:1:16: methd: unknown field "methd"; did you mean "method"? (known: method, path, host, headers, body, peer)',
        ),
    ],
)
def test_mistakes(text: bytes, message: str) -> None:
    """For requests: located, with a hint (B-2)."""
    with pytest.raises(BundleError) as refused:
        read_request(text, "r")
    assert [str(problem) for problem in refused.value.problems] == [message]
