"""Heads of answers."""

from __future__ import annotations

from breakloop.testing.http import REALISTIC_COUNT, head


def test_a_head() -> None:
    made = head(200, [("Date", "now"), ("Content-Length", "2")], [("x-a", "1")])
    assert made == b"HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: 2\r\nx-a: 1\r\n\r\n"


def test_own_fields_replace() -> None:
    """Whatever their case; a field given twice is sent twice."""
    made = head(200, [("Content-Type", "a"), ("Content-Length", "2")], [("content-type", "b"), ("x", "1"), ("x", "2")])
    assert made == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\ncontent-type: b\r\nx: 1\r\nx: 2\r\n\r\n"


def test_a_realistic_head_has_24_fields() -> None:
    for count in (1, 4, 8):
        own = [(f"x-own-{number}", "1") for number in range(count)]
        made = head(200, [("Date", "now"), ("Content-Type", "a")], own, realistic=True)
        assert made.count(b"\r\n") == 1 + REALISTIC_COUNT + 1
        assert b"cf-cache-status" in made or count == 8
    assert head(200, [], [("x-request-id", "mine")], realistic=True).count(b"x-request-id") == 1
    assert head(200, [], [], realistic=True).count(b"set-cookie") == 2


def test_odd_statuses_and_versions() -> None:
    assert head(529, []).startswith(b"HTTP/1.1 529 Overloaded\r\n")
    assert head(599, []).startswith(b"HTTP/1.1 599 Unknown\r\n")
    assert head(404, [], version="1.0").startswith(b"HTTP/1.0 404 Not Found\r\n")
    assert head(103, [("link", "</a>")]) == b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
