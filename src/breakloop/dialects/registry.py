"""Which dialect a request speaks: by the end of its path first, else MCP by its body; anything else is plain HTTP.

What a dialect's fields mean is its own file's business.

Reads the newest step of a request (SPEC LD-4): the last answer of the model and everything behind it, whichever
dialect it is written in. Work is in proportion to that tail; the conversation before it is passed over undecoded.

What a step means, and whether it was seen before, is left to `detect.steps`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from breakloop.dialects import anthropic, base, gemini, mcp, openai_chat, openai_legacy, openai_responses
from breakloop.dialects import gemini as gemini_steps
from breakloop.dialects import mcp as mcp_steps
from breakloop.dialects import openai_chat as openai_chat_steps
from breakloop.dialects import openai_responses as openai_responses_steps
from breakloop.dialects.steps import own
from breakloop.model.call import Call, Chat, Step

Taken = base.ParsedBody | mcp.McpBody
Take = Callable[[bytes, str], base.ParsedBody | None]

_CHAT: Final = "/chat/completions"
_BY_ENDING: Final[dict[str, tuple[Take, str]]] = {
    _CHAT: (openai_chat.take, openai_chat.DIALECT),
    "/completions": (openai_legacy.take_completions, openai_legacy.COMPLETIONS),
    "/responses": (openai_responses.take, openai_responses.DIALECT),
    "/embeddings": (openai_legacy.take_embeddings, openai_legacy.EMBEDDINGS),
    "/messages": (anthropic.take, anthropic.DIALECT),
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


def read_chat(method: str, path: str, body: bytes, tail: int) -> Chat | None:
    """Read an LLM or MCP request with its last `tail` messages; None is plain HTTP."""
    taken = take(method, path, body)
    return None if taken is None else taken.chat(tail)


def head_of(call: Call) -> Chat | None:
    """Return what an LLM or MCP request asks for, without its messages; None for anything else."""
    parsed = call.parsed
    if parsed.chat is None:
        taken = take(call.method, call.path, call.body)
        parsed.chat = (taken.head() if taken else None) or False
    return parsed.chat or None


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


def of(taken: Taken) -> Step | None:
    """Return the newest step of a request; None where its dialect has none, or nothing can be read. Never raises."""
    if isinstance(taken, mcp.McpBody):
        return mcp_steps.of(taken)
    known = _READERS.get(taken.dialect)
    return None if known is None else known[1](taken)


def newest_step(dialect: str, body: bytes) -> Step | None:
    """Read the newest step of a body that is written in `dialect`, or return None. Never raises."""
    if dialect == mcp.DIALECT:
        return mcp_steps.read_step(body)
    known = _READERS.get(dialect)
    taken = None if known is None else known[0](body)
    return None if taken is None else of(taken)


def _completions(taken: base.ParsedBody) -> Step | None:
    """A prompt without a conversation: what is asked, and nothing that was done."""
    chat = taken.chat(1)
    if chat is None:
        return None
    asked = tuple([own(message.text) for message in chat.tail if message.text])
    return Step("", (), (), (), asked, (), chat.message_count, len(taken.body))


_Take = Callable[[bytes], base.ParsedBody | None]
_Of = Callable[[base.ParsedBody], Step | None]
_READERS: Final[dict[str, tuple[_Take, _Of]]] = {
    openai_chat.DIALECT: (openai_chat.take, openai_chat_steps.of),
    openai_responses.DIALECT: (openai_responses.take, openai_responses_steps.of),
    openai_legacy.COMPLETIONS: (openai_legacy.take_completions, _completions),
    anthropic.DIALECT: (anthropic.take, anthropic.of),
    gemini.DIALECT: (gemini.take, gemini_steps.of),
}
