"""What every target of alerts has in common: it gets a parcel and says what became of it. Each target is a file of its
own; when to try again, and for how long, is `delivery`'s business.

What sending needs from outside: time, threads, names of hosts, trust, chance. All of it is handed in, so that tests
decide over it. What is sent, and to whom, is not this file's business.

Where alerts may be sent (SPEC Y-4): http and https only, to addresses of the public internet unless private ones are
allowed. A name is resolved once, every address it has is checked, and the connection goes to an address that was
checked; so a name that resolves to something else a moment later changes nothing.

The file of alerts, `alerts.db` in the data directory: its tables, and one transaction at a time from any thread. It
holds secrets of webhooks, so only its owner can read it (`state.sqlite_file` sees to that).

One POST to a target over HTTP/1.1: to an address that was checked, within a time, and without following anything.
The answer's status is what counts; of its body at most 1 KB is read, and none of it is kept.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import socket
import sqlite3
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from threading import RLock
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from breakloop.clock import Clock
from breakloop.errors import AlertError
from breakloop.store.sqlite import Report, Schema, SqliteFile


@dataclass(frozen=True, slots=True)
class Delivery:
    """Something to send. `id` and `body` are the same at every try."""

    id: str
    event: str
    body: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """What became of a try. `error` is for people, without secrets and addresses."""

    delivered: bool
    status: int = 0  # of HTTP, or of SMTP; 0: there was no answer
    error: str = ""
    retry_after_s: float = 0.0  # the target wants to be left alone so long
    gone: bool = False  # it wants nothing any more


class Target(Protocol):
    """Somebody who can be told."""

    async def send(self, parcel: Delivery) -> DeliveryResult:
        """Try once. Returns in bounded time, and raises nothing that another try could mend."""
        ...


Resolve = Callable[[str, int], Sequence[str]]  # host, port -> addresses; raises OSError
_Address = IPv4Address | IPv6Address

URL_MAX: Final = 2048
_PORTS: Final = {"http": 80, "https": 443}
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")  # NAT64: the last four bytes are an IPv4 address
_PUBLIC: Final = IPv6Network("2000::/3")  # what is assigned for the public internet
_EVERYBODY: Final = IPv4Address("255.255.255.255")
_SHARED: Final = IPv4Network("100.64.0.0/10")  # some clouds have their metadata in it
# Services that give out credentials of the machine. Nobody sends alerts there, so `allow_private` does not open them.
_METADATA: Final = frozenset(
    ip_address(text)
    for text in (
        *("169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
        *("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254"),
    )
)
_NAME: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_NUMBER: Final = re.compile(r"0x[0-9a-f]*|[0-9]+")


@dataclass(frozen=True, slots=True)
class Destination:
    """A URL taken apart. `host` is as the certificate and the Host field have it."""

    scheme: str
    host: str
    port: int
    path: str  # with its query; may hold secrets

    def __repr__(self) -> str:
        return f"Place({self.scheme}://{self.host}:{self.port})"

    @property
    def authority(self) -> str:
        """The value of the Host field."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def system_addresses(host: str, port: int) -> list[str]:
    """Ask the system for the addresses of a host. May take long."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


def place(url: str) -> Destination:
    """Take a URL apart; raises `AlertError` for one that nothing may be sent to. Asks nobody."""
    if len(url) > URL_MAX or not re.fullmatch(r"[!-~]+", url) or "\\" in url:
        raise AlertError("the URL is too long, or has characters that no URL has")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise AlertError("this is no URL") from None
    if parts.scheme not in _PORTS:
        raise AlertError("the URL must begin with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise AlertError("the URL has a user name or a password in it; use the signature instead")
    if not host or port == 0 or ("[" in parts.netloc and ":" not in host):
        raise AlertError("the URL has no host, or no port that can be reached")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Destination(parts.scheme, _host(host), port or _PORTS[parts.scheme], path)


def checked(target: Destination, resolve: Resolve, *, allow_private: bool) -> list[str]:
    """Resolve a host and return its addresses; raises `AlertError` if one of them is refused. May take long."""
    try:
        literal = ip_address(target.host)
    except ValueError:
        addresses = _resolved(target, resolve)
    else:
        addresses = [literal]
    for address in addresses:
        why = refused(address, allow_private=allow_private)
        if why:
            raise AlertError(f"{target.host} is refused: {why}")
    return [str(address) for address in addresses]


def refused(address: _Address, *, allow_private: bool) -> str:
    """Return why nothing is sent to an address, or nothing."""
    plain = _unwrapped(address)
    if address in _METADATA or plain in _METADATA:
        return "it is the address of a metadata service"
    if plain.is_multicast or plain.is_unspecified or plain == _EVERYBODY:
        return "it is the address of no single machine"
    if allow_private or _is_public(plain):
        return ""
    if plain.is_loopback:
        return "it is this machine (allow_private allows it)"
    return "it is a private or reserved address (allow_private allows it)"


def _host(host: str) -> str:
    if "%" in host:
        raise AlertError("the URL has an address with a zone, or an escaped host")
    if ":" in host:
        try:
            return str(IPv6Address(host))
        except ValueError:
            raise AlertError("the URL has no valid address") from None
    name = host.lower().removesuffix(".")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):  # programs read such a host as an address, in many spellings
        try:
            return str(IPv4Address(name))
        except ValueError:
            raise AlertError("the URL has an address in an unusual spelling; write it as four numbers") from None
    if len(name) > 253 or not _NAME.fullmatch(name):
        raise AlertError("the URL has no valid host; write international names in their ASCII form (xn--...)")
    return name


def _resolved(target: Destination, resolve: Resolve) -> list[_Address]:
    try:
        found = resolve(target.host, target.port)
        addresses = [ip_address(text.partition("%")[0]) for text in found]
    except (OSError, ValueError, UnicodeError):
        raise AlertError(f"the name {target.host} cannot be resolved") from None
    if not addresses:
        raise AlertError(f"the name {target.host} has no address")
    return addresses


def _unwrapped(address: _Address) -> _Address:
    """Return the IPv4 address that an IPv6 address leads to."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _TRANSLATED or 1 < int(address) < 2**32:  # the latter: IPv4-compatible
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _is_public(address: _Address) -> bool:
    if isinstance(address, IPv6Address):
        return address in _PUBLIC and address.is_global
    return address.is_global and address not in _SHARED and not address.is_reserved


T = TypeVar("T")

Say = Callable[[int, str, Mapping[str, object]], None]  # level, message, fields


class RunAside(Protocol):
    """Runs something slow in a thread."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        """Return what it returned."""
        ...


def quiet(_level: int, _message: str, _fields: Mapping[str, object]) -> None:
    """Log nothing."""


def chance() -> float:
    """Return a number from 0 to 1."""
    return secrets.randbelow(1_000_001) / 1_000_000


def trust(ca_file: str = "") -> ssl.SSLContext:
    """Return how servers are verified: by the system's authorities, and those of a file."""
    context = ssl.create_default_context()
    if ca_file:
        context.load_verify_locations(cafile=ca_file)
    return context


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """Everything that sending needs."""

    clock: Clock
    aside: RunAside
    say: Say = quiet
    resolve: Resolve = system_addresses
    tls: ssl.SSLContext = field(default_factory=trust)
    chance: Callable[[], float] = chance
    timeout_s: float = 10.0

    def warn(self, message: str, **fields: Any) -> None:
        """Log something that a person should look at."""
        self.say(logging.WARNING, message, fields)


FILE: Final = "alerts.db"
SCHEMA: Final = Schema(
    0x424C_414C,
    (
        (
            "CREATE TABLE webhook (id TEXT PRIMARY KEY, url TEXT, events TEXT, secret TEXT, old_secret TEXT, "
            "old_until REAL, allow_private INTEGER, created_at REAL, disabled TEXT) WITHOUT ROWID"
        ),
        (
            "CREATE TABLE delivery (seq INTEGER PRIMARY KEY, id TEXT UNIQUE, target TEXT, event TEXT, body TEXT, "
            "order_key TEXT, critical INTEGER, made_at REAL, tries INTEGER, next_at REAL, state TEXT, status INTEGER, "
            "error TEXT, ended_at REAL)"
        ),
        "CREATE INDEX delivery_due ON delivery (target, next_at) WHERE state = 'waiting'",
        "CREATE INDEX delivery_order ON delivery (target, order_key, seq) WHERE state = 'waiting'",
        "CREATE INDEX delivery_ended ON delivery (state, ended_at) WHERE state != 'waiting'",
        "CREATE TABLE standing (rule TEXT, key TEXT, text TEXT, PRIMARY KEY (rule, key)) WITHOUT ROWID",
    ),
)


class AlertDatabase:
    """The file. `on_new` writes what its owners still know into one that had to be begun anew."""

    def __init__(self, folder: Path, report: Report) -> None:
        self._file = SqliteFile(folder / FILE, SCHEMA, report)
        self._lock = RLock()
        self.on_new: list[Callable[[sqlite3.Connection], None]] = []

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` in one transaction, on disk when this returns. Raises `StateError`."""
        with self._lock:
            made = self._file.made
            result = self._file.run(work)
            if self._file.made != made:
                self._file.run(self._fill)
            return result

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._file.close()

    def _fill(self, connection: sqlite3.Connection) -> None:
        for write in self.on_new:
            write(connection)


RETRY_AFTER_MAX_S: Final = 3600.0
_HEAD_MAX: Final = 16 * 1024
_BODY_MAX: Final = 1024
_BODY_S: Final = 1.0  # the answer is known by then: a body that is slow is not waited for
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-9][0-9][0-9])(?: [^\r\n]*)?\r\n")
_RETRY_AFTER: Final = re.compile(rb"\r\nretry-after:([^\r\n]{1,80})\r\n", re.IGNORECASE)
_FIELD: Final = re.compile(r"[ -~]*")


async def post(
    means: DeliveryContext, url: str, body: bytes, fields: Mapping[str, str], *, allow_private: bool
) -> DeliveryResult:
    """Send a JSON body; return what came of it. Raises nothing but what ends the task."""
    try:
        async with asyncio.timeout(means.timeout_s):
            target = place(url)
            addresses = await means.aside(lambda: checked(target, means.resolve, allow_private=allow_private))
            status, head = await _exchange(means, target, addresses, _request(target, body, fields))
    except AlertError as error:
        return DeliveryResult(delivered=False, error=str(error))
    except TimeoutError:
        return DeliveryResult(delivered=False, error=f"no answer within {means.timeout_s:g} s")
    except ssl.SSLCertVerificationError as error:
        return DeliveryResult(delivered=False, error=f"its certificate is not trusted: {error.verify_message}")
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
        return DeliveryResult(delivered=False, error=_words(error))
    return _outcome(status, head, means.clock.now())


def _request(target: Destination, body: bytes, fields: Mapping[str, str]) -> bytes:
    lines = [f"POST {target.path} HTTP/1.1", f"Host: {target.authority}", "Connection: close"]
    lines += ["User-Agent: breakloop", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    for name, value in fields.items():
        if not _FIELD.fullmatch(value):
            raise AlertError(f"the field {name} cannot be sent")
        lines.append(f"{name}: {value}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii") + body


async def _exchange(
    means: DeliveryContext, target: Destination, addresses: list[str], request: bytes
) -> tuple[int, bytes]:
    reader, writer = await _connected(means, target, addresses)
    try:
        writer.write(request)
        with suppress(ConnectionError):  # an answer may be there all the same
            await writer.drain()
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            match = _STATUS.match(head)
            if match is None:
                raise ValueError("what it answered is no HTTP")
            status = int(match[1])
            if status >= 200:
                break
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_BODY_S):
                await reader.read(_BODY_MAX)
        return status, head
    finally:
        writer.transport.abort()


async def _connected(
    means: DeliveryContext, target: Destination, addresses: list[str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first of the addresses that takes us. The certificate has to be that of the name."""
    context, name = (means.tls, target.host) if target.scheme == "https" else (None, None)
    for address in addresses[:-1]:
        with suppress(OSError):
            return await asyncio.open_connection(
                address, target.port, ssl=context, server_hostname=name, limit=_HEAD_MAX
            )
    return await asyncio.open_connection(addresses[-1], target.port, ssl=context, server_hostname=name, limit=_HEAD_MAX)


def _outcome(status: int, head: bytes, now: float) -> DeliveryResult:
    if 200 <= status < 300:
        return DeliveryResult(delivered=True, status=status)
    if 300 <= status < 400:
        return DeliveryResult(
            delivered=False, status=status, error=f"answered {status}, a redirect, which is not followed"
        )
    wait_s = _retry_after_s(head, now) if status in {429, 503} else 0.0
    error = f"answered {status}" + (": it wants nothing any more" if status == 410 else "")
    return DeliveryResult(delivered=False, status=status, error=error, retry_after_s=wait_s, gone=status == 410)


def _retry_after_s(head: bytes, now: float) -> float:
    """Return how long the target wants to be left alone: it says so in seconds, or as a date."""
    match = _RETRY_AFTER.search(head)
    if match is None:
        return 0.0
    text = match[1].decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), RETRY_AFTER_MAX_S)
    try:
        ends = parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(0.0, ends - now), RETRY_AFTER_MAX_S)


def _words(error: BaseException) -> str:
    """Put a failure into words, without the addresses that the system puts there."""
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(error, ssl.SSLError):
        return "no TLS connection could be made"
    if isinstance(error, ConnectionError | EOFError):
        return "the connection broke off"
    if isinstance(error, asyncio.LimitOverrunError):
        return "its answer begins with too much"
    if isinstance(error, OSError):
        return f"no connection: {error.strerror or 'unreachable'}" if error.errno else "no connection"
    return str(error)
