"""Which provider a host, a path or a credential belongs to, so that no provider gets the key of another.

Only what a single provider has counts: its own host, the methods in its paths, the header field or the first characters
of its keys. Other servers (LiteLLM, vLLM, OpenRouter, Azure) accept keys of any form, and belong to nobody here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from breakloop.model.call import CREDENTIAL_HEADERS
from breakloop.policy.cache import MemoDict

OPENAI: Final = "OpenAI"
ANTHROPIC: Final = "Anthropic"
GOOGLE: Final = "Google"
SEVERAL: Final = "several providers"
BUILTIN_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {OPENAI: "openai", ANTHROPIC: "anthropic", GOOGLE: "gemini"}
)  # names of their upstreams

_HOSTS: Final = (
    (re.compile(r"(?:.+\.)?api\.openai\.com"), OPENAI),  # also eu.api.openai.com
    (re.compile(r"api\.anthropic\.com"), ANTHROPIC),
    (re.compile(r"generativelanguage\.googleapis\.com"), GOOGLE),
)
_VERTEX_HOST: Final = re.compile(r"(?:[a-z0-9-]+-)?aiplatform(?:\.[a-z0-9-]+\.rep)?\.googleapis\.com")
_VERTEX_PATH: Final = re.compile(r"(?:/v[0-9]+(?:beta[0-9]+)?)?/(?:projects/[^/]+/locations|publishers/[^/]+/models)/")
_GEMINI_METHOD: Final = re.compile(
    r"/(?:models|tunedModels)/[^/:]+:(?:(?:stream|batch)?[gG]enerateContent|(?:batchE|asyncBatchE|e)mbedContents?"
    r"|countTokens|predict(?:LongRunning)?)$"
)
_KEY_STARTS: Final = (
    (b"sk-ant-", ANTHROPIC),
    ((b"sk-proj-", b"sk-svcacct-", b"sk-admin-"), OPENAI),
    ((b"AIza", b"AQ.", b"ya29."), GOOGLE),
    (b"sk-or-", "OpenRouter"),
    (b"gsk_", "Groq"),
    (b"xai-", "xAI"),
    ((b"ABSK", b"bedrock-api-key-"), "AWS"),
)
_QUERY_KEY: Final = re.compile(rb"(?:^|&)key=(?:AIza|AQ\.)")


def owner_of_host(host: str) -> str:
    """Return the provider whose own host this is, or ""."""
    if _VERTEX_HOST.fullmatch(host):
        return GOOGLE
    return next((owner for pattern, owner in _HOSTS if pattern.fullmatch(host)), "")


def is_vertex_host(host: str) -> bool:
    return _VERTEX_HOST.fullmatch(host) is not None


def is_vertex_path(path: str) -> bool:
    return _VERTEX_PATH.match(path) is not None


def is_gemini_method(path: str) -> bool:
    """Return whether a path ends in a method of the Gemini API, in any version of it."""
    return _GEMINI_METHOD.search(path) is not None


def owner_of_credentials(headers: Mapping[str, bytes], query: bytes, repeated: Iterable[tuple[str, bytes]] = ()) -> str:
    """Return the provider of the keys in a request, SEVERAL if they are of different ones, or "" if nothing tells.
    `repeated` are the further values of header fields that came more than once.
    """
    authorization = headers.get("authorization")
    owner = "" if authorization is None else _owner_of_authorization(authorization)
    if "x-goog-api-key" in headers:
        owner = _both(owner, _owner_of_key(headers["x-goog-api-key"]) or GOOGLE)
    if "x-api-key" in headers:
        other = ANTHROPIC if "anthropic-version" in headers else ""
        owner = _both(owner, _owner_of_key(headers["x-api-key"]) or other)
    if authorization is None and "api-key" in headers:  # Azure's clients may send both
        owner = _both(owner, _owner_of_key(headers["api-key"]) or "Azure")
    if query and _QUERY_KEY.search(query):
        owner = _both(owner, GOOGLE)
    for name, value in repeated:
        if name in CREDENTIAL_HEADERS:
            owner = _both(owner, _authorization_owner(value) if name == "authorization" else _key_owner(value))
    return owner


def _both(owner: str, other: str) -> str:
    return owner or other if not (owner and other) or owner == other else SEVERAL


def _key_owner(key: bytes) -> str:
    return next((owner for starts, owner in _KEY_STARTS if key.startswith(starts)), "")


def _authorization_owner(value: bytes) -> str:
    scheme, _, key = value.partition(b" ")
    if scheme.lower() == b"bearer":
        return _key_owner(key.strip())
    return "AWS" if scheme.startswith(b"AWS4-") else ""


# Clients send the same key in every request.
_owner_of_key: Final = MemoDict(_key_owner).__getitem__
_owner_of_authorization: Final = MemoDict(_authorization_owner).__getitem__
