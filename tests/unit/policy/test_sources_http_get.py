"""One GET against a real server: what is sent, what is taken, and every way in which it can go wrong."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from breakloop.clock import SystemClock
from breakloop.policy import sources
from breakloop.policy.sources import FetchError, HttpGet
from tests.bundle_server import BundleServer, Handler, Page, bundle_server
from tests.deadlines import DEADLINE_S
from tests.e2e.certificates import Authority

TOKEN = "tok-canary-91"


@pytest.fixture
def server() -> Iterator[BundleServer]:
    with bundle_server() as running:
        yield running


def getter(token: str = TOKEN) -> HttpGet:
    return HttpGet(SystemClock(), token=token)


def refused(url: str, max_bytes: int = 1000) -> str:
    with pytest.raises(FetchError) as caught:
        getter().get(url, {}, max_bytes)
    assert TOKEN not in str(caught.value) + caught.value.hint
    return f"{caught.value} | {caught.value.hint}"


def raw(server: BundleServer, path: str, *pieces: bytes) -> str:
    """Have a path answered with these bytes, as they are."""

    def reply(handler: Handler) -> None:
        for piece in pieces:
            handler.wfile.write(piece)

    server.pages[path] = Page(reply=reply)
    return server.url + path


def test_an_answer_with_its_header_fields(server: BundleServer) -> None:
    """The token goes with it, nothing is to be packed (B-3)."""
    server.put("/a", "content", headers={"X-Own": "1"})
    answer = getter().get(server.url + "/a?q=1", {"Accept": "text/x"}, 7)
    assert (answer.status, answer.body, answer.headers["x-own"]) == (200, b"content", "1")
    path, headers = server.seen[0]
    assert path == "/a?q=1"
    assert (headers["Authorization"], headers["Accept"]) == (f"Bearer {TOKEN}", "text/x")
    assert headers["Accept-Encoding"] == "identity"
    assert headers["User-Agent"].startswith("breakloop/")


def test_without_a_token_none_is_sent(server: BundleServer) -> None:
    """The path of a bare host is / (B-3)."""
    server.put("/", "root")
    assert getter("").get(server.url, {}, 10).body == b"root"
    assert server.field("Authorization") is None


def test_other_statuses_have_no_body(server: BundleServer) -> None:
    """What a server says beside an error is not looked at (B-3)."""
    server.put("/a", "oh", status=500)
    assert getter().get(server.url + "/a", {}, 10).body == b""


def test_chunks_are_put_together(server: BundleServer) -> None:
    """An answer without a length may come in chunks; one that ends early is noticed (B-3)."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert getter().get(raw(server, "/a", head, b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"), {}, 10).body == b"abcde"
    assert "invalid response: IncompleteRead" in refused(raw(server, "/b", head, b"3\r\nabc\r\n"))
    assert "more than the 10 bytes" in refused(raw(server, "/c", head, b"b\r\n" + b"x" * 11 + b"\r\n0\r\n\r\n"), 10)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"garbage\r\n\r\n", "invalid response: BadStatusLine"),
        (b"", "RemoteDisconnected"),
        (b"HTTP/1.1 200 OK\r\n\r\nabc", "has no length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "was cut off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", "has 1001 bytes, more than the 1000 allowed"),
        (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", "redirects to an invalid URL"),
        (b"HTTP/1.1 302 Found\r\nLocation: ftp://x/\r\nContent-Length: 0\r\n\r\n", "redirects to an invalid URL"),
        (
            b"HTTP/1.1 302 Found\r\nLocation: http://x:99999/\r\nContent-Length: 0\r\n\r\n",
            "redirects to an invalid URL",
        ),
        (
            b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
            "redirects to an invalid URL",
        ),
    ],
)
def test_what_is_no_answer(server: BundleServer, answer: bytes, said: str) -> None:
    """Garbage, silence, cut-off and huge answers have a reason, not a stack trace (B-3)."""
    assert said in refused(raw(server, "/a", answer))


def test_a_server_that_says_nothing(server: BundleServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that says nothing: waiting ends (B-3)."""
    monkeypatch.setattr(sources, "_STALL_S", 0.3)

    def stall(_handler: Handler) -> None:
        server.stalled.wait(DEADLINE_S)

    server.pages["/a"] = Page(reply=stall)
    assert "no response within 0.3 s" in refused(server.url + "/a")


def test_a_server_that_drips(server: BundleServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not keep it waiting for ever (B-3)."""
    monkeypatch.setattr(sources, "_WHOLE_S", 0.2)

    def drip(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n")
        for _ in range(200):
            handler.wfile.write(b"x")
            if server.stalled.wait(0.02):
                return

    server.pages["/a"] = Page(reply=drip)
    assert "was not complete after 0.2 s" in refused(server.url + "/a")


def test_nobody_listens() -> None:
    """What the system says, without the URL (B-3)."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert refused(f"http://127.0.0.1:{bound.getsockname()[1]}/a") == "Connection refused | "
    assert "name" in refused("http://policy.invalid/a").lower()


def test_redirects_are_followed_three_times(server: BundleServer) -> None:
    """At most three, relative ones too; a loop ends (B-3)."""
    server.put("/d", "there")
    for path, to in (("/a", "/b"), ("/b", server.url + "/c"), ("/c", "d")):
        server.redirect(path, to, 307)
    assert getter().get(server.url + "/a", {}, 10).body == b"there"
    server.redirect("/0", "/a")
    assert "redirects more than 3 times" in refused(server.url + "/0")
    server.redirect("/loop", "/loop")
    seen = len(server.seen)
    assert "redirects more than 3 times" in refused(server.url + "/loop")
    assert len(server.seen) == seen + 4


def test_the_token_stays_with_its_server(server: BundleServer) -> None:
    """A redirect to another origin does not get the token; one to the same does (B-3, Y-1)."""
    with bundle_server() as other:
        other.put("/b", "there")
        server.redirect("/a", other.url + "/b")
        server.redirect("/own", "/a")
        assert getter().get(server.url + "/own", {}, 10).body == b"there"
    assert [headers["Authorization"] for _, headers in server.seen] == [f"Bearer {TOKEN}"] * 2
    assert other.field("Authorization") is None


def test_tls_is_verified_and_not_left(tmp_path: Path) -> None:
    """A certificate of an unknown authority is refused, and so is a way from https to http (B-3)."""
    authority = Authority(tmp_path)
    with bundle_server(authority.issue("127.0.0.1").server) as server, bundle_server() as plain:
        server.put("/a", "secure")
        plain.put("/b", "insecure")
        server.redirect("/down", plain.url + "/b")
        plain.redirect("/up", server.url + "/a")
        trusting = HttpGet(SystemClock(), tls=authority.client)
        assert trusting.get(server.url + "/a", {}, 10).body == b"secure"
        assert trusting.get(plain.url + "/up", {}, 10).body == b"secure"
        with pytest.raises(FetchError, match="redirects from https to http"):
            trusting.get(server.url + "/down", {}, 10)
        assert plain.seen[-1][0] == "/up"
        assert "its certificate is not trusted" in refused(server.url + "/a")
        assert "policy_ca_file" in refused(server.url + "/a")
