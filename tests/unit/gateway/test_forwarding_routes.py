"""Which upstream gets a request, what policies see of its path, and what is sent."""

from __future__ import annotations

import pytest

from breakloop.errors import RequestError
from breakloop.gateway.forwarding import Destination, UpstreamRoutes
from breakloop.model.upstream import upstreams
from breakloop.policy.cache import MemoDict
from tests.each import each

OPENAI, ANTHROPIC, GEMINI = "api.openai.com", "api.anthropic.com", "generativelanguage.googleapis.com"


def find(path: bytes | str, *given: str) -> Destination:
    """Find twice, the second time from memory."""
    targets = UpstreamRoutes(upstreams(given))
    raw = path.encode() if isinstance(path, str) else path
    first = targets.find(raw, {})
    assert targets.find(raw, {}) == first
    return first


def went(path: str, *given: str) -> tuple[str, str, str]:
    found = find(path, *given)
    return found.upstream.host, found.path, found.target.decode()


@each(
    "path, host, seen",
    [
        ("/v1/chat/completions", OPENAI, "/v1/chat/completions"),
        ("/v1/messages", ANTHROPIC, "/v1/messages"),
        ("/v1/messages/", ANTHROPIC, "/v1/messages/"),
        ("/v1/messages/count_tokens", ANTHROPIC, "/v1/messages/count_tokens"),
        ("/v1/messagesx", OPENAI, "/v1/messagesx"),
        ("/v1/messages-x/y", OPENAI, "/v1/messages-x/y"),
        ("/v1beta/models/g:generateContent", GEMINI, "/v1beta/models/g:generateContent"),
        ("/v1beta", GEMINI, "/v1beta"),
        ("/v1beta1/x", OPENAI, "/v1beta1/x"),
        ("/v2/x", OPENAI, "/v2/x"),
        ("/", OPENAI, "/"),
        ("/api/v1/chat/completions", OPENAI, "/api/v1/chat/completions"),
        ("/openai/v1/messages", OPENAI, "/v1/messages"),
        ("/anthropic/v1/chat/completions", ANTHROPIC, "/v1/chat/completions"),
        ("/gemini/v1beta/openai/chat/completions", GEMINI, "/v1beta/openai/chat/completions"),
        ("/gemini/upload/v1beta/files", GEMINI, "/upload/v1beta/files"),
        ("/anthropic", ANTHROPIC, "/"),
        ("/anthropic/", ANTHROPIC, "/"),
        ("/anthropic/anthropic/x", ANTHROPIC, "/anthropic/x"),
        ("/Anthropic/x", OPENAI, "/Anthropic/x"),
        ("/anthropics/x", OPENAI, "/anthropics/x"),
        ("/openai/agents/x/y", OPENAI, "/agents/x/y"),
    ],
)
def test_paths(path: str, host: str, seen: str) -> None:
    """The default, by version and dialect, by name; whatever else goes to the default (D-2)."""
    assert went(path) == (host, seen, seen)
    assert find(path).agent == ""


@each(
    "path, agent, host, seen",
    [
        ("/agents/bob/v1/chat/completions", "bob", OPENAI, "/v1/chat/completions"),
        ("/agents/bob/v1/messages", "bob", ANTHROPIC, "/v1/messages"),
        ("/agents/bob/gemini/v1beta/x", "bob", GEMINI, "/v1beta/x"),
        ("/agents/my%20agent/anthropic/v1/x", "my agent", ANTHROPIC, "/v1/x"),
        ("/agents/bob", "bob", OPENAI, "/"),
        ("/agents/bob/", "bob", OPENAI, "/"),
        ("/agents/openai/v1/x", "openai", OPENAI, "/v1/x"),
        ("/agents/a/agents/b/x", "a", OPENAI, "/agents/b/x"),
        ("/agents/", "", OPENAI, "/agents/"),
        ("/agents", "", OPENAI, "/agents"),
    ],
)
def test_agents(path: str, agent: str, host: str, seen: str) -> None:
    """The same with the agent named in front (D-2)."""
    assert went(path) == (host, seen, seen)
    assert find(path).agent == agent


def test_given_upstreams() -> None:
    """The first given is the default; a replaced one gets what belonged to the built-in one (D-2, T-2)."""
    mine = "mine=http://mine.example:81"
    assert went("/v1/x", mine) == ("mine.example", "/v1/x", "/v1/x")
    assert went("/mine/v1/messages", mine)[0] == "mine.example"
    assert went("/v1/messages", mine)[0] == ANTHROPIC
    assert went("/openai/v1/x", mine)[0] == OPENAI
    assert went("/v1/messages", mine, "anthropic=http://a.example")[0] == "a.example"
    assert find("/v1/x", mine).upstream.authority == b"mine.example:81"
    without = UpstreamRoutes(upstreams([mine])[:1])
    assert [without.find(path, {}).upstream.name for path in (b"/v1/messages", b"/v1beta/x")] == ["mine", "mine"]


@each(
    "path, base, seen, sent",
    [
        ("/v1/chat/completions", "/v1", "/v1/chat/completions", "/v1/chat/completions"),
        ("/chat/completions", "/v1", "/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions", "/api/v1", "/v1/chat/completions", "/api/v1/chat/completions"),
        ("/api/v1/chat/completions", "/api/v1", "/v1/chat/completions", "/api/v1/chat/completions"),
        ("/chat/completions", "/api/v1", "/v1/chat/completions", "/api/v1/chat/completions"),
        ("/x/v1/chat/completions", "/api/v1", "/v1/chat/completions", "/api/v1/chat/completions"),
        ("/v1", "/v1", "/v1", "/v1"),
        ("/v1/", "/v1", "/v1/", "/v1/"),
        ("/v10/y", "/v1", "/v1/v10/y", "/v1/v10/y"),
        ("/v1/v1/y", "/v1", "/v1/v1/y", "/v1/v1/y"),
        ("/x", "/v1", "/v1", "/v1"),
        ("/v4/y", "/paas/v4", "/v4/y", "/paas/v4/y"),
        ("/v1beta/y", "/v1beta", "/v1beta/y", "/v1beta/y"),
        ("/x", "/mcp", "/", "/mcp"),
        ("/x/", "/mcp", "/", "/mcp/"),
        ("/x/mcp", "/mcp", "/mcp", "/mcp/mcp"),
        ("/v1/y", "/base", "/v1/y", "/base/v1/y"),
    ],
)
def test_base_paths(path: str, base: str, seen: str, sent: str) -> None:
    """A version is not doubled, and the same path sent is the same path seen (D-2, R-3)."""
    assert went(path, f"x=http://x.example{base}", "gemini=http://x.example" + base) == ("x.example", seen, sent)


@each(
    "path, given, host, sent",
    [
        ("/openai/deployments/d/chat/completions", "azure=https://r.openai.azure.com", "r.openai.azure.com", None),
        ("/openai/deployments", "azure=https://r.openai.azure.com", "r.openai.azure.com", None),
        (
            "/azure/openai/deployments/d/x",
            "azure=https://r.openai.azure.com",
            "r.openai.azure.com",
            "/openai/deployments/d/x",
        ),
        ("/openai/deployments/d/x", "openai=https://r.openai.azure.com", "r.openai.azure.com", None),
        ("/openai/deployments/d/x", "openai=https://r.openai.azure.com/openai", "r.openai.azure.com", None),
        ("/openai/v1/responses", "openai=https://r.openai.azure.com", "r.openai.azure.com", None),
        ("/openai/v1/responses", "openai=https://r.openai.azure.com/openai/v1", "r.openai.azure.com", None),
        ("/v1/responses", "openai=https://r.openai.azure.com/openai/v1", "r.openai.azure.com", "/openai/v1/responses"),
        ("/openai/v1/responses", "azure=https://r.openai.azure.com", OPENAI, "/v1/responses"),
        ("/openai/responses", "azure=https://r.openai.azure.com", "r.openai.azure.com", None),
        ("/openai/models", "az=https://r.cognitiveservices.azure.com/", "r.cognitiveservices.azure.com", None),
        ("/openai/responses", "mine=http://litellm.example:4000", OPENAI, "/responses"),
        ("/openai/chat/completions", "openai=http://127.0.0.1:9000/v1", "127.0.0.1", "/v1/chat/completions"),
        ("/openai/deployments/d/x", "mine=http://litellm.example:4000", "litellm.example", None),
        ("/openai/deployments/d/x", "openai=http://127.0.0.1:9000", "127.0.0.1", None),
        ("/openai/v1/x", "openai=http://127.0.0.1:9000", "127.0.0.1", "/v1/x"),
        ("/openai/deploymentsx", "mine=http://litellm.example:4000", OPENAI, "/deploymentsx"),
        (
            "/agents/a/openai/deployments/d/x",
            "az=https://r.openai.azure.com",
            "r.openai.azure.com",
            "/openai/deployments/d/x",
        ),
    ],
)
def test_azure(path: str, given: str, host: str, sent: str | None) -> None:
    """/openai/deployments and the like are Azure's, not the upstream `openai`; all of it is sent (D-2)."""
    found = find(path, given)
    assert (found.upstream.host, found.target.decode()) == (host, sent or path)


def test_azure_beside_openai_itself() -> None:
    """With Azure among the upstreams its paths find it; without, they are OpenAI's, which answers 404 itself (D-2)."""
    path = "/openai/deployments/d/chat/completions"
    given = ("openai=https://api.openai.com", "azure=https://r.openai.azure.com")
    assert went(path, *given) == ("r.openai.azure.com", path, path)
    assert went("/openai/v1/models", *given) == (OPENAI, "/v1/models", "/v1/models")
    replaced = ("openai=http://127.0.0.1:9000/v1", "azure=https://r.openai.azure.com")
    assert went("/openai/chat/completions", *replaced)[0] == "127.0.0.1"
    assert went(path) == (OPENAI, "/deployments/d/chat/completions", "/deployments/d/chat/completions")


@each(
    "path, seen, sent",
    [
        # Sent as it came, where it means the same.
        ("/v1/%63hat", "/v1/chat", "/v1/%63hat"),
        ("/v1//chat", "/v1/chat", "/v1//chat"),
        ("/v1/./chat", "/v1/chat", "/v1/./chat"),
        ("/v1/a%3ab", "/v1/a%3Ab", "/v1/a%3ab"),
        ("/openai/v1/%63hat", "/v1/chat", "/v1/%63hat"),
        ("/openai/v1/../v2/x", "/v2/x", "/v1/../v2/x"),
        ("/agents/b/openai/v1/%63hat/", "/v1/chat/", "/v1/%63hat/"),
        ("/%6fpenai/v1/%63hat", "/v1/chat", "/v1/%63hat"),
        # Not sent as it came: dot segments or empty ones reach into what is cut off.
        ("/openai/../openai/v1/x", "/v1/x", "/v1/x"),
        ("/openai/../openai/v1/%63hat", "/v1/chat", "/v1/chat"),
        ("//openai/v1/%63hat", "/v1/chat", "/v1/chat"),
        ("/./openai/v1/%63hat", "/v1/chat", "/v1/chat"),
        ("/agents/a/../b/v1/%63hat", "/v1/chat", "/v1/chat"),
        ("/agents//b/v1/%63hat", "/v1/chat", "/v1/chat"),
        ("/x/%2e%2e/openai/v1/%63hat", "/v1/chat", "/v1/chat"),
    ],
)
def test_the_original_is_sent_where_it_means_the_same(path: str, seen: str, sent: str) -> None:
    """What was judged is what the upstream reads (R-3)."""
    assert went(path) == (OPENAI, seen, sent)


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/anthropic/../v1/messages", ANTHROPIC),
        ("/anthropic/../openai/v1/x", OPENAI),
        ("/v1/messages/../x", OPENAI),
        ("/v1/x/../messages", ANTHROPIC),
        ("/agents/../gemini/x", GEMINI),
        ("/%61nthropic/x", ANTHROPIC),
        ("/v1/%6dessages", ANTHROPIC),
    ],
)
def test_tricks_change_no_route(path: str, host: str) -> None:
    """The normal form chooses, so there is no second spelling that goes elsewhere (R-3)."""
    assert went(path)[0] == host


@each(
    "path, sent",
    [
        ("/x/../admin", "/base/admin"),
        ("/x/a/../../admin", "/base/admin"),
        ("/x/../../../admin", "/base/admin"),
        ("/x/y/../z", "/api/z"),
        ("/x/y/%2e%2e/z", "/api/z"),
        ("/x/y/%2E./z", "/api/z"),
        ("/x/./z", "/api/z"),
        ("/x/z/..", "/api/"),
        ("/x/..y/z", "/api/..y/z"),
        ("/x/y//%7az", "/api/y//%7az"),
    ],
)
def test_dot_segments_do_not_leave_the_base(path: str, sent: str) -> None:
    """An upstream below a path stays below it; what leaves its name is a path of the default (D-2, Y-3)."""
    assert find(path, "default=http://d.example/base", "x=http://x.example/api").target.decode() == sent


@pytest.mark.parametrize(
    "path", ["/x/..;/admin", "/x/a/..;b=c/admin", "/x/.;/admin", "/x/..%3b/admin", "/x/%2e%2e%3B/admin"]
)
def test_dot_segments_with_parameters_are_refused(path: str) -> None:
    """Some servers cut the parameter off and go up (Y-3)."""
    for url in ("http://x.example/api", "http://x.example"):
        with pytest.raises(RequestError) as raised:
            find(path, "d=http://d.example", f"x={url}")
        assert raised.value.status == 400


@pytest.mark.parametrize("path", [b"/a%2fb", b"/openai/a%5cb", b"/a\\b", b"/a%00", b"/a%", b"/a%zz", b"*", b"a/b", b""])
def test_paths_with_two_meanings_are_refused(path: bytes) -> None:
    """And refused again when they come again (R-3)."""
    targets = UpstreamRoutes(upstreams([]))
    if path == b"":
        assert targets.find(path, {}).target == b"/"
        return
    for _ in range(2):
        with pytest.raises(RequestError) as raised:
            targets.find(path, {})
        assert raised.value.status == 400


def test_what_is_remembered_is_bounded() -> None:
    """Unique paths do not fill the memory, long ones are not kept (Y-2)."""
    targets = UpstreamRoutes(upstreams([]))
    for number in range(MemoDict.max_entries + 10):
        targets.find(b"/%d" % number, {})
    assert len(targets._cache[""]) <= MemoDict.max_entries
    known = len(targets._cache[""])
    targets.find(b"/" + b"x" * 5000, {})
    assert len(targets._cache[""]) == known


def test_anthropics_clients_reach_anthropic_with_every_path_of_theirs() -> None:
    """/v1/models is a path of several providers, and the field says whose it is; a name in the path counts more
    (D-2)."""
    targets = UpstreamRoutes(upstreams([]))
    fields = {"anthropic-version": b"2023-06-01"}
    for path in (b"/v1/models", b"/v1/files", b"/agents/a/v1/models"):
        assert (targets.find(path, fields).upstream.name, targets.find(path, {}).upstream.name) == (
            "anthropic",
            "openai",
        )
    assert targets.find(b"/openai/v1/models", fields).upstream.name == "openai"
    assert targets.find(b"/v1beta/models", fields).upstream.name == "gemini"
    assert targets.find(b"/other", fields).upstream.name == "openai"
