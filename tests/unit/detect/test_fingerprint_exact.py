"""`exact`: what goes into the fingerprint."""

from __future__ import annotations

from collections.abc import Callable

from breakloop.detect.fingerprint import ExactFingerprint, Fingerprinter
from tests.builders import call
from tests.each import each


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


@each(
    "who, method, path, query, body",
    [
        ("c", "GET", "/x", "", b""),
        ("c", "GET", "/x", "a=1", b""),
        ("c", "GET", "/x", "a=\ud83d", b"x"),
        ("c", "GET", "/x", "a=\x00", b""),
        ("c", "GET", "/x\x00a=", "", b""),
        ("c", "GET", "/x\x00", "y", b"x"),
        ("c\x00GET", "GET", "/x", "", b""),
        ("c", "GET\x00", "/x", "", b""),
        ("", "M" * 100, "/é", "b=ü", b"x"),
    ],
)
def test_a_sender_that_is_known_has_the_same_fingerprints(
    who: str, method: str, path: str, query: str, body: bytes
) -> None:
    """Operators keep fingerprints, in snoozes and allow lists: as one digest of all parts, first and later (LD-1)."""
    parts = Fingerprinter(b"s").digest([who, method, path, query], body)
    read = ExactFingerprint(Fingerprinter(b"s"), identity=lambda _: who, query=lambda call: call.query, body=bytes)
    asked = call(path, method, query=query, body=body)
    assert [read(asked) for _ in range(3)] == [parts] * 3


def test_what_is_kept_of_senders_is_bounded() -> None:
    """Clients choose their names, and methods of any length (Y-2)."""
    read = made()
    for number in range(5000):
        read(call(headers={"who": f"c-{number}"}))
    assert len(read._states) <= 1024
    before = len(read._states)
    read(call(method="M" * 1000))
    assert len(read._states) == before
