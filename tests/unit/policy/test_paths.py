"""Paths, targets and hosts in normal form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.errors import RequestError
from breakloop.policy.paths import normalise, normalise_host, strip_agent
from tests.each import each


@each(
    "sent, normal",
    [
        ("/", "/"),
        ("", "/"),
        ("*", "*"),
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/%63hat/%7euser", "/v1/chat/~user"),
        ("//v1///chat", "/v1/chat"),
        ("/v1/", "/v1/"),
        ("/v1//", "/v1/"),
        ("/v1/./chat/../models", "/v1/models"),
        ("/v1/%2e%2E/admin", "/admin"),
        ("/../../x", "/x"),
        ("/a/..", "/"),
        ("/a/b/..", "/a/"),
        ("/a/b/.", "/a/b/"),
        ("/a//../b", "/b"),
        ("/.well-known/x", "/.well-known/x"),
        ("/a/...", "/a/..."),
        ("/a%20b%3fc%25", "/a%20b%3Fc%25"),
        ("/a%252fb", "/a%252fb"),
        ("/caf\u00e9", "/caf%C3%A9"),
        ("/caf%c3%a9", "/caf%C3%A9"),
        ("/a b{c}", "/a%20b%7Bc%7D"),
        ("/models/gemini:generateContent", "/models/gemini:generateContent"),
    ],
)
def test_normalises(sent: str, normal: str) -> None:
    """Unreserved characters decoded, double slashes and dot segments resolved, the rest in one spelling (R-3)."""
    assert normalise(sent) == normal
    assert normalise(sent.encode()) == normal


@each(
    "sent",
    ["/a%2fb", "/a%2Fb", "/a%5cb", "/a\\b", "/a%00", "/a\0b", "/a%", "/a%2", "/a%zz", "/a%2%66b", "/a#b", "v1/x"],
)
def test_refuses_what_can_be_read_in_two_ways(sent: str) -> None:
    """An encoded slash, backslash or NUL is 400; so is a stray percent sign, which could become one (R-3)."""
    with pytest.raises(RequestError) as caught:
        normalise(sent)
    assert caught.value.status == 400
    with pytest.raises(RequestError):
        normalise(sent.encode())


def test_a_path_that_is_not_text_is_refused() -> None:
    with pytest.raises(RequestError):
        normalise("/a\ud800")


_PIECES = st.sampled_from(
    ["/", "//", ".", "..", "%2e", "%2E", "%41", "%c3", "%25", "a", "b", "\u00e9", " ", ";", ":", "%"]
)


@given(
    st.lists(_PIECES, max_size=12).map(lambda pieces: "/" + "".join(pieces)) | st.binary().map(lambda raw: b"/" + raw)
)
def test_normalising_twice_changes_nothing(path: str | bytes) -> None:
    """The normal form is its own normal form, and holds nothing left to resolve (R-3)."""
    try:
        once = normalise(path)
    except RequestError:
        return
    assert normalise(once) == once
    assert normalise(once.encode()) == once
    assert "//" not in once
    assert not {".", ".."} & set(once.split("/"))


@each(
    "path, expected",
    [
        ("/agents/x/v1/chat", ("x", "/v1/chat")),
        ("/agents/my%20agent/v1", ("my agent", "/v1")),
        ("/agents/x", ("x", "/")),
        ("/agents/x/", ("x", "/")),
        ("/agents/", ("", "/agents/")),
        ("/agents", ("", "/agents")),
        ("/agentsx/y", ("", "/agentsx/y")),
        ("/v1/agents/x", ("", "/v1/agents/x")),
        ("/agents/%C3%BC/v1", ("\u00fc", "/v1")),
        ("/agents/%FF/v1", ("%FF", "/v1")),  # not text: another one than %FE
    ],
)
def test_strip_agent(path: str, expected: tuple[str, str]) -> None:
    """`/agents/{agent}` names the agent and is not part of what is matched (C-7, R-3)."""
    assert strip_agent(path) == expected


@pytest.mark.parametrize(
    ("host", "normal"),
    [
        ("API.Example.com", "api.example.com"),
        ("api.example.com:8080", "api.example.com"),
        ("api.example.com.", "api.example.com"),
        ("api.example.com.:443", "api.example.com"),
        ("api.example.com:", "api.example.com"),
        ("[::1]:8080", "[::1]"),
        ("[2001:DB8::1]", "[2001:db8::1]"),
        ("2001:db8::1", "2001:db8::1"),
        ("", ""),
    ],
)
def test_normalise_host(host: str, normal: str) -> None:
    """Lower case, port and trailing dot dropped (C-1)."""
    assert normalise_host(host) == normal
    assert normalise_host(host.encode()) == normal
