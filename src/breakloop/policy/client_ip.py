"""Who is at the other end (SPEC C-4): the peer, or, behind trusted proxies, the last address that they did not write.

Only addresses are worked out here; what they say about the caller is `policy.identity` and `policy.geo`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from breakloop.errors import SettingsError
from breakloop.model.call import Call
from breakloop.policy.recent import Recent

_HOPS_MAX = 64  # a chain longer than this is made up
_ADDRESS_MAX = 100  # an IPv6 address with brackets, zone and port; whatever is longer is not worth remembering
_UNIX = "unix"
_FORWARDED_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*(?:"([^"]*)"|([^;"\s]*))', re.IGNORECASE)
_OUTSIDE_QUOTES = re.compile(r'(?:[^,"]|"(?:\\.|[^"\\])*"?)+')

_Seen = tuple[str, bool]  # the address in its one spelling ("" if it is none), and whether it is trusted


class ClientIp:
    """Finds the client's address. `trusted_proxies` are addresses, networks, or `unix` for Unix socket peers."""

    __slots__ = ("_networks", "_seen", "_unix")

    def __init__(self, trusted_proxies: tuple[str, ...]) -> None:
        self._unix = _UNIX in trusted_proxies
        self._networks = tuple(_network(entry) for entry in trusted_proxies if entry != _UNIX)
        self._seen: Recent[str, _Seen] = Recent(4096)

    def trusted(self, peer: str) -> bool:
        """Say whether `peer` is one of the trusted proxies."""
        return self._look_up(peer)[1]

    def find(self, call: Call) -> str:
        """Return the client's address in its normal spelling, or the peer as given when it is not an address."""
        address, trusted = self._look_up(call.peer)
        if not trusted:
            return address or call.peer
        for entry in _from_the_right(call):
            claimed, trusted = self._look_up(entry)
            if not claimed:
                break
            address = claimed
            if not trusted:
                break
        return address or call.peer

    def _look_up(self, text: str) -> _Seen:
        seen = self._seen.get(text)
        if seen is None and len(text) > _ADDRESS_MAX:
            return "", False
        if seen is None:
            seen = self._judge(text)
            self._seen.put(text, seen)
        return seen

    def _judge(self, text: str) -> _Seen:
        if text in ("", _UNIX):
            return "", self._unix
        address = parse_address(text)
        if address is None:
            return "", False
        return str(address), any(address.version == net.version and address in net for net in self._networks)


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Read an address with or without port, brackets and zone; an IPv4-mapped IPv6 address becomes IPv4."""
    text = text.strip()
    if text.startswith("["):
        text, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and rest[0] != ":"):
            return None
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _network(entry: str) -> IPv4Network | IPv6Network:
    try:
        network = ip_network(entry.strip(), strict=False)
    except ValueError:
        raise SettingsError(f"trusted_proxies: {entry!r} is neither an address nor a network") from None
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    if mapped is not None and network.prefixlen >= 96:
        return IPv4Network((mapped, network.prefixlen - 96))
    return network


def _from_the_right(call: Call) -> Iterator[str]:
    """Yield claimed hops, nearest first. X-Forwarded-For wins when both fields came: few proxies keep both honest."""
    line = _joined(call, "x-forwarded-for")
    if line is not None:
        yield from reversed([entry.strip() for entry in line.rsplit(",", _HOPS_MAX)[-_HOPS_MAX:]])
        return
    line = _joined(call, "forwarded")
    if line is not None:
        for element in reversed(_OUTSIDE_QUOTES.findall(line)[-_HOPS_MAX:]):
            found = _FORWARDED_FOR.search(element)
            yield (found[1] or found[2] or "?") if found else "?"


def _joined(call: Call, name: str) -> str | None:
    first = call.headers.get(name)
    if first is None:
        return None
    if not call.repeated:
        return first.decode("latin-1")
    values = [first, *(value for other, value in call.repeated if other == name)]
    return b",".join(values).decode("latin-1")
