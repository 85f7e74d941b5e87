"""Country, network and Tor of an address."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from breakloop.errors import SettingsError
from breakloop.model.call import Call
from breakloop.policy.client import Geo

PROXY, STRANGER = "10.0.0.1", "203.0.113.9"
HEADERS = {"x-country-code": b"de", "x-asn": b"AS15169", "x-asn-type": b"Hosting", "x-tor-exit": b"yes"}


def geo(geo_file: str = "") -> Geo:
    return Geo(lambda call: call.peer == PROXY, geo_file)


def value(what: str, peer: str, headers: dict[str, bytes], geo_file: str = "", address: str = "2.0.0.1") -> str | None:
    return geo(geo_file).value(what, Call("GET", "/", headers=headers, peer=peer), address)


@pytest.mark.parametrize(
    ("what", "expected"), [("country", "DE"), ("asn", "15169"), ("type", "hosting"), ("tor", "true")]
)
def test_headers_count_from_a_trusted_proxy_only(what: str, expected: str) -> None:
    """What a proxy says about an address counts only if the proxy is trusted (C-6)."""
    assert value(what, PROXY, HEADERS) == expected
    assert value(what, STRANGER, HEADERS) is None
    assert value(what, PROXY, {}) is None


@pytest.mark.parametrize(("sent", "expected"), [(b"1", "true"), (b"No", "false"), (b"0", "false"), (b"maybe", None)])
def test_tor_is_a_yes_or_a_no(sent: bytes, expected: str | None) -> None:
    assert value("tor", PROXY, {"x-tor-exit": sent}) == expected


def test_a_file_answers_when_no_trusted_header_does(tmp_path: Path) -> None:
    """Else a MaxMind-format file (C-6)."""
    record = {
        "country": {"iso_code": "FR"},
        "autonomous_system_number": 3215,
        "traits": {"user_type": "college", "is_tor_exit_node": True},
    }
    file = write_mmdb(tmp_path / "geo.mmdb", 2, record)
    assert value("country", STRANGER, HEADERS, file) == "FR"
    assert value("country", PROXY, HEADERS, file) == "DE"
    assert value("asn", STRANGER, {}, file) == "3215"
    assert value("type", STRANGER, {}, file) == "education_research"
    assert value("tor", STRANGER, {}, file) == "true"
    for nowhere in ("3.0.0.1", "2001:db8::1", "", "no-address"):
        assert value("country", STRANGER, {}, file, nowhere) is None
        assert value("tor", STRANGER, {}, file, nowhere) is None


def test_an_anonymous_ip_file(tmp_path: Path) -> None:
    file = write_mmdb(tmp_path / "anonymous.mmdb", 2, {"is_hosting_provider": True})
    assert value("type", STRANGER, {}, file) == "hosting"
    assert value("tor", STRANGER, {}, file) == "false"
    assert value("country", STRANGER, {}, file) is None
    assert value("asn", STRANGER, {}, file) is None


def test_a_bad_file_is_a_wrong_setting(tmp_path: Path) -> None:
    broken = tmp_path / "broken.mmdb"
    broken.write_bytes(b"not a database")
    for file in (str(tmp_path / "absent.mmdb"), str(broken)):
        with pytest.raises(SettingsError, match="geo_file"):
            geo(file)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "maxminddb", None)
    with pytest.raises(SettingsError, match=r'pip install "breakloop\[geo\]"'):
        geo("geo.mmdb")
    assert geo().value("country", Call("GET", "/", peer=STRANGER), STRANGER) is None


def write_mmdb(path: Path, first_octet: int, record: dict[str, object]) -> str:
    """Write an IPv4 database in which one /8 has a record: eight nodes, one a bit of the first octet."""
    nodes, empty, found = 8, 8, 8 + 16
    tree = b""
    for depth in range(nodes):
        following = found if depth == nodes - 1 else depth + 1
        bit = first_octet >> (7 - depth) & 1
        pair = (empty, following) if bit else (following, empty)
        tree += b"".join(side.to_bytes(3, "big") for side in pair)
    metadata: dict[str, object] = {
        "binary_format_major_version": _number(5, 2),
        "binary_format_minor_version": _number(5, 0),
        "build_epoch": _number(9, 1),
        "database_type": "Test",
        "description": {"en": "test"},
        "languages": ["en"],
        "ip_version": _number(5, 4),
        "node_count": nodes,
        "record_size": _number(5, 24),
    }
    path.write_bytes(tree + bytes(16) + _encode(record) + b"\xab\xcd\xefMaxMind.com" + _encode(metadata))
    return str(path)


def _encode(item: object) -> bytes:
    if isinstance(item, bytes):  # encoded already
        return item
    if isinstance(item, list):
        return bytes((len(item), 11 - 7)) + b"".join(_encode(inner) for inner in item)
    if isinstance(item, dict):
        return bytes((7 << 5 | len(item),)) + b"".join(_encode(key) + _encode(inner) for key, inner in item.items())
    if isinstance(item, str):
        return _head(2, len(item)) + item.encode()
    if isinstance(item, bool):
        return bytes((int(item), 14 - 7))
    assert isinstance(item, int)
    return _number(6, item)


def _number(kind: int, number: int) -> bytes:
    raw = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return bytes((kind << 5 | len(raw),)) + raw if kind < 8 else bytes((len(raw), kind - 7)) + raw


def _head(kind: int, size: int) -> bytes:
    return bytes((kind << 5 | size,)) if size < 29 else bytes((kind << 5 | 29, size - 29))
