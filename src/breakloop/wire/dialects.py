"""Which dialect a request speaks: by the end of its path first, else MCP by its body; anything else is plain HTTP.

What a dialect's fields mean is its own file's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from breakloop.model.call import Chat
from breakloop.wire import (
    anthropic_messages,
    gemini,
    mcp,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_responses,
)

Read = Callable[[bytes, int], Chat | None]
Opening = Callable[[bytes], str]

_CHAT: Final = "/chat/completions"
_BY_ENDING: Final[dict[str, tuple[Read, Opening, str]]] = {
    _CHAT: (openai_chat.read, openai_chat.opening, openai_chat.DIALECT),
    "/completions": (openai_completions.read, openai_completions.opening, openai_completions.DIALECT),
    "/responses": (openai_responses.read, openai_responses.opening, openai_responses.DIALECT),
    "/embeddings": (openai_embeddings.read, openai_embeddings.opening, openai_embeddings.DIALECT),
    "/messages": (anthropic_messages.read, anthropic_messages.opening, anthropic_messages.DIALECT),
}
_GEMINI: Final = (":generateContent", gemini.STREAM)
_ENDINGS: Final = (
    "/completions",
    "/responses",
    "/messages",
    "/embeddings",
    *_GEMINI,
    "/completions/",
    "/responses/",
    "/messages/",
    "/embeddings/",
)


def read(method: str, path: str, body: bytes, tail: int) -> Chat | None:
    """Read an LLM or MCP request with its last `tail` messages; None is plain HTTP. The path comes without a query."""
    if method != "POST" or not body:
        return None
    if path.endswith(_ENDINGS):
        chat = gemini.read(body, tail, path) if path.endswith(_GEMINI) else _by_ending(path)[0](body, tail)
        if chat is not None:
            return chat
    # Also after a path of another dialect: MCP servers of old take their messages at /messages.
    return mcp.read(body, tail) if mcp.is_likely(body) else None


def opening(method: str, path: str, body: bytes) -> str:
    """Return the texts that name a conversation: the system prompt up to the first message of the user; else ""."""
    if method != "POST" or not body or not path.endswith(_ENDINGS):
        return ""
    return gemini.opening(body) if path.endswith(_GEMINI) else _by_ending(path)[1](body)


def of_path(path: str) -> str:
    """Return the dialect that a path alone speaks for, or ""."""
    if not path.endswith(_ENDINGS):
        return ""
    return gemini.DIALECT if path.endswith(_GEMINI) else _by_ending(path)[2]


def provider(dialect: str) -> str:
    """Return whose dialect it is: the part before the first underscore."""
    return dialect.partition("_")[0]


def _by_ending(path: str) -> tuple[Read, Opening, str]:
    path = path.removesuffix("/")
    return _BY_ENDING[_CHAT if path.endswith(_CHAT) else path[path.rfind("/") :]]
