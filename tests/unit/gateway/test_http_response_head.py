"""Heads of answers: what is read, what the client gets of them, and what is no answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.errors import UpstreamError
from breakloop.gateway.http_request import CHUNKED
from breakloop.gateway.http_response import BODY_UNTIL_CLOSE, ResponseHead, ResponseHeadParser
from tests.each import each


def quick() -> ResponseHeadParser:
    """A parser that learns the names of a head at once."""
    heads = ResponseHeadParser()
    heads.learns_after = 1
    return heads


def parse(*lines: bytes, method: str = "GET") -> ResponseHead:
    """Read a head again, with known names, and with known values: all must be the same."""
    heads = quick()
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    first = heads.parse(head, method)
    assert [heads.parse(head, method) for _ in range(2)] == [first] * 2
    return first


def test_end_to_end_fields_pass_as_they_are() -> None:
    """Unknown fields, repeated ones and their spelling belong to the client (D-1)."""
    head = parse(b"HTTP/1.1 200 OK", b"X-Odd_Name:  v ", b"set-cookie: a", b"Set-Cookie: b", b"Content-Length: 3")
    assert head.lines == b"X-Odd_Name:  v \r\nset-cookie: a\r\nSet-Cookie: b\r\n"
    assert (head.status, head.line, head.length, head.keep_alive) == (200, b"HTTP/1.1 200 OK\r\n", 3, True)
    assert not head.headers


@each(
    "lines, headers, is_plain",
    [
        ([b"Content-Type: application/json"], {"content-type": b"application/json"}, True),
        ([b"CONTENT-TYPE:\tapplication/json; a=b "], {"content-type": b"application/json; a=b"}, True),
        ([b"Content-Type: text/event-stream"], {"content-type": b"text/event-stream"}, False),
        ([b"Content-Type: text/html"], {"content-type": b"text/html"}, False),
        ([b"Content-Type:"], {"content-type": b""}, False),  # what the client asked for decides
        ([], {}, False),
        (
            [b"Content-Type: application/json", b"Content-Encoding: gzip"],
            {"content-type": b"application/json", "content-encoding": b"gzip"},
            False,
        ),
    ],
)
def test_what_is_needed_to_read_the_body(lines: list[bytes], headers: dict[str, bytes], is_plain: bool) -> None:
    """A body that can be read when it is complete is told from one that is compressed, or a stream, or an error."""
    rest = b"X: y", *lines, b"Connection: keep-alive", b"Content-Length: 3"
    head = parse(b"HTTP/1.1 200 OK", *rest)
    assert (head.headers, head.is_plain) == (headers, is_plain)
    failed = parse(b"HTTP/1.1 400 Bad Request", *rest)
    assert (failed.headers, failed.is_plain) == (headers, False)


def test_hop_by_hop_fields_stay_here() -> None:
    """What is between us and the upstream is not the client's business (D-1)."""
    names = ("Connection", "Keep-Alive", "Transfer-Encoding", "Proxy-Authenticate", "Proxy-Connection", "Upgrade", "TE")
    values = {"Connection": "x-private, close", "Transfer-Encoding": "chunked"}
    lines = [f"{name}: {values.get(name, 'v')}".encode() for name in names]
    head = parse(b"HTTP/1.1 200 OK", *lines, b"X-Private: 1", b"X-Public: 2")
    assert (head.lines, head.keep_alive) == (b"X-Public: 2\r\n", False)


def test_connection_cannot_take_what_the_client_needs() -> None:
    """`Connection: content-type` must not strip it."""
    head = parse(b"HTTP/1.1 200 OK", b"Connection: content-type, retry-after", b"Content-Type: a/b", b"Retry-After: 1")
    assert head.lines == b"Content-Type: a/b\r\nRetry-After: 1\r\n"


def test_our_own_names_mean_us() -> None:
    """Fields of an upstream with our prefix are renamed, whatever their spelling: what another breakloop states reaches
    the client, and nobody can speak for this one (D-1, Y-3)."""
    fields = b"X-Breakloop-Reason: a", b"x_breakloop_request-id:b", b"X-Breakloop-Upstream-Reason: c", b"X-Own-Note: d"
    renamed = (
        b"X-Breakloop-Upstream-Reason: a\r\nX-Breakloop-Upstream-request-id:b\r\n"
        b"X-Breakloop-Upstream-Upstream-Reason: c\r\nX-Own-Note: d\r\n"
    )
    assert parse(b"HTTP/1.1 200 OK", *fields).lines == renamed
    own = ResponseHeadParser("X-Own-").parse(b"HTTP/1.1 200 OK\r\n" + b"\r\n".join(fields) + b"\r\n\r\n", "GET")
    assert own.lines == b"\r\n".join((*fields[:3], b"X-Own-Upstream-Note: d", b""))


@each(
    "lines, method, length, keeps, announced",
    [
        ([b"HTTP/1.1 200 OK", b"Content-Length: 12"], "GET", 12, True, b""),
        ([b"HTTP/1.1 200 OK", b"Transfer-Encoding: Chunked"], "GET", CHUNKED, True, b""),
        ([b"HTTP/1.1 200 OK"], "GET", BODY_UNTIL_CLOSE, False, b""),
        ([b"HTTP/1.0 200 OK", b"Content-Length: 1"], "GET", 1, False, b""),
        ([b"HTTP/1.0 200 OK", b"Content-Length: 1", b"Connection: keep-alive"], "GET", 1, True, b""),
        ([b"HTTP/1.1 200 OK", b"Content-Length: 12"], "HEAD", 0, True, b"content-length: 12\r\n"),
        ([b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked"], "HEAD", 0, True, b""),
        ([b"HTTP/1.1 304 Not Modified", b"Content-Length: 9"], "GET", 0, True, b"content-length: 9\r\n"),
        ([b"HTTP/1.1 204 No Content"], "GET", 0, True, b""),
        ([b"HTTP/1.1 204", b"Connection: close"], "GET", 0, False, b""),
    ],
)
def test_where_the_body_ends(lines: list[bytes], method: str, length: int, keeps: bool, announced: bytes) -> None:
    head = parse(*lines, method=method)
    assert (head.length, head.keep_alive, head.announced) == (length, keeps, announced)


def test_a_reason_phrase_may_be_missing() -> None:
    assert parse(b"HTTP/1.1 200").line == b"HTTP/1.1 200 \r\n"
    assert parse(b"HTTP/1.0 404 Nope").line == b"HTTP/1.1 404 Nope\r\n"


@each(
    "lines",
    [
        [b"HTTP/2 200 OK"],
        [b"HTTP/1.1 20 OK"],
        [b"HTTP/1.1 2000 OK"],
        [b"SSH-2.0-OpenSSH_9.2"],
        [b"HTTP/1.1 200 OK", b"Bad Name: 1"],
        [b"HTTP/1.1 200 OK", b" folded: 1"],
        [b"HTTP/1.1 200 OK", b"no colon"],
        [b"HTTP/1.1 200 OK", b"X: a\nY: b"],
        [b"HTTP/1.1 200 OK", b"Content-Length: 1", b"Content-Length: 1"],
        [b"HTTP/1.1 200 OK", b"Content-Length: 1", b"Transfer-Encoding: chunked"],
        [b"HTTP/1.1 200 OK", b"Content-Length: -1"],
        [b"HTTP/1.1 200 OK", b"Content-Length: 1, 1"],
        [b"HTTP/1.1 200 OK", b"Content-Length: 9999999999999999999"],
        [b"HTTP/1.1 200 OK", b"Transfer-Encoding: gzip, chunked"],
        [b"HTTP/1.0 200 OK", b"Transfer-Encoding: chunked"],
        [b"HTTP/1.1 200 OK", *[b"A: b"] * 501],
    ],
)
def test_what_can_be_read_in_two_ways_is_no_answer(lines: list[bytes]) -> None:
    """The other way round: an ambiguous answer would let an upstream smuggle one to the next client (Y-3)."""
    with pytest.raises(UpstreamError):
        parse(*lines)


def _sized(size: bytes, status: bytes = b"200 OK", more: bytes = b"") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\nX: y\r\nContent-Length: " + size + b"\r\n" + more + b"\r\n"


def test_a_head_that_recurs_has_its_own_length() -> None:
    """Of two heads that differ only in the length, the second is not parsed anew."""
    heads = quick()
    first = [heads.parse(_sized(b"3"), "POST") for _ in range(3)][-1]
    other = heads.parse(_sized(b"0041"), "POST")
    assert (first.length, other.length) == (3, 41)
    assert (other.status, other.line, other.lines, other.keep_alive, other.announced) == (
        (200, b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", True, b"")
    )


def test_the_length_of_a_head_is_only_that_of_a_body_where_it_has_one() -> None:
    """A response to HEAD and a 304 announce a length, and have no body, whatever was received before."""
    heads = quick()
    for size in (b"3", b"3", b"3", b"0", b"7"):
        assert heads.parse(_sized(size), "GET").length == int(size)
        found = heads.parse(_sized(size), "HEAD")
        assert (found.length, found.announced) == (0, b"content-length: " + size + b"\r\n")
        found = heads.parse(_sized(size, b"304 Not Modified"), "GET")
        assert (found.length, found.announced) == (0, b"content-length: " + size + b"\r\n")


@each(
    "head",
    [
        _sized(b""),
        _sized(b"3x"),
        _sized(b"9" * 19),
        _sized(b"3", more=b"Content-Length: 3\r\n"),
        _sized(b"3", more=b"Transfer-Encoding: chunked\r\n"),
        _sized(b"3", more=b"X: \x00\r\n"),
        _sized(b"3", more=b"X\r\n"),
        _sized(b"3", more=b"X : y\r\n"),
        _sized(b"3", more=b"X: a\nY: b\r\n"),
    ],
)
def test_what_is_invalid_stays_invalid_after_a_valid_head(head: bytes) -> None:
    heads = quick()
    for _ in range(3):
        heads.parse(_sized(b"3"), "POST")
    for _ in range(3):
        with pytest.raises(UpstreamError):
            heads.parse(head, "POST")


def test_a_name_that_ends_like_content_length_is_not_taken_for_it() -> None:
    heads = quick()
    for size in (b"1", b"2", b"2", b"3"):
        found = heads.parse(_sized(b"5", more=b"X-Length: " + size + b"\r\n"), "POST")
        assert (found.length, found.lines) == (5, b"X: y\r\nX-Length: " + size + b"\r\n")


@each("value", [b"", b"a", b"  a ", b"\ta\xe9", b'a;b="c"'])
def test_a_value_may_change_under_a_known_name(value: bytes) -> None:
    heads = quick()
    for number in range(3):
        heads.parse(_sized(b"3", more=b"Name: %d\r\nX-Breakloop-A: %d\r\n" % (number, number)), "POST")
    found = heads.parse(_sized(b"3", more=b"Name:" + value + b"\r\nX-Breakloop-A:" + value + b"\r\n"), "POST")
    assert found.lines == b"X: y\r\nName:" + value + b"\r\nX-Breakloop-Upstream-A:" + value + b"\r\n"


_VALUES = st.one_of(
    st.sampled_from(
        [b"", b"3", b"keep-alive", b"close", b"x-a", b"chunked", b"text/plain", b" 7\t", b"Keep-Alive, X-A"]
    ),
    st.binary(max_size=6),
)
_SOME_NAMES = (b"X-A", b"Content-Length", b"Connection", b"Content-Type", b"transfer-encoding", b"X-Breakloop-Reason")


@given(
    names=st.lists(st.sampled_from(_SOME_NAMES), max_size=4),
    values=st.lists(_VALUES, min_size=4, max_size=4),
    seen=st.lists(_VALUES, min_size=4, max_size=4),
    method=st.sampled_from(["GET", "HEAD"]),
)
def test_known_names_make_no_difference(
    names: list[bytes], values: list[bytes], seen: list[bytes], method: str
) -> None:
    """A head is read, or refused, as by a server that has never had one from this upstream (Y-3)."""

    def head(given_values: list[bytes]) -> bytes:
        lines = [b"%b: %b\r\n" % field for field in zip(names, given_values, strict=False)]
        return b"HTTP/1.1 200 OK\r\n" + b"".join(lines) + b"\r\n"

    def read(heads: ResponseHeadParser, raw: bytes) -> ResponseHead | str:
        try:
            return heads.parse(raw, method)
        except UpstreamError as error:
            return str(error)

    experienced = quick()
    for before in (seen, [b"3", b"close", b"text/plain", b"x"]):
        for _ in range(2):
            read(experienced, head(before))
    fresh = read(ResponseHeadParser(), head(values))
    assert [read(experienced, head(values)) for _ in range(3)] == [fresh] * 3


def test_heads_with_as_many_lines_are_told_apart_by_their_names() -> None:
    """Responses of two kinds in turns, each with a name that begins like one of the other."""
    heads = quick()
    for number in range(4):
        for name in (b"Content-Length", b"Content-Length-Hint", b"X-Content-Length"):
            found = heads.parse(_sized(b"3", more=b"X-%d: y\r\n" % (number % 2)), "POST")
            assert (found.length, found.lines) == (3, b"X: y\r\nX-%d: y\r\n" % (number % 2))
            line = name + b": 7\r\n"
            found = heads.parse(b"HTTP/1.1 200 OK\r\nConnection: close\r\nX: y\r\n" + line + b"\r\n", "POST")
            is_length = name == b"Content-Length"
            assert (found.length, found.lines) == (
                (7, b"X: y\r\n") if is_length else (BODY_UNTIL_CLOSE, b"X: y\r\n" + line)
            )


def test_values_that_tell_how_to_read_a_body_are_kept_up_to_a_bound() -> None:
    """An upstream with another Content-Type each time is read as one that always sends the same, and is not kept."""
    heads = quick()
    for number in range(200):
        kind = b"text/x-%d" % number if number % 2 else b"application/" + b"x" * 2000
        found = heads.parse(_sized(b"%d" % number, more=b"Content-Type: " + kind + b"\r\n"), "POST")
        assert (found.length, found.headers) == (number, {"content-type": kind})
    (layout,) = heads._recent
    assert 0 < len(layout._likes) <= layout.likes_max
    assert all(len(b"".join(key)) < 1100 and not head.lines for key, head in layout._likes.items())


def test_names_are_learned_when_they_recur() -> None:
    """An expression for the names is made for heads that come again and again, and for the latest kinds of these."""
    heads = ResponseHeadParser()
    for number in range(20):
        assert heads.parse(_sized(b"%d" % number), "POST").length == number
        assert bool(heads._recent) is (number >= 15)
    heads = quick()
    for number in range(600):
        more = b"X-%d: y\r\n" % number
        assert heads.parse(_sized(b"7", more=more), "POST").lines == b"X: y\r\n" + more
    assert (len(heads._recent), len(heads._layouts) <= 64, len(heads._seen) <= 512) == (8, True, True)


@each(
    "more",
    [[b"X-Breakloop-A: b"], [b"Connection: close", b"Connection: close"], [b"X-%d: y" % at for at in range(101)]],
)
def test_names_that_are_not_learned(more: list[bytes]) -> None:
    """Names that are changed, that come twice and matter, or that are too many."""
    heads = quick()
    head = _sized(b"3", more=b"".join(line + b"\r\n" for line in more))
    assert heads.parse(head, "POST") == heads.parse(head, "POST")
    assert not heads._recent
