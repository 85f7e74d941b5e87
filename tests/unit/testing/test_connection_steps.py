"""Steps of sending: framing as h11 reads it, and every way to stop."""

from __future__ import annotations

import gzip
from dataclasses import replace

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.testing.answer import Answer, Gate, Manner
from breakloop.testing.connection import HoldOpen, Leave, Pause, Rendered, Step, raw_steps, steps
from breakloop.testing.http import SeenRequest
from tests.each import each
from tests.unit.testing.talking import DATE, PLAIN, carried_out, read_with_h11, seen, written

WHOLE = Rendered([b'{"a":1}'])
STREAM = Rendered([b"data: 1\n\n", b"", b"data: 22\n\n", b"data: 333\n\n"], "text/event-stream", streamed=True)
ALL = b"data: 1\n\ndata: 22\n\ndata: 333\n\n"


def done(answer: Answer, rendered: Rendered = STREAM, request: SeenRequest | None = None) -> list[Step]:
    return carried_out(steps(rendered, answer.manner, request or seen(), DATE))


def test_a_body_with_its_length_goes_out_in_one_write() -> None:
    (sent,) = carried_out(steps(WHOLE, PLAIN, seen(), DATE))
    assert sent == (
        b"HTTP/1.1 200 OK\r\nDate: Fri, 15 Jan 2027 08:00:00 GMT\r\nContent-Type: application/json\r\n"
        b'Content-Length: 7\r\nConnection: keep-alive\r\n\r\n{"a":1}'
    )


def test_a_stream_goes_out_in_chunks() -> None:
    """One write a piece; an empty piece is left out, for it would end the body."""
    request = seen()
    head, *rest = carried_out(steps(STREAM, PLAIN, request, DATE))
    assert isinstance(head, bytes)
    assert b"\r\nTransfer-Encoding: chunked\r\n" in head
    assert rest == [b"9\r\ndata: 1\n\n\r\n", b"a\r\ndata: 22\n\n\r\n", b"b\r\ndata: 333\n\n\r\n", b"0\r\n\r\n"]
    assert request.chunks_sent == 3


@each("framing", ["auto", "length", "chunked", "close"])
@each("rendered", [WHOLE, STREAM])
@each("version", ["1.1", "1.0"])
@each("size", [0, 1, 7, 1000])
def test_h11_reads_every_framing(framing: str, rendered: Rendered, version: str, size: int) -> None:
    """The body comes out whole, and ended, whatever the framing and the size of the pieces."""
    manner = Manner(framing=framing, version=version, piece_bytes=size)  # type: ignore[arg-type]
    found = carried_out(steps(rendered, manner, seen(), DATE))
    closes = found[-1] == Leave()
    data = b"".join(step for step in found if isinstance(step, bytes))
    response, body, others = read_with_h11(data, closed=closes)
    assert body == b"".join(rendered.pieces)
    assert isinstance(others[-1], h11.EndOfMessage)
    assert closes is (framing == "close" or version == "1.0")
    assert response.http_version == version.encode()
    assert (dict(response.headers)[b"connection"] == b"close") is closes


def test_old_clients_get_no_chunks() -> None:
    data = written(steps(STREAM, PLAIN, seen(version="1.0"), DATE))
    assert data.endswith(b"\r\n\r\n" + ALL)
    assert b"chunked" not in data
    assert done(Answer(), request=seen(version="1.0"))[-1] == Leave()


def test_a_client_that_wants_to_close_is_obeyed() -> None:
    found = done(Answer(), request=seen(connection="close"))
    assert found[-1] == Leave()
    assert b"Connection: close" in found[0]  # type: ignore[operator]
    assert done(Answer().closing())[-1] == Leave()


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 204), ("GET", 304)])
def test_answers_without_a_body(method: str, status: int) -> None:
    """HEAD tells the length it would have; 204 has none."""
    data = written(steps(replace(WHOLE, status=status), PLAIN, seen(method=method), DATE))
    assert data.endswith(b"\r\n\r\n")
    assert (b"Content-Length: 7" in data) is (status != 204)
    _, body, others = read_with_h11(data, method)
    assert (body, type(others[-1])) == (b"", h11.EndOfMessage)


def test_trailers_and_interim_answers() -> None:
    answer = Answer().with_trailers(("x-sum", "9")).after_informational(103, ("link", "</a>")).after_informational(102)
    _, body, (hints, processing, end) = read_with_h11(b"".join(done(answer)))  # type: ignore[arg-type]
    assert (hints.status_code, hints.headers, processing.status_code) == (103, [(b"link", b"</a>")], 102)
    assert (body, list(end.headers)) == (ALL, [(b"x-sum", b"9")])


def test_compressed_if_the_client_takes_it() -> None:
    answer = Answer().compressed("gzip")
    _, body, _ = read_with_h11(b"".join(done(answer, request=seen(accept_encoding="br, gzip"))))  # type: ignore[arg-type]
    assert gzip.decompress(body) == ALL
    response, body, _ = read_with_h11(b"".join(done(answer)))  # type: ignore[arg-type]
    assert (body, dict(response.headers).get(b"content-encoding")) == (ALL, None)
    response, body, _ = read_with_h11(b"".join(done(answer.compressed(forced=True), WHOLE)))  # type: ignore[arg-type]
    assert gzip.decompress(body) == b'{"a":1}'
    assert dict(response.headers)[b"content-encoding"] == b"gzip"
    assert dict(response.headers)[b"content-length"] == str(len(body)).encode()


def test_realistic_heads() -> None:
    response, _, _ = read_with_h11(b"".join(done(Answer().realistic())))  # type: ignore[arg-type]
    assert len(response.headers) == 24
    response, _, _ = read_with_h11(b"".join(done(Answer().realistic().compressed(forced=True), WHOLE)))  # type: ignore[arg-type]
    assert len(response.headers) == 24


def kinds(found: list[Step]) -> str:
    """h for the head, c for a chunk, e for the last, and what else happens."""
    letters = {Pause: "P", HoldOpen: "H", Gate: "G", Leave: "L"}
    return "".join(
        ("h" if step.startswith(b"HTTP") else "e" if step.startswith(b"0") else "c")
        if isinstance(step, bytes)
        else letters[type(step)]
        for step in found
    )


@each(
    "answer, expected",
    [
        (Answer(), "hccce"),
        (Answer().paced(0.1), "hcPcPce"),
        (Answer().delayed(1), "Phccce"),
        (Answer().stall("start"), "Hhccce"),
        (Answer().stall("head"), "hHccce"),
        (Answer().stall(2), "hccHce"),
        (Answer().stall(2, for_s=1), "hccPce"),
        (Answer().stall(1).stall(3), "hcHccHe"),
        (Answer().cut("start"), "L"),
        (Answer().cut("head"), "hL"),
        (Answer().cut(2), "hccL"),
        (Answer().cut(9), "hccce"),
        (Answer().cut(2, mid_chunk=True), "hcccL"),
        (Answer().cut(mid_chunk=True), "hcL"),
        (Answer().stall(1).cut(2), "hcHcL"),
        (Answer().sent(gate=Gate()), "hGcGcGce"),
        (Answer().sent(gate=Gate()).paced(1), "hGcGPcGPce"),
    ],
)
def test_where_it_stops(answer: Answer, expected: str) -> None:
    assert kinds(done(answer)) == expected


def test_cut_in_the_middle_of_a_chunk() -> None:
    """Its size is told, its end is missing: nobody can take that for the end of the body."""
    found = done(Answer().cut(1, mid_chunk=True, reset=True))
    assert found[1:] == [b"9\r\ndata: 1\n\n\r\n", b"a\r\ndata:", Leave(abrupt=True, reset=True)]
    with pytest.raises(h11.RemoteProtocolError):
        read_with_h11(b"".join(step for step in found if isinstance(step, bytes)), closed=True)


@given(st.integers(0, 400))
def test_cut_after_any_number_of_bytes(size: int) -> None:
    """The head counts; past the end it is cut after everything."""
    full = written(steps(STREAM, PLAIN, seen(), DATE))
    found = done(Answer().cut(after_bytes=size))
    assert b"".join(step for step in found if isinstance(step, bytes)) == full[:size]
    assert found[-1] == Leave(abrupt=True)


def test_a_stream_that_stays_open() -> None:
    assert kinds(done(Answer(), replace(STREAM, pieces=[b"x"], holds=True))) == "hcHe"
    assert kinds(done(Answer(), replace(WHOLE, holds=True))) == "hcH"


def test_raw_bytes_go_as_they_are() -> None:
    answer = Answer(raw=(b"abc", b"def")).sent(close=True)

    def found(changed: Answer) -> list[Step]:
        return carried_out(raw_steps(changed.raw or (), changed.manner, seen()))

    assert found(answer) == [b"abc", b"def", Leave()]
    assert found(answer.sent(close=False)) == [b"abc", b"def"]
    assert found(answer.cut(1)) == [b"abc", Leave(abrupt=True)]
    assert found(answer.cut(after_bytes=4)) == [b"abc", b"d", Leave(abrupt=True)]
    assert found(answer.stall("start").delayed(2).paced(1)) == [Pause(2), HoldOpen(), b"abc", Pause(1), b"def", Leave()]
