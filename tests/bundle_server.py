"""A real HTTP(S) server on loopback that gives a bundle as told: with an ETag, with faults, slowly, packed, elsewhere."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Reply = Callable[["Handler"], None]


@dataclass
class Page:
    """What is behind a path. With `etag` or `modified`, whoever has it already is answered 304."""

    body: bytes = b""
    status: int = 200
    etag: str = ""
    modified: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    reply: Reply | None = None  # does the whole answer itself


class BundleServer:
    """Pages by path, and every request that came."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.seen: list[tuple[str, Message]] = []
        self.gave: list[int] = []
        self.url = ""
        self.stalled = threading.Event()  # set: whoever stalls goes on

    def put(self, path: str, body: str | bytes, **more: object) -> Page:
        raw = body.encode() if isinstance(body, str) else body
        self.pages[path] = Page(raw, **more)  # type: ignore[arg-type]
        return self.pages[path]

    def redirect(self, path: str, to: str, status: int = 302) -> None:
        self.pages[path] = Page(status=status, headers={"Location": to})

    def field(self, name: str, at: int = -1) -> str | None:
        """A header field of a request."""
        return self.seen[at][1].get(name)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    given: BundleServer

    def do_GET(self) -> None:
        self.close_connection = True
        self.given.seen.append((self.path, self.headers))
        page = self.given.pages.get(self.path.partition("?")[0], Page(status=404))
        if page.reply is not None:
            page.reply(self)
            return
        known = page.etag and self.headers.get("If-None-Match") == page.etag
        known = known or (page.modified and self.headers.get("If-Modified-Since") == page.modified)
        status = 304 if known and page.status == 200 else page.status
        self.given.gave.append(status)
        self.send_response(status)
        for name, value in page.headers.items():
            self.send_header(name, value)
        for name, value in (("ETag", page.etag), ("Last-Modified", page.modified)):
            if value:
                self.send_header(name, value)
        if status != 304:
            self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if status == 200:
            self.wfile.write(page.body)

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@contextmanager
def bundle_server(tls: ssl.SSLContext | None = None, port: int = 0) -> Iterator[BundleServer]:
    """Run one in a thread."""
    given = BundleServer()
    handler = type("Given", (Handler,), {"given": given})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_args: None  # type: ignore[method-assign]  # clients that refuse us are the point
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    given.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield given
    finally:
        given.stalled.set()
        server.shutdown()
        server.server_close()
        thread.join()
