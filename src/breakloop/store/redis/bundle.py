"""The policy bundle that all instances share through Redis.

It is one hash, written by one script, so that of two concurrent pushes one succeeds and the other is rejected. Calls
block and use a connection of their own: the bundle is polled twice a second from a thread, and by commands without
an event loop. Here a bundle is only bytes with a version; `policy` interprets it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final

from breakloop.errors import SettingsError, StateError
from breakloop.store.redis.url import RedisUrl, is_redis_url, parse_redis_url, tls_context

BUNDLE_KEY: Final = "bl:bundle"  # the hash, and the channel that announces a new bundle


@dataclass(frozen=True, slots=True)
class PushedBundle:
    """A stored bundle. `digest` is the SHA-256 of `data`, `pushed_at` the time by the store's clock, as stored."""

    version: int
    digest: str
    data: bytes
    signature: str = ""
    forced: bool = False
    pushed_at: str = ""
    pushed_by: str = ""

    @property
    def stamp(self) -> tuple[str, str]:
        """A value that changes with every push."""
        return self.digest, self.pushed_at


def moment(pushed_at: str) -> str:
    """The time of the push in readable form."""
    try:
        return datetime.fromtimestamp(float(pushed_at), tz=UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return "an unknown time"


class NoPushedBundleError(StateError):
    """No bundle was pushed yet."""


class PushDeniedError(StateError):
    """There is a newer bundle, or a different one with the same version, possibly from a concurrent push."""


_TIMEOUT_S: Final = 2.0  # to connect, and between two reads of a response


class RedisBundle:
    """One bundle in one Redis. Blocks, and is used by one thread at a time; reconnects after every failure."""

    def __init__(self, url: RedisUrl) -> None:
        self._redis = _package()
        tls_context(url)  # reports unusable certificate files immediately
        self._url = url
        self._client: Any = None
        self._script = files("breakloop.store.redis").joinpath("lua", "bundle_push.lua").read_bytes()
        self.name = str(url).partition("?")[0]

    def fetch(self, known: tuple[object, ...] | None) -> PushedBundle | None:
        """Return the bundle, or None if it still has this stamp. Raises `StateError`."""
        digest, pushed_at = (_text(one) for one in self._ask("HMGET", BUNDLE_KEY, "digest", "pushed_at"))
        if known is not None and known == (digest, pushed_at):
            return None
        names = ("version", "digest", "data", "signature", "forced", "pushed_at", "pushed_by")
        found = dict(zip(names, self._ask("HMGET", BUNDLE_KEY, *names), strict=True))
        if found["data"] is None or found["digest"] is None:
            raise NoPushedBundleError("no bundle was pushed yet")
        version = _text(found["version"])
        return PushedBundle(
            int(version) if version.isdecimal() else 0,
            _text(found["digest"]),
            found["data"],
            _text(found["signature"]),
            forced=found["forced"] == b"1",
            pushed_at=_text(found["pushed_at"]),
            pushed_by=_text(found["pushed_by"]),
        )

    def push(self, bundle: PushedBundle) -> bool:
        """Store a bundle atomically; return whether it changed. Raises `PushDeniedError` or `StateError`."""
        forced = "1" if bundle.forced else "0"
        said = (bundle.version, bundle.digest, bundle.data, bundle.signature, bundle.pushed_by, forced, BUNDLE_KEY)
        outcome, *found = (_text(one) for one in self._ask("EVAL", self._script, 1, BUNDLE_KEY, *said))
        if outcome == "refused":
            version, _, at, by = found
            raise PushDeniedError(_refusal(bundle.version, int(version), by, at))
        return outcome == "pushed"

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _ask(self, *command: object) -> Any:
        try:
            if self._client is None:
                self._client = self._connect()
            return self._client.execute_command(*command)
        except (self._redis.RedisError, OSError) as error:
            self.close()
            # The messages of Redis and the network contain addresses, never credentials.
            raise StateError(str(error) or type(error).__name__) from None

    def _connect(self) -> Any:
        url = self._url
        own: dict[str, Any] = {"socket_connect_timeout": _TIMEOUT_S, "socket_timeout": _TIMEOUT_S}
        if url.tls:
            given = {"ssl_ca_certs": url.ca_file, "ssl_certfile": url.cert_file, "ssl_keyfile": url.key_file}
            own |= {"ssl": True, **{name: file for name, file in given.items() if file}}
        own["retry"] = self._retry()
        login = {"username": url.user or None, "password": url.password or None}
        if url.kind == "cluster":
            nodes = [self._redis.cluster.ClusterNode(*address) for address in url.addresses]
            return self._redis.RedisCluster(startup_nodes=nodes, **own, **login)
        if url.kind == "sentinel":
            return self._sentinel(own, login).master_for(url.service, db=url.db, **own, **login)
        (address,) = url.addresses
        return self._redis.Redis(address.host, address.port, db=url.db, **own, **login)

    def _retry(self) -> Any:
        """Retry once, for a connection that was closed while idle; a server that does not respond is not retried."""
        gone = (self._redis.ConnectionError,)
        return self._redis.retry.Retry(self._redis.backoff.NoBackoff(), 1, supported_errors=gone)

    def _sentinel(self, own: dict[str, Any], login: dict[str, Any]) -> Any:
        """Return the Sentinels. They get the user and password of the servers only if they require authentication."""
        sentinels = self._redis.Sentinel(self._url.addresses, sentinel_kwargs=own)
        if self._url.password:
            try:
                sentinels.discover_master(self._url.service)
            except self._redis.RedisError:
                return self._redis.Sentinel(self._url.addresses, sentinel_kwargs={**own, **login})
        return sentinels


def open_shelf(state: str) -> RedisBundle:
    """Return the bundle store for a Redis URL, without connecting yet. Raises `SettingsError`."""
    if not is_redis_url(state):
        raise SettingsError("bundles are pushed to Redis: set state to a Redis URL (redis://HOST:6379)")
    return RedisBundle(parse_redis_url(state))


def _package() -> Any:
    try:
        import redis  # noqa: PLC0415 - an extra: only those with a Redis need it
    except ImportError:
        raise SettingsError('a bundle in Redis needs the extra "redis": pip install "breakloop[redis]"') from None
    return redis


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)


def _refusal(new: int, old: int, by: str, at: str) -> str:
    who = f"pushed by {by or 'unknown'} at {moment(at)}"
    if new == old:
        return f"Redis has version {old} with different content, {who}: use a higher bundle_version"
    return f"Redis has version {old}, {who}, and {new} is lower: use a higher bundle_version"
