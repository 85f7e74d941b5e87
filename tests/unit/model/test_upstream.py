"""Upstreams as people write them: what is read, and what is refused with a remedy."""

from __future__ import annotations

import pytest

from breakloop.errors import SettingsError
from breakloop.model.upstream import (
    BUILTIN,
    RESERVED,
    Upstream,
    UpstreamUrlError,
    parse_named,
    parse_upstream,
    upstreams,
)
from tests.each import each


@each(
    "url, expected",
    [
        ("https://api.openai.com", (True, "api.openai.com", 443, b"api.openai.com", b"")),
        ("https://api.openai.com/", (True, "api.openai.com", 443, b"api.openai.com", b"")),
        ("HTTPS://API.OpenAI.com:443/v1/", (True, "api.openai.com", 443, b"api.openai.com", b"/v1")),
        ("http://127.0.0.1:9000", (False, "127.0.0.1", 9000, b"127.0.0.1:9000", b"")),
        ("http://127.0.0.1:80", (False, "127.0.0.1", 80, b"127.0.0.1", b"")),
        ("https://x.example:80", (True, "x.example", 80, b"x.example:80", b"")),
        ("http://[::1]:8000/mcp", (False, "::1", 8000, b"[::1]:8000", b"/mcp")),
        ("https://[2001:DB8::1]", (True, "2001:db8::1", 443, b"[2001:db8::1]", b"")),
        ("http://my_llm:65535", (False, "my_llm", 65535, b"my_llm:65535", b"")),
        ("http://x:1", (False, "x", 1, b"x:1", b"")),
        ("https://x.example./a/b.c~d/v1//", (True, "x.example.", 443, b"x.example.", b"/a/b.c~d/v1")),
        ("https://openrouter.ai/api/v1", (True, "openrouter.ai", 443, b"openrouter.ai", b"/api/v1")),
    ],
)
def test_urls(url: str, expected: tuple[bool, str, int, bytes, bytes]) -> None:
    """Scheme, host and port to connect to, the Host value, and the path in front of all paths (D-2)."""
    assert parse_upstream("x", url) == Upstream("x", *expected)


def test_url_of_an_upstream_is_as_a_person_writes_it() -> None:
    """The banner and doctor show it (T-2)."""
    assert parse_upstream("x", "HTTP://[::1]:8000/v1/").url == "http://[::1]:8000/v1"
    assert parse_upstream("x", "https://a.example:443").url == "https://a.example"


@each(
    "url, message, hint",
    [
        ("", "does not begin with http", "https://llm.example.com"),
        ("api.openai.com", "does not begin with http", "https://llm.example.com"),
        ("//api.openai.com", "does not begin with http", "https://llm.example.com"),
        ("ftp://x", "does not begin with http", "https://"),
        ("unix:///run/x.sock", "does not begin with http", "https://"),
        ("https://", "has no host", "https://"),
        ("https:///v1", "has no host", "https://"),
        ("https://:443", "has no host", "https://"),
        ("https://x?api-version=1", "query or a fragment", "leave it out"),
        ("https://x/#top", "query or a fragment", "leave it out"),
        ("https://u:secret@x", "user name or password", "upstream_keys"),
        ("https://secret@x/v1", "user name or password", "upstream_keys"),
        ("https://x:0", "port", "8080"),
        ("https://x:65536", "port", "8080"),
        ("https://x:", "port", "8080"),
        ("https://x:http", "port", "8080"),
        ("https://x:-1", "port", "8080"),
        ("https://x:٣", "ASCII", "xn--"),
        ("http://::1", "too many colons", "[::1]"),
        ("http://::1:8000", "too many colons", "[::1]"),
        ("http://[::1", "not an IPv6 address", "[::1]"),
        ("http://[::1]8000", "not an IPv6 address", "[::1]"),
        ("http://[::g]", "not an IPv6 address", "[::1]"),
        ("http://[fe80::1%eth0]", "not an IPv6 address", "[::1]"),
        ("http://[127.0.0.1]", "not an IPv6 address", "[::1]"),
        ("http://10.0.0.256", "neither a name nor an address", "https://"),
        ("http://127.1", "neither a name nor an address", "https://"),
        ("http://a..b", "neither a name nor an address", "https://"),
        ("http://-a", "neither a name nor an address", "https://"),
        ("http://a%20b", "neither a name nor an address", "https://"),
        ("http://" + "a" * 254, "neither a name nor an address", "https://"),
        ("https://x y", "space", "xn--"),
        ("https://x\n", "space", "xn--"),
        ("https://münchen.example", "ASCII", "xn--"),
        ("https://x/a/../b", "dot segments", "write it as in"),
        ("https://x/.", "dot segments", "write it as in"),
        ("https://x/..;/b", "dot segments", "write it as in"),
        ("https://x/a//b", "empty segments", "write it as in"),
        ("https://x/%41", "escapes", "write it as in"),
        ("https://x\\y/v1", "neither a name nor an address", "https://"),
        ("https://api.openai.com/v1/chat/completions", "a single endpoint", "/v1"),
        ("https://api.anthropic.com/v1/messages/", "a single endpoint", "/v1"),
    ],
)
def test_urls_refused_with_a_remedy(url: str, message: str, hint: str) -> None:
    """Each mistake is named, says what to write, and never repeats the URL with what may be a password (T-2)."""
    with pytest.raises(UpstreamUrlError) as raised:
        parse_upstream("x", url)
    assert message in raised.value.message
    assert hint in raised.value.hint
    assert str(raised.value) == f"{raised.value.message} ({raised.value.hint})"
    assert "secret" not in str(raised.value)
    assert isinstance(raised.value, SettingsError)


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a/b", "a.b", "ä", "a" * 64, "a b"])
def test_names_refused(name: str) -> None:
    """A name is one plain segment of a path (D-2)."""
    with pytest.raises(UpstreamUrlError, match=r"the name is not valid \(lower-case letters"):
        parse_upstream(name, "https://x")


@pytest.mark.parametrize("name", ["v1", "v1beta", "agents", "livez", "readyz"])
def test_reserved_names_refused(name: str) -> None:
    """These begin paths of their own (D-2)."""
    assert name in RESERVED
    with pytest.raises(UpstreamUrlError, match="choose another name"):
        parse_upstream(name, "https://x")


@pytest.mark.parametrize("text", ["openai", "https://x", "https://secret@x?a=b", "/a=b"])
def test_not_name_and_url(text: str) -> None:
    """A forgotten name is said as such (T-2)."""
    with pytest.raises(UpstreamUrlError, match=r"is not NAME=URL \(write openai=https://") as raised:
        parse_named(text)
    assert "secret" not in str(raised.value)


def test_a_query_in_a_url_does_not_confuse_the_name() -> None:
    """The first equals sign ends the name (T-2)."""
    assert parse_named("a=https://x/b=c").base == b"/b=c"


def test_the_built_in_ones_stay_and_the_first_given_is_the_default() -> None:
    """--upstream adds or replaces (D-2, T-2)."""
    assert [one.name for one in upstreams([])] == ["openai", "anthropic", "gemini"]
    assert [one.url for one in upstreams([])] == list(BUILTIN.values())
    found = upstreams(["mine=http://m", "anthropic=http://a"])
    assert [(one.name, one.url) for one in found] == [
        ("mine", "http://m"),
        ("anthropic", "http://a"),
        ("openai", "https://api.openai.com"),
        ("gemini", "https://generativelanguage.googleapis.com"),
    ]
