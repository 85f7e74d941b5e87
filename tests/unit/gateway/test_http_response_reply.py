"""Replies as bytes."""

from __future__ import annotations

import json

from breakloop.gateway.http_request import CLOSE, Reply
from breakloop.gateway.http_response import StatusLines, error_reply, render
from tests.unit.gateway.fake_client import read_replies


def lines() -> StatusLines:
    made = StatusLines()
    made.renew(1_800_000_000.0)
    return made


def test_whole_reply() -> None:
    reply = Reply(200, b"x-a: 1\r\n", b"hello")
    expected = b"HTTP/1.1 200 OK\r\ndate: Fri, 15 Jan 2027 08:00:00 GMT\r\nx-a: 1\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello"
    assert render(lines(), reply, CLOSE, "GET") == expected


def test_head_gets_the_length_without_the_body() -> None:
    """Head gets the length without the body: HEAD (D-1)."""
    for size in (5, 5000):
        data = render(lines(), Reply(200, b"", b"x" * size), b"", "HEAD")
        assert read_replies(data, "HEAD") == [
            (200, b"", {b"date": b"Fri, 15 Jan 2027 08:00:00 GMT", b"content-length": b"%d" % size})
        ]


def test_statuses_without_a_body() -> None:
    for status in (204, 304):
        data = render(lines(), Reply(status, b"", b"never sent"), b"", "GET")
        assert b"content-length" not in data
        assert data.endswith(b"GMT\r\n\r\n")


def test_large_bodies_and_unknown_statuses() -> None:
    for size in (2047, 2048, 100_000):
        ((status, body, _),) = read_replies(render(lines(), Reply(299, b"", b"x" * size), b"", "GET"))
        assert (status, len(body)) == (299, size)


def test_the_date_moves() -> None:
    made = lines()
    first = made[200]
    made.renew(1_800_000_001.0)
    assert first != made[200]
    assert b"08:00:01 GMT" in made[200]


def test_refusals_have_one_shape() -> None:
    ((status, body, head),) = read_replies(render(lines(), error_reply(400, 'a "b"'), CLOSE, ""))
    assert (status, head[b"connection"], head[b"content-type"]) == (400, b"close", b"application/json")
    assert json.loads(body) == {"detail": {"error": "bad_request", "message": 'a "b"'}}
    assert json.loads(error_reply(500, "internal error").body)["detail"]["error"] == "internal_error"


def test_426_says_what_to_use_instead() -> None:
    assert b"\r\nupgrade: HTTP/1.1\r\nconnection: upgrade\r\n" in render(lines(), error_reply(426, "no"), CLOSE, "")
