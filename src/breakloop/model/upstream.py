"""Named upstreams: parsing and validation of their names and URLs. `gateway.forwarding` chooses the upstream of a
request.

Error messages never contain the URL, because it may include a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from types import MappingProxyType
from typing import Final

from breakloop.errors import SettingsError

BUILTIN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "openai": "https://api.openai.com",
        "anthropic": "https://api.anthropic.com",
        "gemini": "https://generativelanguage.googleapis.com",
    }
)
RESERVED: Final = frozenset(("v1", "v1beta", "agents", "livez", "readyz"))  # path prefixes that have another meaning
DEFAULT_PORTS: Final[Mapping[str, int]] = MappingProxyType({"http": 80, "https": 443})

_EXAMPLE: Final = "write it like https://llm.example.com"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_HOST: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_BASE: Final = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]+)*")
_DOT_SEGMENT: Final = re.compile(r"/\.\.?(?:/|;|$)")
_ENDPOINT: Final = re.compile(r"/(?:chat/completions|completions|responses|embeddings|v1/messages)$")


class UpstreamUrlError(SettingsError):
    """An invalid name or URL. `hint` describes how to correct it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message} ({hint})")
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Upstream:
    """One upstream, with its URL parsed."""

    name: str
    tls: bool
    host: str  # without brackets
    port: int
    authority: bytes  # value of the Host field
    base: bytes  # prefix of all request paths, without a trailing slash; b"" if there is none

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority.decode()}{self.base.decode()}"


def parse_upstream(name: str, url: str) -> Upstream:
    """Parse one upstream. Raises `UpstreamUrlError`, which is a `SettingsError`."""
    if not _NAME.fullmatch(name):
        raise UpstreamUrlError("the name is not valid", "lower-case letters, digits and hyphens, as in my-llm")
    if name in RESERVED:
        raise UpstreamUrlError(f'"{name}" is reserved for other paths', "choose another name")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise UpstreamUrlError("the URL contains a space or a non-ASCII character", "write xn--... for the host")
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in DEFAULT_PORTS:
        raise UpstreamUrlError("the URL does not begin with http:// or https://", _EXAMPLE)
    if "?" in rest or "#" in rest:
        raise UpstreamUrlError("the URL has a query or a fragment", "leave it out; the query is part of each request")
    authority, slash, path = rest.partition("/")
    host, port_text = _split_authority(authority)
    port = _port(port_text) if port_text is not None else DEFAULT_PORTS[scheme]
    bracketed = f"[{host}]" if ":" in host else host
    named = bracketed if port == DEFAULT_PORTS[scheme] else f"{bracketed}:{port}"
    return Upstream(name, scheme == "https", host, port, named.encode("ascii"), _base(slash + path))


def parse_named(text: str) -> Upstream:
    """Parse `NAME=URL`."""
    name, equals, url = text.partition("=")
    if not equals or "/" in name:
        raise UpstreamUrlError("is not NAME=URL", "write openai=https://llm.example.com")
    return parse_upstream(name, url)


def upstreams(given: Sequence[str]) -> list[Upstream]:
    """Return the given upstreams (NAME=URL), then the built-in ones that they do not replace. The first is default."""
    found = [parse_named(text) for text in given]
    names = {upstream.name for upstream in found}
    return found + [parse_upstream(name, url) for name, url in BUILTIN.items() if name not in names]


def _split_authority(authority: str) -> tuple[str, str | None]:
    """Return the host, in lower case and without brackets, and the port text, if any."""
    if "@" in authority:
        raise UpstreamUrlError("the URL contains a user name or password", "leave it out; a key goes in upstream_keys")
    if authority.startswith("["):
        host, bracket, rest = authority[1:].partition("]")
        try:
            IPv6Address(host)
        except AddressValueError:
            bracket = ""
        if not bracket or "%" in host or (rest and rest[0] != ":"):
            raise UpstreamUrlError("the host is not an IPv6 address", "write it like http://[::1]:8000")
        return host.lower(), rest[1:] if rest else None
    host, colon, port = authority.partition(":")
    if ":" in port:
        raise UpstreamUrlError("the URL has too many colons", "put an IPv6 address in brackets: http://[::1]:8000")
    if not host:
        raise UpstreamUrlError("the URL has no host", _EXAMPLE)
    if not _HOST.fullmatch(host) or ".." in host or len(host) > 253 or not _plausible(host):
        raise UpstreamUrlError("the host is neither a name nor an address", _EXAMPLE)
    return host.lower(), port if colon else None


def _plausible(host: str) -> bool:
    """Return whether a host of digits and dots is a valid IPv4 address: 10.0.0.256 is a typing error, not a name."""
    if host.strip("0123456789."):
        return True
    try:
        IPv4Address(host)
    except AddressValueError:
        return False
    return True


def _port(text: str) -> int:
    if not (text.isdigit() and len(text) <= 5 and 0 < int(text) <= 65535):
        raise UpstreamUrlError("the port is not a number from 1 to 65535", "write it like http://llm.example.com:8080")
    return int(text)


def _base(path: str) -> bytes:
    base = path.rstrip("/")
    if not _BASE.fullmatch(base) or _DOT_SEGMENT.search(base):
        raise UpstreamUrlError("the URL's path contains escapes, dot segments or empty segments", "write it as in /v1")
    if _ENDPOINT.search(base):
        raise UpstreamUrlError("the URL is that of a single endpoint", "give only the common part, up to /v1")
    return base.encode("ascii")
