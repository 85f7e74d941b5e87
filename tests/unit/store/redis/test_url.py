from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from breakloop.errors import SettingsError
from breakloop.store.redis.url import Address, RedisUrl, is_redis_url, parse_redis_url, tls_context
from tests.e2e.certificates import Authority
from tests.each import each


@each(
    "text, expected",
    [
        ("redis://cache", RedisUrl("single", (Address("cache", 6379),))),
        ("redis://cache:7000/3", RedisUrl("single", (Address("cache", 7000),), db=3)),
        ("redis://:pw@cache/", RedisUrl("single", (Address("cache", 6379),), password="pw")),
        ("redis://me:p%40%2F%3A@h", RedisUrl("single", (Address("h", 6379),), user="me", password="p@/:")),
        ("redis://me:a:b@h", RedisUrl("single", (Address("h", 6379),), user="me", password="a:b")),
        ("redis://[::1]:7000", RedisUrl("single", (Address("::1", 7000),))),
        ("rediss://h", RedisUrl("single", (Address("h", 6379),), tls=True)),
        ("redis://h?tls=true", RedisUrl("single", (Address("h", 6379),), tls=True)),
        ("redis+cluster://a:1,b:2/", RedisUrl("cluster", (Address("a", 1), Address("b", 2)))),
        ("rediss+cluster://a", RedisUrl("cluster", (Address("a", 6379),), tls=True)),
        ("redis+sentinel://a,b:2/main", RedisUrl("sentinel", (Address("a", 26379), Address("b", 2)), service="main")),
        ("redis+sentinel://a/main/4", RedisUrl("sentinel", (Address("a", 26379),), service="main", db=4)),
        ("rediss+sentinel://a/m", RedisUrl("sentinel", (Address("a", 26379),), service="m", tls=True)),
        ("redis://h?time_budget_ms=20", RedisUrl("single", (Address("h", 6379),), time_budget_ms=20)),
        ("redis://h?time_budget_ms=1", RedisUrl("single", (Address("h", 6379),), time_budget_ms=1)),
        ("redis://h?time_budget_ms=60000", RedisUrl("single", (Address("h", 6379),), time_budget_ms=60_000)),
        ("redis://h:1", RedisUrl("single", (Address("h", 1),))),
        ("redis://h:65535", RedisUrl("single", (Address("h", 65535),))),
        ("redis://h?tls=false", RedisUrl("single", (Address("h", 6379),))),
        ("redis+sentinel://a/my%20service", RedisUrl("sentinel", (Address("a", 26379),), service="my service")),
        (
            "rediss://h/0?ca_file=/ca.pem&cert_file=/c.pem&key_file=/k.pem&tls=true&time_budget_ms=9",
            RedisUrl(
                "single",
                (Address("h", 6379),),
                tls=True,
                ca_file="/ca.pem",
                cert_file="/c.pem",
                key_file="/k.pem",
                time_budget_ms=9,
            ),
        ),
    ],
)
def test_parse(text: str, expected: RedisUrl) -> None:
    """Every form of a Redis URL (S-1)."""
    assert is_redis_url(text)
    assert parse_redis_url(text) == expected


def test_the_time_budget_is_50_ms_unless_it_is_said() -> None:
    """The time budget is 50 ms unless it is said (S-3)."""
    assert parse_redis_url("redis://h").time_budget_ms == 50


SECRET = "hunter2"


@each(
    "text, says",
    [
        ("memory://", "begins with redis://, rediss://"),
        (SECRET, "begins with redis://"),
        (f"redis://:{SECRET}@", "no usable host and port: write redis://[user:password@]host:port/db"),
        (f"redis://:{SECRET}@h:port", "no usable host and port"),
        (f"redis://:{SECRET}@h:0", "no usable host and port"),
        (f"redis://:{SECRET}@h:65536", "no usable host and port"),
        (f"redis://:{SECRET}@h:1,", "no usable host and port"),
        (f"redis://:a/{SECRET}@h:1/0", "write @ / ? # of a user or password as %40 %2F %3F %23"),
        (f"redis://:a?{SECRET}@h:1/0", "as %40 %2F %3F %23"),
        (f"redis://:a#{SECRET}@h:1/0", "as %40 %2F %3F %23"),
        (f"redis://:a/{SECRET}", "the database in the Redis URL is not a number"),
        (f"redis://{SECRET}@h", "no password in the Redis URL"),
        (f"redis://:{SECRET}@a:1,b:2", "several servers are a cluster or behind Sentinel"),
        (f"redis://:{SECRET}@h/x", "the database in the Redis URL is not a number"),
        (f"redis:///{SECRET}", "the database in the Redis URL is not a number"),
        (f"redis://:{SECRET}@h/1/2", "the database in the Redis URL is not a number"),
        (f"redis+cluster://:{SECRET}@h/1", "database 0 only"),
        (f"redis+sentinel://:{SECRET}@h/", "does not name the master's service: write redis+sentinel://"),
        (f"redis://:{SECRET}@h?insecure=yes", "certificates are always checked"),
        (f"redis://:{SECRET}@h?timeout={SECRET}", "options of a Redis URL are time_budget_ms, tls, ca_file"),
        (f"redis://:{SECRET}@h?tls=true&tls=true", "each once"),
        (f"redis://:{SECRET}@h?ca_file=", "has no value"),
        (f"redis://:{SECRET}@h?tls={SECRET}", "tls in a Redis URL is true or left out"),
        (f"rediss://:{SECRET}@h?tls=false", "tls in a Redis URL is true or left out"),
        (f"redis://:{SECRET}@h?time_budget_ms=0", "from 1 to 60000"),
        (f"redis://:{SECRET}@h?time_budget_ms=60001", "from 1 to 60000"),
        (f"redis://:{SECRET}@h?time_budget_ms=fast", "from 1 to 60000"),
        (f"redis://:{SECRET}@h?ssl_cert_reqs=none", "certificates are always checked"),
        (f"redis://:{SECRET}@h?ca_file=/ca.pem", "are for TLS: write rediss://"),
        (f"redis://:{SECRET}@h?cert_file=/c.pem", "are for TLS: write rediss://"),
        (f"redis://:{SECRET}@h?key_file=/k.pem", "are for TLS: write rediss://"),
        (f"rediss://:{SECRET}@h?key_file=/k.pem", "needs its cert_file"),
    ],
)
def test_a_bad_url_says_what_to_write_and_quotes_nothing(text: str, says: str) -> None:
    """No part of a URL that may be a password is in the message (Y-1)."""
    with pytest.raises(SettingsError) as caught:
        parse_redis_url(text)
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://h", "redis://h:6379/"),
        ("redis://:hunter2@h/3", "redis://:***@h:6379/3"),
        ("redis://me:hunter2@h", "redis://me:***@h:6379/"),
        ("rediss+cluster://:hunter2@[::1]:1,b:2", "rediss+cluster://:***@[::1]:1,b:2/"),
        ("redis+sentinel://a/main/4?time_budget_ms=9", "redis+sentinel://a:26379/main/4?time_budget_ms=9"),
        ("redis://h?tls=true&ca_file=/ca", "rediss://h:6379/?ca_file=/ca"),
    ],
)
def test_the_printed_form_holds_no_password(text: str, shown: str) -> None:
    """The printed form holds no password (Y-1)."""
    url = parse_redis_url(text)
    assert str(url) == shown
    assert repr(url) == f"RedisUrl({shown})"


def test_tls_checks_names(tmp_path: Path) -> None:
    """There is no way to switch the check of certificates off."""
    authority = Authority(tmp_path)
    files = authority.issue("client")
    assert tls_context(parse_redis_url("redis://h")) is None
    url = f"rediss://h?ca_file={authority.file}&cert_file={files.certificate}&key_file={files.key}"
    made = tls_context(parse_redis_url(url))
    assert made is not None
    assert made.check_hostname
    assert made.verify_mode is ssl.CERT_REQUIRED
    assert "authority" in str(made.get_ca_certs()[-1]["subject"])


def test_tls_is_at_least_1_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a Python that leaves the versions to OpenSSL."""
    older = ssl.create_default_context()
    older.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    monkeypatch.setattr(ssl, "create_default_context", lambda: older)
    made = tls_context(parse_redis_url("rediss://h"))
    assert made is not None
    assert made.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("ca_file={absent}", "ca_file in the Redis URL: {absent}: cannot be read: No such file"),
        ("ca_file={empty}", "ca_file in the Redis URL: {empty} contains no certificate in PEM format"),
        ("cert_file={empty}", "cert_file in the Redis URL: {empty} contains no certificate with its key"),
        ("cert_file={absent}", "cert_file in the Redis URL: {absent}: cannot be read: No such file"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, query: str, says: str) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    names = {"absent": str(tmp_path / "absent.pem"), "empty": str(empty)}
    with pytest.raises(SettingsError) as caught:
        tls_context(parse_redis_url("rediss://h?" + query.format(**names)))
    assert says.format(**names) in str(caught.value)
