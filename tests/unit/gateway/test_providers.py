"""Whose request it is: no provider gets the key of another."""

from __future__ import annotations

from breakloop.gateway.forwarding import Destination, UpstreamRoutes
from breakloop.model.upstream import upstreams
from tests.each import each

CHAT = "/v1/chat/completions"
GENERATE = "/v1/models/gemini-3-pro:generateContent"
VERTEX = "/v1/projects/p/locations/us-east5/publishers/anthropic/models/claude:rawPredict"
VERTEX_GEMINI = "/v1beta1/projects/p/locations/global/publishers/google/models/g:generateContent"

ANTHROPIC_SDK = {"x-api-key": b"k", "anthropic-version": b"2023-06-01"}
GOOGLE_SDK = {"x-goog-api-key": b"k"}


def bearer(key: str) -> dict[str, bytes]:
    return {"authorization": f"Bearer {key}".encode()}


def find(
    path: str, headers: dict[str, bytes], *given: str, query: bytes = b"", held: tuple[str, ...] = ()
) -> Destination:
    return UpstreamRoutes(upstreams(given), held).find(path.encode(), headers, query)


@each(
    "path, headers, name",
    [
        (GENERATE, GOOGLE_SDK, "gemini"),
        (GENERATE, {}, "gemini"),
        (f"/agents/bob{GENERATE}", GOOGLE_SDK, "gemini"),
        ("/v1/models/g:streamGenerateContent", {}, "gemini"),
        ("/models/g:generateContent", {}, "gemini"),
        ("/v1/models", GOOGLE_SDK, "gemini"),
        ("/upload/v1beta/files", GOOGLE_SDK, "gemini"),
        ("/v1/models/ft:gpt-5:org::predict", bearer("sk-proj-1"), "openai"),
        ("/v1/models", ANTHROPIC_SDK, "anthropic"),
        ("/api/oauth/profile", bearer("sk-ant-oat01-1"), "anthropic"),
        (CHAT, bearer("sk-ant-api03-1"), "anthropic"),  # Anthropic has OpenAI's API, too
        (CHAT, bearer("AIza1"), "gemini"),
        (CHAT, bearer("sk-1"), "openai"),
        (CHAT, {"authorization": b"bearer  sk-ant-1"}, "anthropic"),
    ],
)
def test_a_key_or_a_method_leads_to_its_provider(path: str, headers: dict[str, bytes], name: str) -> None:
    """What only one provider has is routed there, whatever the version in the path (D-2)."""
    found = find(path, headers)
    assert (found.upstream.name, found.refusal) == (name, "")


def test_the_default_upstream_gives_up_the_requests_of_other_providers() -> None:
    """Also where another provider is the default, or `openai` and `gemini` are both servers of the user (D-2)."""
    claude = "claude=https://api.anthropic.com"
    assert find(CHAT, bearer("sk-proj-1"), claude).upstream.name == "openai"
    assert find(CHAT, bearer("sk-ant-1"), claude).upstream.name == "claude"
    own = ("openai=http://127.0.0.1:1", "gemini=http://127.0.0.1:2")
    assert find(GENERATE, GOOGLE_SDK, *own).upstream.name == "gemini"


@each(
    "headers, query",
    [
        (bearer("sk-ant-1"), b""),
        (bearer("sk-proj-1"), b""),
        (bearer("AIzaX"), b""),
        (GOOGLE_SDK, b""),
        ({"api-key": b"azure"}, b""),
        (GOOGLE_SDK | bearer("sk-ant-1"), b""),
        ({}, b"key=AIzaX"),
    ],
)
def test_a_server_of_ones_own_gets_every_key(headers: dict[str, bytes], query: bytes) -> None:
    """LiteLLM, vLLM, OpenRouter and Azure as the default: nothing leaves them for a provider, nothing is refused (D-2)."""
    for url in ("http://litellm:4000", "https://openrouter.ai/api/v1", "https://r.openai.azure.com"):
        for path in (CHAT, GENERATE, VERTEX, f"/mine{CHAT}"):
            found = find(path, headers, f"mine={url}", query=query)
            assert (found.upstream.name, found.refusal) == ("mine", ""), (url, path)


@each(
    "path, headers, query, words",
    [
        (f"/openai{GENERATE}", GOOGLE_SDK, b"", ("Google", "api.openai.com", "/gemini")),
        ("/openai/v1/models", ANTHROPIC_SDK, b"", ("Anthropic", "api.openai.com", "/anthropic")),
        ("/openai/v1/models", bearer("sk-ant-1"), b"", ("Anthropic", "api.openai.com", "/anthropic")),
        ("/v1/messages", bearer("sk-proj-1"), b"", ("OpenAI", "api.anthropic.com", "/openai")),
        ("/v1/messages", {"x-api-key": b"sk-or-v1-1"}, b"", ("OpenRouter", "api.anthropic.com", "--upstream")),
        ("/v1beta/models", bearer("sk-ant-1"), b"", ("Anthropic", "generativelanguage", "/anthropic")),
        ("/v1beta/models", {"x-goog-api-key": b"sk-proj-1"}, b"", ("OpenAI", "generativelanguage", "/openai")),
        (CHAT, bearer("sk-or-v1-1"), b"", ("OpenRouter", "api.openai.com", "--upstream")),
        (CHAT, bearer("gsk_1"), b"", ("Groq", "api.openai.com", "--upstream")),
        (f"/openai{CHAT}", bearer("AIza1"), b"", ("Google", "api.openai.com", "/gemini")),
        ("/openai/v1/models", {}, b"a=b&key=AIza1", ("Google", "api.openai.com", "/gemini")),
        ("/openai/deployments/d/x", {"api-key": b"1"}, b"", ("Azure", "api.openai.com", "--upstream")),
        ("/model/x/converse", {"authorization": b"AWS4-HMAC-SHA256 Credential=1"}, b"", ("AWS", "--upstream")),
        (CHAT, bearer("sk-proj-1") | {"x-goog-api-key": b"AIza1"}, b"", ("several providers", "api.openai.com")),
        (VERTEX, bearer("ya29.1"), b"", ("Vertex AI", "api.openai.com", "--upstream vertex=https://")),
        (VERTEX, {}, b"", ("Vertex AI", "api.openai.com")),
        (VERTEX.removeprefix("/v1"), ANTHROPIC_SDK, b"", ("Vertex AI",)),
        (VERTEX_GEMINI, {}, b"", ("Vertex AI", "api.openai.com")),
        ("/v1/publishers/google/models/g:generateContent", GOOGLE_SDK, b"", ("Vertex AI",)),
    ],
)
def test_a_provider_does_not_get_the_key_of_another(
    path: str, headers: dict[str, bytes], query: bytes, words: tuple[str, ...]
) -> None:
    """The refusal says whose key it is, where it would have gone, and what to do (D-2, Y-3)."""
    refusal = find(path, headers, query=query).refusal
    assert all(word in refusal for word in words), refusal


@each("path", [VERTEX, VERTEX_GEMINI, VERTEX.removeprefix("/v1"), "/v1/projects/p/locations/l/endpoints/e:rawPredict"])
def test_vertex_paths_go_to_vertex(path: str) -> None:
    """By its host or its name, with the tokens of Google (D-2)."""
    for given in ("google=https://us-east5-aiplatform.googleapis.com", "vertex=http://127.0.0.1:1"):
        found = find(path, bearer("ya29.1"), "openai=https://api.openai.com", given)
        assert (found.upstream.name, found.refusal) == (given.partition("=")[0], "")


def test_a_second_line_of_a_key_counts_too() -> None:
    """All lines of a repeated field are forwarded, so all of them are looked at (D-2)."""
    routes = UpstreamRoutes(upstreams([]))
    further = (("x-other", b"sk-ant-1"), ("authorization", b"Bearer sk-proj-2"))
    assert routes.find(CHAT.encode(), bearer("sk-proj-1"), b"", further).refusal == ""
    for name, value in (("authorization", b"Bearer sk-ant-1"), ("x-api-key", b"sk-ant-1")):
        found = routes.find(CHAT.encode(), bearer("sk-proj-1"), b"", (*further, (name, value)))
        assert "several providers" in found.refusal


def test_keys_that_are_replaced_are_not_refused() -> None:
    """With a held key the client's own goes nowhere, so it may look like anything (D-2)."""
    assert find("/openai/v1/models", GOOGLE_SDK, held=("openai",)).refusal == ""
    assert find("/openai/v1/models", GOOGLE_SDK, held=("gemini",)).refusal
    assert find(GENERATE, GOOGLE_SDK, held=("gemini",)).upstream.name == "gemini"


OLLAMA, COHERE = "ollama=http://127.0.0.1:11434", "cohere=https://api.cohere.com"
BEDROCK = "aws=https://bedrock-runtime.eu-west-1.amazonaws.com"
SIGNED = {"authorization": b"AWS4-HMAC-SHA256 Credential=AKIA/20260101/eu-west-1/bedrock/aws4_request, Signature=0"}


@each(
    "path, headers, name",
    [
        ("/api/chat", {}, "ollama"),
        ("/agents/bob/api/generate", {}, "ollama"),
        ("/v2/chat", bearer("co-key"), "cohere"),
        ("/model/us.amazon.nova-pro-v1:0/converse", bearer("bedrock-api-key-x"), "aws"),
        ("/model/anthropic.claude%3A0/invoke-with-response-stream", bearer("ABSKx"), "aws"),
    ],
)
def test_paths_of_one_provider_go_there_or_nowhere(path: str, headers: dict[str, bytes], name: str) -> None:
    """By the upstream's name, or at the provider's own host; no other provider gets them, with or without a key (D-2,
    Y-1)."""
    found = find(path, headers, "openai=https://api.openai.com", BEDROCK, OLLAMA, COHERE)
    assert (found.upstream.name, found.refusal) == (name, "")
    refused = find(path, {})
    assert refused.upstream.host == "api.openai.com"
    assert "It was not sent. Add it with --upstream" in refused.refusal
    own = find(path, headers, "own=http://127.0.0.1:4000")
    assert (own.upstream.name, own.refusal) == ("own", "")


def test_providers_without_a_builtin_upstream_do_not_get_keys_of_others() -> None:
    """Cohere, Mistral and AWS (D-2, Y-1)."""
    mistral = "mistral=https://api.mistral.ai"
    for path in ("/cohere/v2/chat", "/mistral/v1/conversations", "/aws/model/m/converse"):
        found = find(path, bearer("sk-proj-1"), "openai=https://api.openai.com", COHERE, mistral, BEDROCK)
        assert "/openai" in found.refusal
    assert "Add the provider with --upstream" in find(CHAT, SIGNED).refusal
