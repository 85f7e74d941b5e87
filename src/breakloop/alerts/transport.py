"""Sends one HTTP POST to an address that may receive alerts, and provides what else targets need.

Only http and https URLs are allowed, and only addresses of the public internet unless private ones are enabled. A name
is resolved once, every address is checked, and the connection goes to a checked address, so a DNS answer that changes
afterwards has no effect. Redirects are not followed. Only the status of a response matters; at most 1 KB of its body
is read and nothing of it is kept.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from breakloop.alerts.channels.base import DeliveryResult
from breakloop.clock import Clock
from breakloop.errors import AlertError

T = TypeVar("T")
Resolve = Callable[[str, int], Sequence[str]]  # host, port -> addresses; raises OSError
LogLine = Callable[[int, str, Mapping[str, object]], None]  # level, message, fields
_Address = IPv4Address | IPv6Address

URL_MAX: Final = 2048
RETRY_AFTER_MAX_S: Final = 3600.0
_PORTS: Final = {"http": 80, "https": 443}
_NAT64: Final = IPv6Network("64:ff9b::/96")  # the last four bytes are an IPv4 address
_PUBLIC: Final = IPv6Network("2000::/3")  # assigned to the public internet
_BROADCAST: Final = IPv4Address("255.255.255.255")
_SHARED: Final = IPv4Network("100.64.0.0/10")  # some clouds have their metadata service here
# Metadata services hand out credentials of the machine. They never receive alerts, so `allow_private` excludes them.
_METADATA: Final = frozenset(
    ip_address(text)
    for text in (
        *("169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
        *("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254"),
    )
)
_NAME: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_NUMBER: Final = re.compile(r"0x[0-9a-f]*|[0-9]+")
_HEAD_MAX: Final = 16 * 1024
_BODY_MAX: Final = 1024
_BODY_S: Final = 1.0  # the status is known by then; a slow body is not awaited
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-9][0-9][0-9])(?: [^\r\n]*)?\r\n")
_RETRY_AFTER: Final = re.compile(rb"\r\nretry-after:([^\r\n]{1,80})\r\n", re.IGNORECASE)
_FIELD: Final = re.compile(r"[ -~]*")


class RunInThread(Protocol):
    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


def no_log(_level: int, _message: str, _fields: Mapping[str, object]) -> None: ...


def random_fraction() -> float:
    return secrets.randbelow(1_000_001) / 1_000_000


def tls_context(ca_file: str = "") -> ssl.SSLContext:
    """Return a context that trusts the system's authorities and those of a file."""
    context = ssl.create_default_context()
    if ca_file:
        context.load_verify_locations(cafile=ca_file)
    return context


def resolve_host(host: str, port: int) -> list[str]:
    """Return the addresses that the system has for a host. Blocks."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """What targets need from the process; tests replace parts of it."""

    clock: Clock
    in_thread: RunInThread
    log: LogLine = no_log
    resolve: Resolve = resolve_host
    tls: ssl.SSLContext = field(default_factory=tls_context)
    jitter: Callable[[], float] = random_fraction
    timeout_s: float = 10.0

    def warn(self, message: str, **fields: Any) -> None:
        self.log(logging.WARNING, message, fields)

    def check_url(self, url: str) -> None:
        """Raise `AlertError` for a URL that nothing may be sent to. Does not resolve its host."""
        parse_url(url)

    async def run_in_thread(self, function: Callable[[], T], *, timeout_s: float) -> T:
        """Return what `function` returns. Raises `TimeoutError`; the thread then ends on its own."""
        async with asyncio.timeout(timeout_s):
            return await self.in_thread(function)

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], *, allow_private: bool) -> DeliveryResult:
        """Send a JSON body within `timeout_s`. Failures are returned, not raised."""
        try:
            async with asyncio.timeout(self.timeout_s):
                to = parse_url(url)
                addresses = await self.in_thread(lambda: resolve_checked(to, self.resolve, allow_private=allow_private))
                status, head = await self._exchange(to, addresses, _request(to, body, headers))
        except AlertError as error:
            return DeliveryResult(delivered=False, error=str(error))
        except TimeoutError:
            return DeliveryResult(delivered=False, error=f"no response within {self.timeout_s:g} s")
        except ssl.SSLCertVerificationError as error:
            return DeliveryResult(delivered=False, error=f"its certificate is not trusted: {error.verify_message}")
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            return DeliveryResult(delivered=False, error=_describe(error))
        return _result(status, head, self.clock.now())

    async def _exchange(self, to: Destination, addresses: list[str], request: bytes) -> tuple[int, bytes]:
        reader, writer = await self._connect(to, addresses)
        try:
            writer.write(request)
            with suppress(ConnectionError):  # the response may have arrived all the same
                await writer.drain()
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                match = _STATUS.match(head)
                if match is None:
                    raise ValueError("the response is not HTTP")
                status = int(match[1])
                if status >= 200:
                    break
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_BODY_S):
                    await reader.read(_BODY_MAX)
            return status, head
        finally:
            writer.transport.abort()

    async def _connect(
        self, to: Destination, addresses: list[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the first address that accepts. The certificate must match the host name."""
        tls, name = (self.tls, to.host) if to.scheme == "https" else (None, None)
        for address in addresses[:-1]:
            with suppress(OSError):
                return await asyncio.open_connection(address, to.port, ssl=tls, server_hostname=name, limit=_HEAD_MAX)
        return await asyncio.open_connection(addresses[-1], to.port, ssl=tls, server_hostname=name, limit=_HEAD_MAX)


@dataclass(frozen=True, slots=True)
class Destination:
    """A parsed URL. `host` is the name in the certificate and the Host field."""

    scheme: str
    host: str
    port: int
    path: str  # with its query; may contain secrets

    def __repr__(self) -> str:
        return f"Destination({self.scheme}://{self.host}:{self.port})"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(url: str) -> Destination:
    """Parse a URL; raises `AlertError` for one that nothing may be sent to. Does not resolve its host."""
    if len(url) > URL_MAX or not re.fullmatch(r"[!-~]+", url) or "\\" in url:
        raise AlertError("the URL is too long or contains invalid characters")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise AlertError("this is not a URL") from None
    if parts.scheme not in _PORTS:
        raise AlertError("the URL must begin with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise AlertError("the URL contains a user name or a password; use the signature instead")
    if not host or port == 0 or ("[" in parts.netloc and ":" not in host):
        raise AlertError("the URL has no host or no valid port")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Destination(parts.scheme, _normal_host(host), port or _PORTS[parts.scheme], path)


def resolve_checked(to: Destination, resolve: Resolve, *, allow_private: bool) -> list[str]:
    """Return the addresses of a host; raises `AlertError` if one of them is not allowed. Blocks."""
    try:
        literal = ip_address(to.host)
    except ValueError:
        addresses = _resolved(to, resolve)
    else:
        addresses = [literal]
    for address in addresses:
        why = refusal(address, allow_private=allow_private)
        if why:
            raise AlertError(f"{to.host} is not allowed: {why}")
    return [str(address) for address in addresses]


def refusal(address: _Address, *, allow_private: bool) -> str:
    """Return why nothing may be sent to an address, or an empty text."""
    plain = _embedded_ipv4(address)
    if address in _METADATA or plain in _METADATA:
        return "it is the address of a metadata service"
    if plain.is_multicast or plain.is_unspecified or plain == _BROADCAST:
        return "it is not the address of a single machine"
    if allow_private or _is_public(plain):
        return ""
    if plain.is_loopback:
        return "it is this machine (set allow_private to allow it)"
    return "it is a private or reserved address (set allow_private to allow it)"


def _normal_host(host: str) -> str:
    if "%" in host:
        raise AlertError("the URL contains an address with a zone, or an escaped host")
    if ":" in host:
        try:
            return str(IPv6Address(host))
        except ValueError:
            raise AlertError("the URL contains an invalid address") from None
    name = host.lower().removesuffix(".")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):  # programs read such a host as an address, in many notations
        try:
            return str(IPv4Address(name))
        except ValueError:
            raise AlertError("the URL contains an address in an unusual notation; write four numbers") from None
    if len(name) > 253 or not _NAME.fullmatch(name):
        raise AlertError("the URL has no valid host; write international names in their ASCII form (xn--...)")
    return name


def _resolved(to: Destination, resolve: Resolve) -> list[_Address]:
    try:
        found = resolve(to.host, to.port)
        addresses = [ip_address(text.partition("%")[0]) for text in found]
    except (OSError, ValueError, UnicodeError):
        raise AlertError(f"the name {to.host} cannot be resolved") from None
    if not addresses:
        raise AlertError(f"the name {to.host} has no address")
    return addresses


def _embedded_ipv4(address: _Address) -> _Address:
    """Return the IPv4 address that an IPv6 address is translated to, or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or 1 < int(address) < 2**32:  # the latter: IPv4-compatible
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _is_public(address: _Address) -> bool:
    if isinstance(address, IPv6Address):
        return address in _PUBLIC and address.is_global
    return address.is_global and address not in _SHARED and not address.is_reserved


def _request(to: Destination, body: bytes, headers: Mapping[str, str]) -> bytes:
    lines = [f"POST {to.path} HTTP/1.1", f"Host: {to.authority}", "Connection: close"]
    lines += ["User-Agent: breakloop", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    for name, value in headers.items():
        if not _FIELD.fullmatch(value):
            raise AlertError(f"the field {name} cannot be sent")
        lines.append(f"{name}: {value}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii") + body


def _result(status: int, head: bytes, now: float) -> DeliveryResult:
    if 200 <= status < 300:
        return DeliveryResult(delivered=True, status=status)
    if 300 <= status < 400:
        error = f"answered {status}, a redirect, which is not followed"
        return DeliveryResult(delivered=False, status=status, error=error)
    wait_s = _retry_after_s(head, now) if status in {429, 503} else 0.0
    error = f"answered {status}" + (": it no longer accepts deliveries" if status == 410 else "")
    return DeliveryResult(delivered=False, status=status, error=error, retry_after_s=wait_s, gone=status == 410)


def _retry_after_s(head: bytes, now: float) -> float:
    """Return the pause in a Retry-After field, which is a number of seconds or a date."""
    match = _RETRY_AFTER.search(head)
    if match is None:
        return 0.0
    text = match[1].decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), RETRY_AFTER_MAX_S)
    try:
        until = parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(0.0, until - now), RETRY_AFTER_MAX_S)


def _describe(error: BaseException) -> str:
    """Describe a failure without the addresses in the system's message."""
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(error, ssl.SSLError):
        return "no TLS connection could be made"
    if isinstance(error, ConnectionError | EOFError):
        return "the connection was closed"
    if isinstance(error, asyncio.LimitOverrunError):
        return "the head of the response is too long"
    if isinstance(error, OSError):
        return f"no connection: {error.strerror or 'unreachable'}" if error.errno else "no connection"
    return str(error)
