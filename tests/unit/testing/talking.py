"""Shared by these tests: requests as the stand-in sees them, answers taken apart, raw sockets, a certificate."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import h11
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from breakloop.testing.answer import Answer, Manner
from breakloop.testing.connection import Leave, Rendered, Step
from breakloop.testing.http import SeenRequest
from breakloop.testing.providers.base import ProviderRequest

CHAT = "/v1/chat/completions"
DATE = "Fri, 15 Jan 2027 08:00:00 GMT"


def seen(
    path: str = CHAT, fields: Any = None, *, method: str = "POST", version: str = "1.1", **headers: str
) -> SeenRequest:
    """A complete request, the first one of a stand-in."""
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    made = SeenRequest(method, path, version, [(b"Host", b"x"), *pairs])
    made.take(b"" if fields is None else json.dumps(fields).encode())
    made.complete = True
    made.number = 1
    return made


def asked(answer: Answer, path: str = CHAT, **fields: Any) -> ProviderRequest:
    """A request with the answer it is to get."""
    return ProviderRequest(seen(path, fields), fields, answer, 1_800_000_001)


def whole(rendered: Rendered) -> Any:
    """The body as JSON."""
    return json.loads(b"".join(rendered.pieces))


def events(rendered: Rendered) -> list[tuple[str, Any]]:
    """Names and contents of a stream's events; what is no JSON stays text."""
    return parse_events(b"".join(rendered.pieces))


def parse_events(stream: bytes) -> list[tuple[str, Any]]:
    found = []
    for block in stream.decode().replace("\r\n", "\n").split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "data" in lines:
            data = lines["data"]
            found.append((lines.get("event", ""), json.loads(data) if data.startswith("{") else data))
    return found


def carried_out(steps: Iterator[Step]) -> list[Step]:
    """The steps up to the one that leaves."""
    done = []
    for step in steps:
        done.append(step)
        if isinstance(step, Leave):
            break
    return done


def written(steps: Iterator[Step]) -> bytes:
    """All bytes that the steps write."""
    return b"".join(step for step in carried_out(steps) if isinstance(step, bytes))


def read_with_h11(data: bytes, method: str = "POST", *, closed: bool = False) -> tuple[h11.Response, bytes, list[Any]]:
    """The answer as h11 understands it: its head, its body, and the interim answers and end around it."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "x"), ("Content-Length", "0")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    if closed:
        client.receive_data(b"")
    response, body, others = None, b"", []
    while True:
        event = client.next_event()
        if isinstance(event, h11.Response):
            response = event
        elif isinstance(event, h11.Data):
            body += event.data
        else:
            others.append(event)
        if event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            break
    assert response is not None
    return response, body, others


def post(path: str = CHAT, fields: Any = None, *lines: str, body: bytes | None = None) -> bytes:
    """A request as bytes."""
    content = json.dumps(fields or {}).encode() if body is None else body
    head = "".join(f"{line}\r\n" for line in ("Host: x", *lines, f"Content-Length: {len(content)}"))
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + content


@asynccontextmanager
async def connected(
    port: int, data: bytes = b"", *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A raw connection that is closed in the end, whatever the other side does."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=tls, server_hostname="localhost" if tls else None
    )
    try:
        writer.write(data)
        yield reader, writer
    finally:
        writer.transport.abort()


async def read_for(reader: asyncio.StreamReader, seconds: float) -> bytes:
    """What comes within that time; the other side may end it."""
    got = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while data := await reader.read(65536):
                got += data
    return got


async def one_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of an answer with a length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return head, await reader.readexactly(int(length.split(b":")[1]))


def tls_contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a fresh certificate, and a client's that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    begin = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begin)
        .not_valid_after(begin.replace(year=2120))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = folder / "stand-in.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cafile=str(file))


PLAIN = Manner()
