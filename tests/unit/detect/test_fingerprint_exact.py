"""`exact`: what goes into the fingerprint."""

from __future__ import annotations

from collections.abc import Callable

from breakloop.detect.fingerprint import ExactFingerprint, Fingerprinter
from tests.builders import call


def made(body: Callable[[bytes], bytes] = bytes) -> ExactFingerprint:
    return ExactFingerprint(
        Fingerprinter(b"s"),
        identity=lambda call: call.header("who") or "",
        query=lambda call: "&".join(sorted(call.query.split("&"))),
        body=body,
    )


def test_what_tells_requests_apart() -> None:
    """Method, path, query, body, and who sends (LD-1)."""
    read = made()
    calls = [
        call(),
        call(method="POST"),
        call("/y"),
        call(query="a=1"),
        call(body=b"x"),
        call(headers={"who": "c"}),
    ]
    assert len({read(one) for one in calls}) == len(calls)


def test_what_does_not() -> None:
    """Order of the query, other headers, host, request id (LD-1)."""
    read = made()
    assert read(call(query="a=1&b=2")) == read(call(query="b=2&a=1"))
    assert read(call(headers={"x": "y"}, host="h", request_id="1")) == read(call())


def test_bodies_are_compared_in_one_spelling() -> None:
    """By whatever the reader makes of them; without a body it is not asked (LD-1)."""
    read = made(body=lambda body: body.lower())
    assert read(call(body=b"X")) == read(call(body=b"x"))

    def never(body: bytes) -> bytes:
        raise AssertionError("there is no body")

    assert made(body=never)(call()) is not None


def test_an_unseen_body_has_no_fingerprint() -> None:
    """What was not shown cannot be compared (LD-1)."""
    assert made()(call(body_unseen=True)) is None
