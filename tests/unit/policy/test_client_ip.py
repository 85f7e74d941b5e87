"""Whose address counts."""

from __future__ import annotations

import pytest

from breakloop.errors import SettingsError
from breakloop.model.call import Call
from breakloop.policy.client import ClientIp, parse_address
from tests.each import each

TRUSTED = ("10.0.0.0/8", "192.0.2.7", "2001:db8::/32")


def find(
    peer: str, *, xff: tuple[str, ...] = (), forwarded: tuple[str, ...] = (), trusted: tuple[str, ...] = TRUSTED
) -> str:
    headers: dict[str, bytes] = {}
    repeated: list[tuple[str, bytes]] = []
    for name, values in (("x-forwarded-for", xff), ("forwarded", forwarded)):
        for value in values:
            if name in headers:
                repeated.append((name, value.encode()))
            else:
                headers[name] = value.encode()
    return ClientIp(trusted).find(Call("GET", "/", headers=headers, repeated=tuple(repeated), peer=peer))


def test_an_untrusted_peer_is_the_client_whatever_it_claims() -> None:
    """Forwarding headers of an untrusted peer mean nothing (C-4)."""
    assert find("203.0.113.9", xff=("1.1.1.1",), forwarded=("for=1.1.1.1",)) == "203.0.113.9"
    assert find("10.0.0.1", xff=("1.1.1.1",), trusted=()) == "10.0.0.1"


@each(
    "xff, expected",
    [
        (("198.51.100.4",), "198.51.100.4"),
        (("1.1.1.1, 198.51.100.4, 10.0.0.2",), "198.51.100.4"),
        (("1.1.1.1", "198.51.100.4", "10.0.0.2, 192.0.2.7"), "198.51.100.4"),
        (("1.1.1.1, 198.51.100.4:4711",), "198.51.100.4"),
        (("[2001:db9::5]:443, 10.0.0.2",), "2001:db9::5"),
        (("2001:DB9:0::5",), "2001:db9::5"),
        (("::ffff:198.51.100.4",), "198.51.100.4"),
        (("198.51.100.4, ::ffff:10.0.0.3",), "198.51.100.4"),
        (("10.0.0.3, 10.0.0.2",), "10.0.0.3"),
        (("198.51.100.4, unknown, 10.0.0.2",), "10.0.0.2"),
        (("garbage",), "10.0.0.1"),
        (("",), "10.0.0.1"),
        (("198.51.100.4,",), "10.0.0.1"),
        (("198.51.100.4, " + "x" * 100_000,), "10.0.0.1"),
    ],
)
def test_right_most_untrusted_of_x_forwarded_for(xff: tuple[str, ...], expected: str) -> None:
    """Walk from the right past trusted proxies; garbage ends the walk at the last good address (C-4)."""
    assert find("10.0.0.1", xff=xff) == expected


@pytest.mark.parametrize(
    ("forwarded", "expected"),
    [
        (("for=198.51.100.4",), "198.51.100.4"),
        (('for="[2001:db9::1]:123"',), "2001:db9::1"),
        (('For="198.51.100.4:80";proto=https;by=10.0.0.1, for=10.0.0.2',), "198.51.100.4"),
        (("for=1.1.1.1", "proto=http; for=198.51.100.4", 'for="[2001:db8::9]"'), "198.51.100.4"),
        (('for=1.1.1.1;host="a,b", for=10.0.0.2',), "1.1.1.1"),
        (("for=198.51.100.4, for=_hidden, for=10.0.0.2",), "10.0.0.2"),
        (("for=198.51.100.4, proto=http",), "10.0.0.1"),
        (('for="198.51.100.4',), "10.0.0.1"),
    ],
)
def test_right_most_untrusted_of_forwarded(forwarded: tuple[str, ...], expected: str) -> None:
    """The same for RFC 7239, quoted or not (C-4)."""
    assert find("10.0.0.1", forwarded=forwarded) == expected


def test_x_forwarded_for_wins_over_forwarded() -> None:
    assert find("10.0.0.1", xff=("198.51.100.4",), forwarded=("for=1.1.1.1",)) == "198.51.100.4"


def test_a_chain_is_followed_for_a_bounded_number_of_hops() -> None:
    """Thousands of claimed hops cost no more than the bound (Q-1)."""
    long_chain = "198.51.100.4, " + ", ".join(["10.0.0.2"] * 5000)
    assert find("10.0.0.1", xff=(long_chain,)) == "10.0.0.2"


def test_mapped_peers_and_mapped_networks_are_ipv4() -> None:
    """An IPv4-mapped IPv6 address is the IPv4 address, in peers and in the setting (C-4)."""
    assert find("::ffff:10.0.0.1", xff=("198.51.100.4",)) == "198.51.100.4"
    assert find("10.0.0.1", xff=("198.51.100.4",), trusted=("::ffff:10.0.0.0/104",)) == "198.51.100.4"
    assert find("::ffff:203.0.113.9") == "203.0.113.9"


def test_unix_socket_peers() -> None:
    assert find("", xff=("198.51.100.4",), trusted=("unix",)) == "198.51.100.4"
    assert find("", xff=("198.51.100.4",)) == ""
    assert find("10.0.0.1", xff=("198.51.100.4, unix",), trusted=("10.0.0.1", "unix")) == "10.0.0.1"


@pytest.mark.parametrize("entry", ["10.0.0.0/33", "proxy.example.com", ""])
def test_a_bad_entry_is_named(entry: str) -> None:
    with pytest.raises(SettingsError, match="trusted_proxies"):
        ClientIp((entry,))


@pytest.mark.parametrize("text", ["", "1.2.3", "1.2.3.4.5", "[::1", "[::1]x", "localhost", "1.2.3.4/8", "\u0661.2.3.4"])
def test_what_is_no_address(text: str) -> None:
    assert parse_address(text) is None


def test_zone_is_dropped() -> None:
    assert str(parse_address("[fe80::1%eth0]:80")) == "fe80::1"
