"""Bytes in any pieces, requests out one at a time."""

from __future__ import annotations

import pytest

from breakloop.errors import RequestError
from breakloop.gateway.http_request import BodyMemory, HeadParser, RequestLimits, RequestReader
from tests.unit.gateway.fake_client import chunked, get, post


def incoming(limits: RequestLimits | None = None) -> RequestReader:
    limits = limits or RequestLimits()
    return RequestReader(HeadParser(limits), limits, BodyMemory(limits))


def test_requests_come_out_in_order_and_one_at_a_time() -> None:
    stream = incoming()
    stream.push(get("/1") + post(b"two") + chunked(b"th", b"ree") + get("/4")[:-1])
    assert [(r.target, r.body) for r in iter(lambda: stream.next(""), None)] == [
        (b"/1", b""),
        (b"/p", b"two"),
        (b"/c", b"three"),
    ]
    stream.compact()
    assert len(stream) == len(get("/4")) - 1
    stream.push(b"\n")
    last = stream.next("")
    assert last is not None
    assert last.target == b"/4"
    assert len(stream) == 0


def test_a_body_in_pieces() -> None:
    stream = incoming()
    whole = post(b"x" * 1000)
    for at in range(0, len(whole) - 7, 7):
        stream.push(whole[at : at + 7])
        assert stream.next("") is None
        stream.compact()
    stream.push(whole[(len(whole) - 1) // 7 * 7 :])
    request = stream.next("")
    assert request is not None
    assert request.body == b"x" * 1000


def test_a_length_above_the_limit_is_refused_with_the_head() -> None:
    """413 before any of the body is read, and no 100 Continue for it (Y-2)."""
    stream = incoming(RequestLimits(body_bytes=10))
    stream.push(get("/", "Content-Length: 11", "Expect: 100-continue", method="POST"))
    with pytest.raises(RequestError) as error:
        stream.next("")
    assert error.value.status == 413
    assert not stream.continue_due


def test_continue_is_due_only_while_a_body_is_missing() -> None:
    stream = incoming()
    stream.push(post(b"here", "Expect: 100-continue"))
    assert stream.next("") is not None
    assert not stream.continue_due
    stream.push(post(b"later", "Expect: 100-continue")[:-5])
    assert stream.next("") is None
    assert stream.continue_due


def test_a_head_is_refused_at_its_first_byte_too_many() -> None:
    """Counted before the parser sees anything (Y-2)."""
    stream = incoming(RequestLimits(head_bytes=100))
    stream.push(get() + get("/", "X: " + "x" * 40)[:-4])
    assert stream.next("") is not None
    assert stream.next("") is None  # what came before does not count
    stream.push(b"x" * 100)
    with pytest.raises(RequestError) as error:
        stream.next("")
    assert error.value.status == 431


def test_clear_forgets_everything() -> None:
    stream = incoming()
    stream.push(post(b"abc")[:-1])
    stream.next("")
    stream.clear()
    assert (len(stream), stream.body, stream.next("")) == (0, None, None)


def test_all_bodies_together_have_a_bound() -> None:
    """Many half-sent bodies cannot take more than so much; room comes back when one is done or given up (Y-2)."""
    limits = RequestLimits(all_bodies_bytes=100)
    room = BodyMemory(limits)
    first, second = (RequestReader(HeadParser(limits), limits, room) for _ in range(2))
    first.push(post(b"x" * 80)[:-10])
    assert first.next("") is None
    assert room.held == 70
    second.push(post(b"y" * 80)[:-10])
    with pytest.raises(RequestError, match="too many request bodies") as refused:
        second.next("")
    assert refused.value.status == 503
    second.clear()
    assert room.held == 70
    first.push(b"x" * 10)
    done = first.next("")
    assert done is not None
    assert (done.body, room.held) == (b"x" * 80, 0)
    first.push(post(b"z" * 80)[:-10])
    assert first.next("") is None
    first.clear()
    assert room.held == 0
