"""Which dialect a request speaks: by the end of its path first, else MCP by its body; anything else is plain HTTP.

What a dialect's fields mean is its own file's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from breakloop.model.call import Chat
from breakloop.wire import (
    anthropic_messages,
    conversation,
    gemini,
    mcp,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_responses,
)

Taken = conversation.Taken | mcp.Taken
Take = Callable[[bytes, str], conversation.Taken | None]

_CHAT: Final = "/chat/completions"
_BY_ENDING: Final[dict[str, tuple[Take, str]]] = {
    _CHAT: (openai_chat.take, openai_chat.DIALECT),
    "/completions": (openai_completions.take, openai_completions.DIALECT),
    "/responses": (openai_responses.take, openai_responses.DIALECT),
    "/embeddings": (openai_embeddings.take, openai_embeddings.DIALECT),
    "/messages": (anthropic_messages.take, anthropic_messages.DIALECT),
}
_OF_GEMINI: Final = (gemini.take, gemini.DIALECT)
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


def take(method: str, path: str, body: bytes) -> Taken | None:
    """Take an LLM or MCP request apart, once for all that is asked of it; None is plain HTTP. The path comes without a
    query.
    """
    if method != "POST" or not body:
        return None
    taken: Taken | None = None
    if path.endswith(_CHAT):  # as most do
        taken = openai_chat.take(body, path)
    elif path.endswith(_ENDINGS):
        taken = _by_ending(path)[0](body, path)
    if taken is not None:
        return taken
    # Also after a path of another dialect: MCP servers of old take their messages at /messages.
    return mcp.take(body) if mcp.is_likely(body) else None


def read(method: str, path: str, body: bytes, tail: int) -> Chat | None:
    """Read an LLM or MCP request with its last `tail` messages; None is plain HTTP."""
    taken = take(method, path, body)
    return None if taken is None else taken.chat(tail)


def opening(method: str, path: str, body: bytes) -> str:
    """Return the texts that name a conversation: the system prompt up to the first message of the user; else ""."""
    taken = take(method, path, body)
    return "" if taken is None else taken.opening()


def of_path(path: str) -> str:
    """Return the dialect that a path alone speaks for, or ""."""
    return _by_ending(path)[1] if path.endswith(_ENDINGS) else ""


def provider(dialect: str) -> str:
    """Return whose dialect it is: the part before the first underscore."""
    return dialect.partition("_")[0]


def _by_ending(path: str) -> tuple[Take, str]:
    if path.endswith(_GEMINI):
        return _OF_GEMINI
    path = path.removesuffix("/")
    return _BY_ENDING[_CHAT if path.endswith(_CHAT) else path[path.rfind("/") :]]
