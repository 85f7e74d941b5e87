"""Names for who calls (SPEC C-7): the caller, the agent, and the session ids that clients send in headers.

An API key is never kept as a name: its keyed digest stands for it. Reading tokens is `policy.jwt`.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from breakloop.model.call import Call
from breakloop.policy.recent import Recent

_KEY_HEADERS: Final = ("x-api-key", "api-key", "x-goog-api-key")
# First found wins. Ours; MCP's; Claude Code's; LiteLLM's; Codex' (`session_id` before, `session-id` now); OpenCode's;
# Helicone's; the generic one that several clients use.
SESSION_HEADERS: Final = (
    "x-agent-session",
    "mcp-session-id",
    "x-claude-code-session-id",
    "x-litellm-session-id",
    "session-id",
    "x-opencode-session",
    "helicone-session-id",
    "x-session-id",
)
_NAME_MAX: Final = 256
_KEY_MAX_BYTES: Final = 8 * 1024 * 1024


class Digests:
    """Keyed digests of API keys and over-long names; the same secret gives the same names on every instance."""

    __slots__ = ("_known", "_secret")

    def __init__(self, secret: bytes) -> None:
        # blake2b takes at most 64 bytes of key.
        self._secret = secret if len(secret) <= 64 else blake2b(secret).digest()
        self._known: Recent[bytes, str] = Recent(8192, _KEY_MAX_BYTES)

    def of_key(self, key: bytes) -> str:
        """Return 32 hex digits that stand for an API key."""
        digest = self._known.get(key)
        if digest is None:
            digest = self.of(key)
            self._known.put(key, digest)
        return digest

    def of(self, value: bytes) -> str:
        """Return the digest of something that is not worth remembering."""
        return blake2b(value, key=self._secret, digest_size=16).hexdigest()

    def bounded(self, name: str) -> str:
        """Return a name that a client chose, or its digest when it is too long to be carried around."""
        if len(name) <= _NAME_MAX:
            return name
        return "long:" + self.of(name.encode("utf-8", "replace"))


def api_key(call: Call, query_key: Callable[[Call], str | None]) -> bytes:
    """Return the whole API key of a request, or b""; `query_key` reads `?key=`, only when no header has one."""
    headers = call.headers
    value = headers.get("authorization")
    if value:
        if value[:7].lower() == b"bearer ":
            value = value[7:].strip()
        if value:
            return value
    for name in _KEY_HEADERS:
        value = headers.get(name)
        if value:
            return value
    if "key=" not in call.query and "%" not in call.query:
        return b""
    return (query_key(call) or "").encode("utf-8", "replace")


def session_header(call: Call) -> str:
    """Return the session id that the client sent, or ""."""
    headers = call.headers
    for name in SESSION_HEADERS:
        value = headers.get(name)
        if value:
            return value.decode("latin-1").strip()
    return ""
