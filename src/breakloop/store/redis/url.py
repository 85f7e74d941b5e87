"""Redis URLs in settings: a single server, a cluster, or behind Sentinel, each with or without TLS.

Nothing here connects. No message and no string form contains the password or a part of a URL that might be one.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from breakloop.errors import SettingsError

Kind = Literal["single", "cluster", "sentinel"]

TIME_BUDGET_MS: Final = 50
_TIME_BUDGET_MAX_MS: Final = 60_000
_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_SCHEMES: Final[dict[str, tuple[Kind, bool]]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
}
_FORMS: Final[dict[Kind, str]] = {
    "single": "redis://[user:password@]host:port/db",
    "cluster": "redis+cluster://[user:password@]host1:port1,host2:port2/",
    "sentinel": "redis+sentinel://[user:password@]host1:port1,host2:port2/service_name[/db]",
}
_FILES: Final = ("ca_file", "cert_file", "key_file")
_OPTIONS: Final = ("time_budget_ms", "tls", *_FILES)
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        """Return host:port, with brackets if the host contains colons."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, repr=False)
class RedisUrl:
    kind: Kind
    addresses: tuple[Address, ...]  # the server; nodes of a cluster; or the Sentinels
    user: str = ""
    password: str = ""
    service: str = ""  # the name of the master in Sentinel
    db: int = 0
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    time_budget_ms: int = TIME_BUDGET_MS

    def __str__(self) -> str:
        """Return the URL with the password masked."""
        scheme = next(name for name, form in _SCHEMES.items() if form == (self.kind, self.tls))
        auth = f"{quote(self.user, safe='')}:***@" if self.password else ""
        path = "/".join(part for part in (quote(self.service), str(self.db) if self.db else "") if part)
        given = {name: getattr(self, name) for name in _FILES if getattr(self, name)}
        if self.time_budget_ms != TIME_BUDGET_MS:
            given["time_budget_ms"] = str(self.time_budget_ms)
        query = "&".join(f"{name}={quote(value)}" for name, value in given.items())
        hosts = ",".join(str(address) for address in self.addresses)
        return f"{scheme}://{auth}{hosts}/{path}" + (f"?{query}" if query else "")

    def __repr__(self) -> str:
        return f"RedisUrl({self})"


def is_redis_url(text: str) -> bool:
    """Return whether the URL has a scheme that `parse_redis_url` accepts."""
    return text.partition("://")[0] in _SCHEMES


def parse_redis_url(text: str) -> RedisUrl:
    """Parse a URL. Raises `SettingsError` with the problem and the expected form, without quoting the URL."""
    scheme, found, rest = text.partition("://")
    if not found or scheme not in _SCHEMES:
        raise SettingsError(f"a Redis URL begins with {', '.join(f'{name}://' for name in _SCHEMES)}")
    kind, tls = _SCHEMES[scheme]
    authority, path, query = _split(rest)
    credentials, found, hosts = authority.rpartition("@")
    user, password = _credentials(credentials, kind) if found else ("", "")
    options = _options(query)
    service, db = _path(path, kind)
    url = RedisUrl(
        kind=kind,
        addresses=tuple(_address(one, kind) for one in hosts.split(",")),
        user=user,
        password=password,
        service=service,
        db=db,
        tls=_tls(options, implied=tls),
        time_budget_ms=_budget(options.get("time_budget_ms", str(TIME_BUDGET_MS))),
        **{name: options[name] for name in _FILES if name in options},
    )
    _check(url)
    return url


def tls_context(url: RedisUrl) -> ssl.SSLContext | None:
    """Return a TLS context that always requires a certificate for the requested name or address."""
    if not url.tls:
        return None
    made = ssl.create_default_context()
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    for name, file in (("ca_file", url.ca_file), ("cert_file", url.cert_file)):
        try:
            if file and name == "ca_file":
                made.load_verify_locations(file)
            elif file:
                made.load_cert_chain(file, url.key_file or None, password="")  # an encrypted key must not prompt
        except ssl.SSLError:
            what = "no certificate" if name == "ca_file" else "no certificate with its key"
            raise SettingsError(f"{name} in the Redis URL: {file} contains {what} in PEM format") from None
        except OSError as error:
            why = error.strerror or "no such file"
            raise SettingsError(f"{name} in the Redis URL: {error.filename or file}: cannot be read: {why}") from None
    return made


def _split(rest: str) -> tuple[str, str, str]:
    cut = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
    authority, after = rest[:cut], rest[cut:]
    if "@" in after or "#" in rest:
        raise SettingsError("in a Redis URL, write @ / ? # of a user or password as %40 %2F %3F %23")
    path, _, query = after.partition("?")
    return authority, path, query


def _credentials(text: str, kind: Kind) -> tuple[str, str]:
    user, _, password = text.partition(":")
    if not password:
        raise SettingsError(
            f"there is an @ but no password in the Redis URL: write {_FORMS[kind]} (:password@ without a user)"
        )
    return unquote(user), unquote(password)


def _address(text: str, kind: Kind) -> Address:
    match = _HOST.fullmatch(text)
    port = int(match[2]) if match and match[2] else _SENTINEL_PORT if kind == "sentinel" else _PORT
    if not match or not 0 < port < 65536:
        raise SettingsError(f"the Redis URL has no usable host and port: write {_FORMS[kind]}")
    return Address(match[1].strip("[]"), port)


def _path(path: str, kind: Kind) -> tuple[str, int]:
    parts = path.strip("/").split("/") if path.strip("/") else []
    service = unquote(parts.pop(0)) if kind == "sentinel" and parts else ""
    if kind == "sentinel" and not service:
        raise SettingsError(f"the Redis URL does not name the master's service: write {_FORMS[kind]}")
    if len(parts) > 1 or (parts and not re.fullmatch(r"\d{1,5}", parts[0])):
        raise SettingsError(f"the database in the Redis URL is not a number: write {_FORMS[kind]}")
    return service, int(parts[0]) if parts else 0


def _options(query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    if "insecure" in options or "ssl_cert_reqs" in options:
        raise SettingsError("certificates are always checked: name your own authority with ?ca_file=FILE")
    if len(options) < len(pairs) or not options.keys() <= set(_OPTIONS):
        raise SettingsError(f"options of a Redis URL are {', '.join(_OPTIONS)}, each once")
    if not all(options.values()):
        raise SettingsError("an option of the Redis URL has no value: write ?name=value&name=value")
    return options


def _tls(options: dict[str, str], *, implied: bool) -> bool:
    said = options.get("tls", "true" if implied else "false")
    if said not in ("true", "false") or (implied and said == "false"):
        raise SettingsError("tls in a Redis URL is true or left out (rediss:// is equivalent)")
    return said == "true"


def _budget(text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text) or not 0 < int(text) <= _TIME_BUDGET_MAX_MS:
        raise SettingsError(f"time_budget_ms in the Redis URL is a whole number from 1 to {_TIME_BUDGET_MAX_MS}")
    return int(text)


def _check(url: RedisUrl) -> None:
    if url.kind == "single" and len(url.addresses) > 1:
        forms = f"{_FORMS['cluster']} or {_FORMS['sentinel']}"
        raise SettingsError(f"several servers are a cluster or behind Sentinel: write {forms}")
    if url.kind == "cluster" and url.db:
        raise SettingsError("a Redis Cluster has database 0 only: leave the number out of the URL")
    if not url.tls and (url.ca_file or url.cert_file or url.key_file):
        raise SettingsError("certificates in a Redis URL are for TLS: write rediss:// (or rediss+cluster and so on)")
    if url.key_file and not url.cert_file:
        raise SettingsError("key_file in the Redis URL needs its cert_file")
