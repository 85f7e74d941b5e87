"""Where alerts may be sent (SPEC Y-4): http and https only, to addresses of the public internet unless private ones are
allowed. A name is resolved once, every address it has is checked, and the connection goes to an address that was
checked; so a name that resolves to something else a moment later changes nothing."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.parse import urlsplit

from breakloop.errors import AlertError

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
class Place:
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


def place(url: str) -> Place:
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
    return Place(parts.scheme, _host(host), port or _PORTS[parts.scheme], path)


def checked(target: Place, resolve: Resolve, *, allow_private: bool) -> list[str]:
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


def _resolved(target: Place, resolve: Resolve) -> list[_Address]:
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
