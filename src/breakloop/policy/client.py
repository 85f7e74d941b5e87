"""What is known about the client's end of the connection: address, location, kind of user agent, and which of the
configured callers it is (the setting `callers`).

The address is that of the peer or, behind trusted proxies, the last one that was not added by them. The location
comes from the header fields of a trusted proxy (X-Country-Code, X-ASN, X-ASN-Type and X-Tor-Exit; ignored from any
other peer), or else from a MaxMind-format file. Bots are recognized by the name they declare in User-Agent, which is
not verified.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b, sha256
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import unquote_to_bytes

from breakloop.errors import SettingsError
from breakloop.model.call import API_KEY_HEADERS, Call
from breakloop.policy.cache import MemoDict

_HOPS_MAX = 64  # a longer chain is forged
_ADDRESS_MAX = 100  # an IPv6 address with brackets, zone and port
_UNIX = "unix"
_FORWARDED_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*(?:"([^"]*)"|([^;"\s]*))', re.IGNORECASE)
_OUTSIDE_QUOTES = re.compile(r'(?:[^,"]|"(?:\\.|[^"\\])*"?)+')

_Seen = tuple[str, bool]  # the normalized address ("" if invalid), and whether it is trusted


class ClientIp:
    """Finds the client's address. `trusted_proxies` are addresses, networks, or `unix` for Unix socket peers."""

    def __init__(self, trusted_proxies: tuple[str, ...]) -> None:
        self._unix = _UNIX in trusted_proxies
        self._networks = tuple(_network(entry) for entry in trusted_proxies if entry != _UNIX)
        self._look_up = MemoDict(self._judge).__getitem__

    def trusted(self, peer: str) -> bool:
        """Return whether `peer` is one of the trusted proxies."""
        return self._look_up(peer)[1]

    def find(self, call: Call) -> str:
        """Return the client's address in normalized form, or the peer as given if it is not an address."""
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

    def _judge(self, text: str) -> _Seen:
        if text in ("", _UNIX):
            return "", self._unix
        address = parse_address(text) if len(text) <= _ADDRESS_MAX else None
        if address is None:
            return "", False
        return str(address), any(address.version == net.version and address in net for net in self._networks)


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address with or without port, brackets and zone. An IPv4-mapped IPv6 address becomes IPv4."""
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


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host, which is an address or a name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


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
    """Yield the claimed hops, nearest first. X-Forwarded-For takes precedence: few proxies maintain both fields."""
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


HEADERS: Final = {"country": "x-country-code", "asn": "x-asn", "type": "x-asn-type", "tor": "x-tor-exit"}
_YES: Final = frozenset(("1", "true", "yes"))
_NO: Final = frozenset(("0", "false", "no"))
# MaxMind's user types, mapped to the values of X-ASN-Type.
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
    """Reads `ip:country`, `ip:asn`, `ip:type` and `ip:tor`. Raises `SettingsError` for a file that cannot be read."""

    def __init__(self, is_trusted: Callable[[Call], bool], geo_file: str) -> None:
        self._is_trusted = is_trusted
        self._records = MemoDict(_open(geo_file)) if geo_file else None

    def value(self, what: str, call: Call, address: str) -> str | None:
        """Return `what` ("country", "asn", "type" or "tor") for a request from `address`, or None if unknown."""
        raw = call.headers.get(HEADERS[what])
        if raw and self._is_trusted(call):
            stated = _normal(what, raw.decode("latin-1").strip())
            if stated is not None:
                return stated
        return _from_record(what, self._records[address]) if self._records is not None else None


def _open(geo_file: str) -> Callable[[str], _Record]:
    try:
        import maxminddb  # noqa: PLC0415 (an extra: only those who name a file need it)
    except ImportError:
        raise SettingsError('geo_file: reading it needs the extra "geo": pip install "breakloop[geo]"') from None
    try:
        reader = maxminddb.open_database(geo_file)
    except (OSError, ValueError, maxminddb.InvalidDatabaseError) as error:
        raise SettingsError(f"geo_file: {error}") from None

    def read(address: str) -> _Record:
        try:
            record = reader.get(address) if parse_address(address) else None
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
    # Files with Tor data omit the field for every other address that they list.
    if traits.get("is_tor_exit_node"):
        return "true"
    return "false" if record else None


def _inner(record: _Record, name: str) -> _Record:
    value = record.get(name)
    return value if isinstance(value, dict) else _NO_RECORD


# Names as published by their operators, in lower case. The longest one that occurs decides.
_CATEGORIES: Final = {
    "ai_crawler": (
        "ai2bot", "amazonbot", "anthropic-ai", "bedrockbot", "bytespider", "ccbot", "claudebot", "claude-searchbot",
        "claude-web", "cohere-ai", "cohere-training-data-crawler", "deepseekbot", "diffbot", "facebookbot",
        "google-cloudvertexbot", "gptbot", "iaskspider", "imagesiftbot", "kangaroo bot", "meta-externalagent",
        "oai-searchbot", "omgili", "omgilibot", "pangubot", "perplexitybot", "petalbot", "sbintuitionsbot",
        "timpibot", "velenpublicwebcrawler", "youbot",
    ),
    "ai_assistant_user": (
        "amzn-user", "chatgpt-user", "claude-user", "duckassistbot", "gemini-deep-research", "google-notebooklm",
        "meta-externalfetcher", "mistralai-user", "novaact", "perplexity-user", "phindbot",
    ),
    "search_engine": (
        "adsbot-google", "applebot", "baiduspider", "bingbot", "bingpreview", "duckduckbot", "googlebot", "googleother",
        "mediapartners-google", "mojeekbot", "msnbot", "naverbot", "qwantbot", "seznambot", "slurp", "sogou",
        "storebot-google", "yandexbot", "yeti/", "yisouspider",
    ),
    "other_bot": (
        "ahrefsbot", "archive.org_bot", "blexbot", "censysinspect", "dataforseobot", "discordbot", "dotbot",
        "facebookexternalhit", "ia_archiver", "linkedinbot", "mj12bot", "pingdom", "pinterestbot", "rogerbot",
        "semrushbot", "slackbot", "telegrambot", "twitterbot", "uptimerobot", "whatsapp/",
    ),
}  # fmt: skip
_NAMES: Final = {name: category for category, names in _CATEGORIES.items() for name in names}
_KNOWN: Final = re.compile("|".join(re.escape(name) for name in sorted(_NAMES, key=len, reverse=True)))
# Any other program that calls itself a bot, but not a word that merely ends so (the phone maker Cubot).
_SELF_DECLARED: Final = re.compile(r"(?<!cu)bot(?![a-z])|crawler|spider|scraper")
_LOOKED_AT_MAX: Final = 1024


def classify(user_agent: str) -> str:
    """Return the category of a User-Agent, or "" if it does not name a bot."""
    text = user_agent[:_LOOKED_AT_MAX].lower()
    found = _KNOWN.findall(text)
    if found:
        return _NAMES[max(found, key=len)]
    return "other_bot" if _SELF_DECLARED.search(text) else ""


_categories: Final[MemoDict[bytes, str]] = MemoDict(lambda raw: classify(raw.decode("latin-1")))


def bot_category(raw: bytes) -> str:
    """Return the category of a raw header value, or "". Clients send the same few values all the time: it is cached."""
    return _categories[raw[:_LOOKED_AT_MAX]]


_OWN: Final = "x-breakloop-key"


class CallerKeys:
    """The keys of all callers, from entries `NAME=SHA256`. A name may have several keys, to rotate them.

    Digests are looked up by a second digest that is keyed with a secret of this process, so the time of a lookup
    depends neither on the stored digests nor on their number.
    """

    def __init__(self, entries: Sequence[str], prefix: str = "X-Breakloop-") -> None:
        self._keyed = blake2b(digest_size=32, key=secrets.token_bytes(32))
        # The SDK does not know the prefix before its first response, so its own field is always accepted.
        self.own_headers = tuple(dict.fromkeys((f"{prefix}Key".lower(), _OWN)))
        self._names: dict[bytes, str] = {}
        for entry in entries:
            name, _, digest = entry.rpartition("=")
            self._names[self._lookup_key(bytes.fromhex(digest))] = name

    def find(self, call: Call) -> dict[str, bytes]:
        """Return the callers whose keys a request carries, each with its key. `X-Breakloop-Key` decides alone: beside
        it, the other fields hold the key of a provider.
        """
        headers = call.headers
        found = self._known(headers[name] for name in self.own_headers if name in headers)
        return found or self._known(_keys(call))

    def _known(self, keys: Iterator[bytes]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for key in keys:
            name = self._names.get(self._lookup_key(sha256(key).digest()))
            if name is not None:
                found.setdefault(name, key)
        return found

    def _lookup_key(self, digest: bytes) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(digest)
        return keyed.digest()


def _keys(call: Call) -> Iterator[bytes]:
    """Yield the keys in all places where LLM APIs accept one."""
    headers, query = call.headers, call.query
    authorization = headers.get("authorization")
    if authorization:
        scheme, _, value = authorization.partition(b" ")
        yield value.strip() if scheme.lower() == b"bearer" else authorization
    for name in API_KEY_HEADERS:
        if name in headers:
            yield headers[name]
    if "key" in query or "%" in query:
        for part in query.encode("latin-1", "replace").split(b"&"):
            name_sent, _, value = part.replace(b"+", b" ").partition(b"=")
            if unquote_to_bytes(name_sent) == b"key":
                yield unquote_to_bytes(value)
