"""Heads: what is read, what is refused, and that remembered lines change nothing but the cost."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.errors import RequestError
from breakloop.gateway.http_request import (
    CHUNKED,
    CLOSE,
    KEEP,
    HeadCache,
    HeadParser,
    Request,
    RequestLimits,
    early_error,
)
from tests.each import each


def parse(head: bytes, limits: RequestLimits | None = None) -> Request:
    """Read a head three times, the second time from remembered lines, the third as one that is known."""
    parser = HeadParser(limits or RequestLimits())
    first = parser.parse(head, "192.0.2.7")
    assert parser.parse(head, "192.0.2.7") == first
    third = parser.parse(head, "192.0.2.7")
    third.template = None
    assert third == first
    return first


def refused(head: bytes, limits: RequestLimits | None = None) -> int:
    parser = HeadParser(limits or RequestLimits())
    with pytest.raises(RequestError) as first:
        parser.parse(head, "")
    with pytest.raises(RequestError) as second:
        parser.parse(head, "")
    assert (second.value.status, str(second.value)) == (first.value.status, str(first.value))
    return first.value.status


def test_request_fields() -> None:
    request = parse(b"GET /a/b?c=%20d HTTP/1.1\r\nHost: a.example:8080\r\nX-API_Key: k\r\nEmpty:\r\n\r\n")
    assert (request.method, request.target, request.peer) == ("GET", b"/a/b?c=%20d", "192.0.2.7")
    assert request.headers == {"host": b"a.example:8080", "x-api-key": b"k", "empty": b""}
    assert request.repeated == ()
    assert request.raw.split(b"\r\n")[1:] == [b"Host: a.example:8080", b"X-API_Key: k", b"Empty:", b"", b""]
    assert (request.length, request.connection, request.expects_continue, request.body) == (0, b"", False, b"")


def test_first_value_wins_and_the_others_are_kept() -> None:
    """Names that differ only by case, `-` or `_` are one field (C-7)."""
    request = parse(b"GET / HTTP/1.1\r\nX_Key: 1\r\nHost: a\r\nx-key: 2\r\nX-Key: 3\r\nX-Key: 3\r\n\r\n")
    assert request.headers == {"x-key": b"1", "host": b"a"}
    assert request.repeated == (("x-key", b"2"), ("x-key", b"3"), ("x-key", b"3"))


def test_white_space_around_a_value_is_no_part_of_it() -> None:
    """A caller must not become another caller by a space after its key."""
    request = parse(b"GET / HTTP/1.1\r\nHost: a\r\nX-Key: \t k 1 \t\r\nY: 1\t2\r\n\r\n")
    assert request.headers == {"host": b"a", "x-key": b"k 1", "y": b"1\t2"}


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PATCH", "DELETE", "PROPFIND", "M-SEARCH", "QUERY"])
def test_methods_of_llhttp_are_taken(method: str) -> None:
    """Any method that llhttp knows (D-1)."""
    assert parse(f"{method} / HTTP/1.1\r\nHost: a\r\n\r\n".encode()).method == method


@pytest.mark.parametrize("method", ["FOO", "get", "CONNECT", "TRACE", "PRI", "DESCRIBE", "GETX"])
def test_other_methods_get_501(method: str) -> None:
    """Else 501. CONNECT and PRI ask for something else than an answer; that of TRACE would show a held key (D-1)."""
    assert refused(f"{method} / HTTP/1.1\r\nHost: a\r\n\r\n".encode()) == 501


@each(
    "line, status",
    [
        (b"GET /", 400),
        (b"GET / HTTP/0.9", 505),
        (b"GET / HTTP/2.0", 505),
        (b"PRI * HTTP/2.0", 505),
        (b"GET / HTTP/1.10", 400),
        (b"GET / http/1.1", 400),
        (b"GET / HTTP/1.1 ", 400),
        (b"GET  / HTTP/1.1", 400),
        (b" GET / HTTP/1.1", 400),
        (b"GET\t/\tHTTP/1.1", 400),
        (b"GET http://a.example/ HTTP/1.1", 400),
        (b"CONNECT a.example:443 HTTP/1.1", 501),
        (b"OPTIONS * HTTP/1.1", 400),
        (b"GET a HTTP/1.1", 400),
        (b"GET /#fragment HTTP/1.1", 400),
        (b"GET /\xc3\xa4 HTTP/1.1", 400),
        (b"GET /\x7f HTTP/1.1", 400),
        (b"GET /a\rb HTTP/1.1", 400),
        (b"G@T / HTTP/1.1", 400),
        (b"", 400),
    ],
)
def test_request_lines_refused(line: bytes, status: int) -> None:
    """Origin-form and HTTP/1.x only (Y-3)."""
    assert refused(line + b"\r\nHost: a\r\n\r\n") == status


def test_one_empty_line_before_a_request_is_skipped_and_two_are_not() -> None:
    assert parse(b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n").headers == {"host": b"a"}
    assert refused(b"\r\n\r\n") == 400


@each(
    "fields",
    [
        b"",  # no Host
        b"Host: a\r\nHost: a\r\n",
        b"Host: a\r\nHOST: b\r\n",
        b"Host: a b\r\n",
        b"Host: a/b\r\n",
        b"Host: u@a\r\n",
        b"Host: a,b\r\n",
        b"Host : a\r\n",
        b"Host: a\r\n folded\r\n",
        b" Host: a\r\n",
        b"Host: a\r\nX\r\n",
        b"Host: a\r\n: x\r\n",
        b"Host: a\r\nX Y: x\r\n",
        b"Host: a\r\nX: a\x00b\r\n",
        b"Host: a\r\nX: a\x0bb\r\n",
        b"Host: a\r\nX: a\rb\r\n",
        b"Host: a\r\nX: a\nY: b\r\n",
        b"Host: a\r\nX\xff: a\r\n",
        b"Host: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n",
        b"Host: a\r\nContent-Length: 3, 3\r\n",
        b"Host: a\r\nContent-Length: +3\r\n",
        b"Host: a\r\nContent-Length: -3\r\n",
        b"Host: a\r\nContent-Length: 0x3\r\n",
        b"Host: a\r\nContent-Length: 1_0\r\n",
        b"Host: a\r\nContent-Length: 3 3\r\n",
        b"Host: a\r\nContent-Length:\r\n",
        b"Host: a\r\nContent-Length: 9999999999999999999\r\n",
        b"Host: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        b"Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        b"Host: a\r\nTransfer-Encoding: gzip, chunked\r\n",
        b"Host: a\r\nTransfer-Encoding: chunked, chunked\r\n",
        b"Host: a\r\nTransfer-Encoding: identity\r\n",
        b"Host: a\r\nTransfer-Encoding: xchunked\r\n",
        b"Host: a\r\nTransfer-Encoding: \x0bchunked\r\n",
        b"Host: a\r\nTransfer-Encoding:\r\n",
        b"Host: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Host: a\r\nContent_Length: 3\r\n",
        b"Host: a\r\nContent-Length: 3\r\nCONTENT_LENGTH: 4\r\n",
        b"Host: a\r\nTransfer_Encoding: chunked\r\n",
        b"Host: a\r\nContent-Length: 3\r\nTransfer_Encoding: chunked\r\n",
    ],
)
def test_ambiguous_heads_get_400(fields: bytes) -> None:
    """Nothing that two servers could read in two ways, `_` spelling of framing fields included (Y-3)."""
    assert refused(b"POST / HTTP/1.1\r\n" + fields + b"\r\n") == 400


def test_framing() -> None:
    start = b"POST / HTTP/1.1\r\nHost: a\r\n"
    assert parse(start + b"Content-Length: 12\r\n\r\n").length == 12
    assert parse(start + b"Content-Length: 007 \r\n\r\n").length == 7
    assert parse(start + b"transfer-encoding: Chunked\r\n\r\n").length == CHUNKED


def test_http_1_0_may_leave_out_host_but_not_send_transfer_encoding() -> None:
    assert parse(b"GET / HTTP/1.0\r\n\r\n").headers == {}
    assert refused(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n") == 400
    assert refused(b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n") == 400


@pytest.mark.parametrize(
    ("version", "fields", "line"),
    [
        ("1.1", "", b""),
        ("1.1", "Connection: keep-alive\r\n", b""),
        ("1.1", "Connection: Close\r\n", CLOSE),
        ("1.1", "Connection: foo, close\r\n", CLOSE),
        ("1.1", "Connection: foo\r\nConnection: close\r\n", CLOSE),
        ("1.1", "Connection: closed\r\n", b""),
        ("1.0", "", CLOSE),
        ("1.0", "Connection: Keep-Alive\r\n", KEEP),
        ("1.0", "Connection: keep-alive, close\r\n", CLOSE),
    ],
)
def test_keep_alive(version: str, fields: str, line: bytes) -> None:
    """HTTP/1.1 keeps alive unless told not to, HTTP/1.0 only when asked (D-1)."""
    assert parse(f"GET / HTTP/{version}\r\nHost: a\r\n{fields}\r\n".encode()).connection == line


def test_upgrades() -> None:
    """h2c, which Java's client always offers, is ignored; websockets are refused with an answer."""
    start = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: 5\r\nUpgrade: "
    request = parse(start + b"h2c\r\nHTTP2-Settings: AAMA\r\n\r\n")
    assert (request.length, request.headers["http2-settings"], request.connection) == (5, b"AAMA", b"")
    assert refused(start + b"WebSocket\r\n\r\n") == 426


def test_expectations() -> None:
    start = b"POST / HTTP/1.%d\r\nHost: a\r\nContent-Length: 5\r\nExpect: %b\r\n\r\n"
    assert parse(start % (1, b"100-Continue")).expects_continue
    assert not parse(start % (0, b"100-continue")).expects_continue
    assert refused(start % (1, b"200-ok")) == 417


def test_field_count_and_line_length() -> None:
    """200 fields and no more; a target has its own limit (Y-2)."""
    limits = RequestLimits(fields=3, request_line_bytes=30)
    line = b"GET /%b HTTP/1.1\r\n"
    assert parse(line % b"" + b"Host: a\r\nA: 1\r\nB: 2\r\n\r\n", limits).headers["b"] == b"2"
    assert refused(line % b"" + b"Host: a\r\nA: 1\r\nB: 2\r\nC: 3\r\n\r\n", limits) == 431
    fits = b"x" * (30 - len(line % b""))
    assert parse(line % fits + b"Host: a\r\n\r\n", limits).target == b"/" + fits
    assert refused(line % (fits + b"x") + b"Host: a\r\n\r\n", limits) == 414


def test_what_is_remembered_is_bounded() -> None:
    """Memory stays bounded under any stream of unique requests (Y-2)."""
    parser = HeadParser(RequestLimits())
    fields = parser._field.__self__  # type: ignore[attr-defined]
    for number in range(5000):
        request = parser.parse(b"GET /%d HTTP/1.1\r\nHost: a\r\nX-%d: 1\r\n\r\n" % (number, number), "")
        assert (request.target, request.headers[f"x-{number}"]) == (b"/%d" % number, b"1")
        assert len(fields) <= 2048
        assert len(parser._request_lines) <= 2048
    long = b"x" * 2000
    request = parser.parse(b"GET /" + long + b" HTTP/1.1\r\nHost: a\r\nY: " + long + b"\r\n\r\n", "")
    assert (request.target, request.headers["y"]) == (b"/" + long, long)
    assert max(map(len, [*fields, *parser._request_lines])) <= 1024


@each(
    "data, status",
    [
        (b"", None),
        (b"GET / HTTP/1.1\r\nHost", None),
        (b"\r\nGET", None),
        (b"\x16\x03\x01\x02\x00", 400),  # a TLS hello
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET /" + b"x" * 30, 414),
        (b"\r\nGET /" + b"x" * 24, None),
        (b"\r\nGET /" + b"x" * 25, 414),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 100, 431),
        (b"GET /" + b"x" * 30 + b"\n" + b"x" * 100, 414),
        (b"GET / HTTP/1.1\r\nX:\n" + b"x" * 100, 400),
    ],
)
def test_faults_of_an_unfinished_head(data: bytes, status: int | None) -> None:
    """Counted before parsing, and refused without waiting for the end that may never come (Y-2)."""
    refusal = early_error(data, 0, len(data), 0, RequestLimits(head_bytes=80, request_line_bytes=30))
    assert (refusal.status if refusal else None) == status


def sized(size: str, name: str = "Content-Length", more: str = "") -> bytes:
    return f"POST /v1/x HTTP/1.1\r\nHost: a\r\nX-Key: k\r\n{name}: {size}\r\n{more}\r\n".encode("latin-1")


def test_a_head_with_another_length_is_read_as_any_other() -> None:
    """Agents send the same head again and again, with a longer body each time (Y-3)."""
    parser = HeadParser(RequestLimits())
    for size in ("7", "8"):
        assert parser.parse(sized(size), "").template is None  # met once, and kept the second time
    known = parser.parse(sized("0009", more="X-Later: 1\r\n"), "")
    assert known.template is None
    known = parser.parse(sized("0009"), "192.0.2.9")
    assert known.template is not None
    fresh = HeadParser(RequestLimits()).parse(sized("0009"), "192.0.2.9")
    assert (known.length, known.headers["content-length"], known.raw) == (9, b"0009", sized("0009"))
    known.headers["x-key"] = b"mine"
    known.connection = CLOSE
    again = parser.parse(sized("0009"), "192.0.2.9")
    assert msgspec.structs.replace(again, template=None) == fresh  # nothing that was done to the other one


@pytest.mark.parametrize("size", ["-1", "+1", "1 2", "", "1" * 19, "0x1", "1,1", "\xb2"])
def test_a_known_head_does_not_make_a_length_of_what_is_none(size: str) -> None:
    """The number is checked each time (Y-3)."""
    parser = HeadParser(RequestLimits())
    for _ in range(3):
        parser.parse(sized("7"), "")
    with pytest.raises(RequestError) as error:
        parser.parse(sized(size), "")
    assert error.value.status == 400


@pytest.mark.parametrize("head", [sized("7", "X-Length"), b"\r\n" + sized("7"), sized("7", more="X-Length: 8\r\n")])
def test_only_heads_whose_length_stands_last_of_its_kind_are_known(head: bytes) -> None:
    parser = HeadParser(RequestLimits())
    assert [parser.parse(head, "").template for _ in range(3)] == [None] * 3


def test_heads_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends something new each time fills nothing (Y-2)."""
    monkeypatch.setattr(HeadCache, "max_entries", 2)
    monkeypatch.setattr(HeadCache, "max_seen", 4)
    likes = HeadCache[str]()

    def add(key: bytes) -> None:
        if likes.recurs(key):
            likes.put(key, "known")

    for number in range(9):
        add(b"%d" % number)
    assert len(likes) == 0
    for number in range(3):
        for _ in range(2):
            add(b"again %d" % number)
    assert 0 < len(likes) <= 2
    likes.clear()
    for _ in range(3):
        add(b"x" * (HeadCache.max_key + 1))
    assert len(likes) == 0


@pytest.mark.slow
@given(
    st.lists(
        st.sampled_from(["Connection: close", "connection: keep-alive, x", "Expect: 100-continue", "A: 1", "a: 2"])
    ),
    st.integers(0, 10**18 - 1),
    st.sampled_from(["content-length", "Content-Length", "CONTENT-LENGTH"]),
)
def test_what_is_known_changes_nothing_but_the_cost(fields: list[str], size: int, name: str) -> None:
    """Whatever else stands in the head (Y-3)."""
    head = sized(str(size), name, "".join(f"{field}\r\n" for field in fields))
    parser = HeadParser(RequestLimits())
    for length in ("1", "2"):
        parser.parse(sized(length, name, "".join(f"{field}\r\n" for field in fields)), "")
    known, fresh = parser.parse(head, "p"), HeadParser(RequestLimits()).parse(head, "p")
    assert msgspec.structs.replace(known, template=None) == fresh
    assert list(known.headers) == list(fresh.headers)
    assert (known.template is not None) is (name != "CONTENT-LENGTH")
