"""Bodies and header fields through the real server: byte for byte, both ways."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Iterator

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard

from breakloop.testing import body, chat_request, fail, raw, say
from breakloop.testing.answer import Framing
from tests.e2e.noise import sha, some, upload
from tests.e2e.proxied import CHAT, JSON, MIB, OCTETS, Proxied, chat, fresh, one_test, proxied

pytestmark = pytest.mark.e2e

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    with proxied(tmp_path_factory.mktemp("bodies")) as both:
        yield both


@pytest.fixture
def proxy(running: Proxied) -> Iterator[Proxied]:
    with one_test(running) as both:
        yield both


# -- there


SIZES = (0, 1, 2000, 65_536, 200_001, 10 * MIB, 10 * MIB + 1, 12 * MIB)
UPLOADS = [
    (size, chunk_bytes) for size in SIZES for chunk_bytes in (0, 777, 100_000) if chunk_bytes != 777 or size < MIB
]


@pytest.mark.parametrize("kind", [OCTETS, JSON])
@pytest.mark.parametrize(("size", "chunk_bytes"), UPLOADS)
def test_request_bodies_pass_byte_for_byte(proxy: Proxied, size: int, chunk_bytes: int, kind: str) -> None:
    """Around every limit where a body is treated in another way, judged or not, framed in either way (D-1)."""
    content = some(size)
    with proxy.client() as client:
        upload(client, content, kind, chunk_bytes=chunk_bytes)
        told = client.answer().json()
        assert (told["body_bytes"], told["body_sha256"]) == (size, sha(content))
        client.ask("GET", "/next")  # what follows is understood as the next request
        assert client.answer().json()["path"] == "/next"


@pytest.mark.parametrize("coding", PACKERS)
@pytest.mark.parametrize("large", [False, True])
def test_compressed_request_bodies_pass_as_they_are(proxy: Proxied, coding: str, large: bool) -> None:
    """Unpacked for judging only (C-9)."""
    text = fresh() + some(400_000).hex() if large else fresh()
    packed = PACKERS[coding](json.dumps(chat_request(text)).encode())
    with proxy.client() as client:
        client.ask("POST", CHAT, packed, JSON, f"Content-Encoding: {coding}")
        assert client.answer().status == 200
    seen = proxy.llm.requests[-1]
    assert (seen.digest, seen.header_all("content-encoding")) == (sha(packed), [coding])


@pytest.mark.parametrize("content", [b"\x1f\x8b broken", b"", b"\xef\xbb\xbf{}", b"\xff" * 100, b"[" * 5000])
def test_odd_bodies_pass_as_they_are(proxy: Proxied, content: bytes) -> None:
    """What cannot be read is forwarded all the same (C-9)."""
    with proxy.client() as client:
        client.ask("POST", CHAT, content, JSON, "Content-Encoding: gzip", f"Content-Length: {len(content)}")
        assert client.answer().status in {200, 400}  # the stand-in's opinion of it
    assert proxy.llm.requests[-1].body == content


# -- and back


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@pytest.mark.parametrize(("size", "version"), [*itertools.product([0, 1, 70_000], ["1.1", "1.0"]), (50 * MIB, "1.1")])
def test_answers_pass_byte_for_byte(proxy: Proxied, size: int, version: str, framing: Framing) -> None:
    """Of any size, however the upstream frames them and the client wants them (D-1)."""
    content = some(size)
    pieces = [content[at : at + 256 * 1024] for at in range(0, size, 256 * 1024)]
    proxy.llm.next(body(pieces, content_type="application/octet-stream").framed(framing))
    with proxy.client() as client:
        client.ask("GET", "/download", version=version)
        found = client.answer()
    assert (found.status, sha(found.body)) == (200, sha(content))
    if framing == "length":
        assert found.framing == "length"
    else:
        assert found.framing == ("chunked" if version == "1.1" else "close")


@pytest.mark.parametrize("coding", PACKERS)
@pytest.mark.parametrize("stream", [False, True])
def test_compressed_answers_pass_as_they_are(proxy: Proxied, coding: str, stream: bool) -> None:
    """The client gets the coding that it asked for, and the upstream's bytes (C-9)."""
    packed: list[bytes] = []

    def pack(content: bytes) -> bytes:
        packed.append(PACKERS[coding](content))
        return packed[-1]

    proxy.llm.next(say("some words").compressed(coding, packed_by=pack))
    with proxy.client() as client:
        client.send(chat("", f"Accept-Encoding: {coding}", stream=stream))
        found = client.answer()
    assert found["content-encoding"] == coding
    assert found.body == packed[-1]


def test_an_answer_that_nobody_can_read_passes(proxy: Proxied) -> None:
    """gzip that is none, of an LLM's answer, is the client's problem (C-9)."""
    proxy.llm.next(body(b"no gzip at all").with_headers(content_encoding="gzip"))
    with proxy.client() as client:
        client.send(chat())
        assert client.answer().body == b"no gzip at all"


def test_trailers_reach_clients_that_can_have_them(proxy: Proxied) -> None:
    """A chunked answer's trailers go on; HTTP/1.0 has none (D-1)."""
    proxy.llm.next(*[body([b"a", b"b"]).with_trailers(("X-Sum", "1"), ("Server-Timing", "x"))] * 2)
    with proxy.client() as client:
        client.ask("GET", "/trailers")
        found = client.answer()
        assert (found.body, found.trailers) == (b"ab", [("X-Sum", "1"), ("Server-Timing", "x")])
        client.ask("GET", "/trailers", version="1.0")
        assert client.answer().body == b"ab"


# -- header fields


SENT = (
    "User-Agent: tests/1.0",
    "X-Unknown: 1",
    "x-UNKNOWN: 2",
    "Accept: */*",
    "X-Empty:",
    "X-Spaces:   a  b \t c",
    "X-Bytes: \xe4\xff",
    "X-Unknown: 3",
    "X_Under: score",
    f"X-Long: {'y' * 8000}",
    "Authorization: Bearer sk-canary-bodies",
    "Cookie: a=b; c=d",
    "Cookie: e=f",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "Forwarded: for=192.0.2.1",
    "X-Forwarded-For: 192.0.2.1",
    'X-Quote: "a, b", c',
)


def as_pairs(lines: tuple[str, ...]) -> list[tuple[bytes, bytes]]:
    parts = [line.encode("latin-1").partition(b":") for line in lines]
    return [(name, value.strip(b" \t")) for name, _, value in parts]


def test_request_fields_pass_in_their_order_and_spelling(proxy: Proxied) -> None:
    """Unknown ones, repeated ones, odd ones; only Host is set, and what is ours is added at the end (D-1)."""
    with proxy.client() as client:
        client.ask("POST", "/v1/things?a=1&a=2&b=%20", b"xyz", *SENT)
        client.answer()
    seen = proxy.llm.requests[-1]
    assert seen.target == "/v1/things?a=1&a=2&b=%20"
    assert seen.headers[0] == (b"host", f"127.0.0.1:{proxy.llm.port}".encode())
    assert seen.headers[1 : len(SENT) + 1] == as_pairs(SENT)
    assert [name for name, _ in seen.headers[len(SENT) + 1 :]] == [b"content-length", b"X-Breakloop-Hop"]


def test_answer_fields_pass_in_their_order_and_spelling(proxy: Proxied) -> None:
    """The same the other way; what is between two neighbours stays between them (D-1, A-5)."""
    lines = (*SENT, "Set-Cookie: a=1", "Set-Cookie: b=2", "Server: up", "Date: yesterday", 'ETag: W/"x"')
    head = "\r\n".join(("HTTP/1.1 299 Very Special", *lines, "Keep-Alive: timeout=5", "Connection: keep-alive, X-Mine"))
    head += "\r\nX-Mine: 1\r\nContent-Length: 2\r\n\r\nhi"
    proxy.llm.next(raw(head.encode("latin-1"), close=False))
    with proxy.client() as client:
        client.ask("GET", "/fields")
        found = client.answer()
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in found.fields]
    assert (found.status, found.body) == (299, b"hi")
    assert pairs[: len(lines)] == as_pairs(lines)
    assert [name for name, _ in pairs[len(lines) :]] == [b"X-Breakloop-Request-Id", b"content-length"]


def test_realistic_heads_pass(proxy: Proxied) -> None:
    """24 fields of a provider's edge, in a row of answers on one connection (D-1)."""
    proxy.llm.next(*[say("hi").realistic()] * 3, fail(529, retry_after=7).realistic())
    with proxy.client() as client:
        client.send(chat() + chat() + chat() + chat())
        found = [client.answer() for _ in range(4)]
    assert [one.status for one in found] == [200, 200, 200, 529]
    assert min(len(one.fields) for one in found) >= 22
    assert found[-1]["retry-after"] == "7"
