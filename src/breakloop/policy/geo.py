"""Where an address is (SPEC C-6): from header fields of a *trusted* proxy, else from a MaxMind-format file.

The fields are X-Country-Code, X-ASN, X-ASN-Type and X-Tor-Exit. From any other peer they are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from breakloop.errors import SettingsError
from breakloop.model.call import Call
from breakloop.policy.client_ip import ClientIp, parse_address
from breakloop.policy.recent import Recent

HEADERS: Final = {"country": "x-country-code", "asn": "x-asn", "type": "x-asn-type", "tor": "x-tor-exit"}
_YES: Final = frozenset(("1", "true", "yes"))
_NO: Final = frozenset(("0", "false", "no"))
# MaxMind's user types, in the words that X-ASN-Type uses.
_TYPES: Final = {
    "business": "business",
    "cellular": "isp",
    "college": "education_research",
    "content_delivery_network": "hosting",
    "dialup": "isp",
    "government": "government_admin",
    "hosting": "hosting",
    "library": "education_research",
    "military": "government_admin",
    "residential": "isp",
    "school": "education_research",
}

_Record = Mapping[str, object]
_NO_RECORD: Final[_Record] = {}


class Geo:
    """Answers `ip:country`, `ip:asn`, `ip:type` and `ip:tor`; a file that cannot be read is a `SettingsError`."""

    __slots__ = ("_client_ip", "_read", "_seen")

    def __init__(self, client_ip: ClientIp, geo_file: str) -> None:
        self._client_ip = client_ip
        self._read = _open(geo_file) if geo_file else None
        self._seen: Recent[str, _Record] = Recent(4096)

    def value(self, what: str, call: Call, address: str) -> str | None:
        """Return `what` ("country", "asn", "type", "tor") of a request whose client is at `address`; None = missing."""
        raw = call.headers.get(HEADERS[what])
        if raw and self._client_ip.trusted(call.peer):
            stated = _normal(what, raw.decode("latin-1").strip())
            if stated is not None:
                return stated
        return _from_record(what, self._record(address)) if self._read else None

    def _record(self, address: str) -> _Record:
        record = self._seen.get(address)
        if record is None:
            record = self._read(address) if self._read and parse_address(address) else _NO_RECORD
            self._seen.put(address, record)
        return record


def _open(geo_file: str) -> Callable[[str], _Record]:
    try:
        import maxminddb  # noqa: PLC0415 (an extra: only those who name a file need it)
    except ImportError:
        raise SettingsError("geo_file: reading it needs the extra 'geo' (the package maxminddb)") from None
    try:
        reader = maxminddb.open_database(geo_file)
    except (OSError, ValueError, maxminddb.InvalidDatabaseError) as error:
        raise SettingsError(f"geo_file: {error}") from None

    def read(address: str) -> _Record:
        try:
            record = reader.get(address)
        except (ValueError, maxminddb.InvalidDatabaseError):  # an IPv6 address in an IPv4 file, or a damaged file
            return _NO_RECORD
        return record if isinstance(record, dict) else _NO_RECORD

    return read


def _normal(what: str, value: str) -> str | None:
    lower = value.lower()
    if what == "country":
        return value.upper() or None
    if what == "asn":
        return lower.removeprefix("as") or None
    if what == "type":
        return lower or None
    return "true" if lower in _YES else "false" if lower in _NO else None


def _from_record(what: str, record: _Record) -> str | None:
    traits = _inner(record, "traits") or record
    if what == "country":
        code = _inner(record, "country").get("iso_code")
        return code if isinstance(code, str) else None
    if what == "asn":
        number = record.get("autonomous_system_number", traits.get("autonomous_system_number"))
        return str(number) if isinstance(number, int) else None
    if what == "type":
        kind = _TYPES.get(str(traits.get("user_type", "")))
        return kind or ("hosting" if traits.get("is_hosting_provider") else None)
    # Files that know about Tor leave the field out for every other address they list.
    if traits.get("is_tor_exit_node"):
        return "true"
    return "false" if record else None


def _inner(record: _Record, name: str) -> _Record:
    value = record.get(name)
    return value if isinstance(value, dict) else _NO_RECORD
