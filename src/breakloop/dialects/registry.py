"""The table of dialects, and how a request finds its own: by the end of its path, else by its body. A body that has no
conversation of its path's dialect, but one of another, is of that other one: clients and gateways mix them up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from breakloop.dialects import denial
from breakloop.dialects.answers import AnswerReader, reader_for
from breakloop.dialects.anthropic import Anthropic
from breakloop.dialects.base import Dialect, ParsedBody
from breakloop.dialects.content import load
from breakloop.dialects.framing import form_of
from breakloop.dialects.gemini import Gemini
from breakloop.dialects.mcp import A2A_PATHS, MCP
from breakloop.dialects.openai_chat import OpenAIChat
from breakloop.dialects.openai_legacy import OpenAICompletions, OpenAIEmbeddings
from breakloop.dialects.openai_responses import OpenAIResponses
from breakloop.model.call import Call, Chat
from breakloop.model.verdict import Verdict

if TYPE_CHECKING:
    from breakloop.dialects.known_history import KnownHistory

_COUNTS_TOKENS: Final = "/count-tokens:rawPredict"  # its bodies are those of a chat
_PATHS_KEPT: Final = 1024
_PATH_KEPT_CHARS: Final = 256
_CONVERSATIONS: Final = "mistral_conversations"
_CONVERSATION: Final = "/conversations/"
_ENDS_IN_ID: Final = re.compile(r"/conversations/[^/]+(?:/restart)?$").search


class LateDialect:
    """A row for a dialect whose module is imported when it is used: most processes never need it."""

    any_path = False

    def __init__(self, name: str, class_name: str, *path_endings: str) -> None:
        self.name = name
        self.answer_field = ""
        self.path_endings = path_endings
        self._class_name = class_name  # with its module in this package
        self._found: Dialect | None = None

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.load(), attribute)

    def load(self) -> Dialect:
        found = self._found
        if found is None:
            module, _, name = self._class_name.partition(".")
            found = self._found = getattr(import_module(f"breakloop.dialects.{module}"), name)()
        return found


class Dialects(dict[str, Dialect]):
    """Dialects by name. Of two whose path endings match, the first is used."""

    def __init__(self, dialects: Iterable[Dialect | LateDialect]) -> None:
        super().__init__({dialect.name: cast("Dialect", dialect) for dialect in dialects})
        self.by_path = [(dialect.path_endings, dialect) for dialect in self.values() if dialect.path_endings]
        # Of all dialects: one test is enough for most paths, which match none.
        self.endings = tuple(ending for dialect in self.values() for ending in dialect.path_endings)
        self._folded = tuple(ending.lower() for ending in self.endings)
        self.any_path = [dialect for dialect in self.values() if dialect.any_path]
        self._known_paths = lru_cache(_PATHS_KEPT)(self._find_by_ending)  # of all requests but odd ones

    def usual(self, path: str) -> str:
        """Return a path with the usual spelling of its ending, if it is known by another one: some servers ignore case
        and parameters (`/v1/Chat/Completions;x=1`). Other paths are returned unchanged.
        """
        if path.endswith(self.endings) or (path.islower() and ";" not in path):
            return path
        start = path.rfind("/")
        bare = path[:start] + path[start:].partition(";")[0]
        folded = bare.lower()
        if folded.endswith(self._folded):
            for ending, lower in zip(self.endings, self._folded, strict=True):
                if folded.endswith(lower):
                    return bare[: -len(ending)] + ending
        return path

    def by_ending(self, path: str) -> tuple[str, Dialect | None]:
        """Return a path in its usual spelling, and the dialect of its ending."""
        return self._known_paths(path) if len(path) <= _PATH_KEPT_CHARS else self._find_by_ending(path)

    def _find_by_ending(self, path: str) -> tuple[str, Dialect | None]:
        path = self.usual(path)
        found = (dialect for endings, dialect in self.by_path if path.endswith(endings))
        return path, next(found, None) if path.endswith(self.endings) else None

    def of_path(self, path: str) -> Dialect | None:
        """Return the dialect of a path, given without its query."""
        path, dialect = self.by_ending(path)
        return self.of_conversation(path) if dialect is None else dialect

    def of_conversation(self, path: str) -> Dialect | None:
        """Return the dialect of a path that ends in the id of a conversation."""
        return self.get(_CONVERSATIONS) if _CONVERSATION in path and _ENDS_IN_ID(path) else None

    def of_body(self, body: bytes) -> Dialect | None:
        """Return the dialect that a body on any path may be of."""
        for dialect in self.any_path:
            if dialect.is_likely(body):
                return dialect
        return None

    def of_answer(self, fields: Mapping[str, Any]) -> Dialect | None:
        """Return the dialect that a decoded answer of unknown origin is of."""
        return next((one for one in self.values() if one.answer_field and one.answer_field in fields), None)

    def of_usage(self, fields: dict[str, Any]) -> Dialect | None:
        """Return the dialect whose own names token counts of unknown origin have."""
        return next((one for one in self.values() if one.owns_usage(fields)), None)


DIALECTS = Dialects((
    OpenAIChat(),
    OpenAICompletions(),
    OpenAIResponses(),
    OpenAIEmbeddings(),
    Anthropic(),
    Gemini(),
    MCP,
    LateDialect("a2a", "a2a.A2a", *A2A_PATHS),  # as JSON-RPC, MCP finds it
    LateDialect("ollama_chat", "ollama.OllamaChat", "/api/chat"),
    LateDialect("ollama_generate", "ollama.OllamaGenerate", "/api/generate"),
    LateDialect("cohere_chat", "cohere.CohereChat", "/v2/chat"),
    LateDialect("vertex_anthropic", "vertex.VertexAnthropic", ":rawPredict", ":streamRawPredict"),
    LateDialect("bedrock_anthropic", "bedrock.BedrockAnthropic", "/invoke", "/invoke-with-response-stream"),
    LateDialect("bedrock_converse", "bedrock.BedrockConverse", "/converse", "/converse-stream"),
    LateDialect("bedrock_chat", "bedrock.BedrockChat"),
    LateDialect(_CONVERSATIONS, "mistral.MistralConversations", "/conversations"),
))  # fmt: skip


def parse(method: str, path: str, body: bytes, history: KnownHistory | None = None) -> ParsedBody | None:
    """Parse an LLM or MCP request; None for plain HTTP. The path comes without a query. `history` is that of the
    caller.
    """
    if method != "POST" or not body:
        return None
    dialects = DIALECTS
    path, dialect = dialects.by_ending(path)
    parsed = None
    if dialect is not None:
        parsed = dialect.parse(body, path) if history is None else dialect.parse_newest(body, path, history)
        if parsed is not None and (parsed.parts.items or not parsed.lenient):
            return parsed
        other = "" if path.endswith(_COUNTS_TOKENS) else of_fields(load(body))
        if other:
            return DIALECTS[other].parse(body) or parsed
    # Also on a path of another dialect: older MCP servers accept their messages at /messages.
    for one in dialects.any_path:
        if one.is_likely(body):
            return one.parse(body, path)
    conversation = dialects.of_conversation(path)
    return parsed if conversation is None else conversation.parse(body, path)


_EMBEDS: Final = ("dimensions", "encoding_format")
_ANTHROPIC_BLOCKS: Final = frozenset(("tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use"))
_LOOKED_AT: Final = 20  # number of messages at either end that are inspected


def of_fields(fields: object) -> str:
    """Return the name of the dialect that a decoded body is of, by the conversation that it contains, or ""."""
    if not isinstance(fields, dict):
        return ""
    get = fields.get
    contents = get("contents")
    if isinstance(contents, list) and contents and isinstance(contents[0], dict) and "parts" in contents[0]:
        return Gemini.name
    model = get("model", get("agent_id"))
    if not isinstance(model, str):  # `messages`, `input` or `prompt` alone can be anything
        return ""
    if isinstance(get("messages"), list):
        return Anthropic.name if is_anthropic(fields) else OpenAIChat.name
    if isinstance(get("input"), str | list):
        embeds = "embed" in model.lower() or any(name in fields for name in _EMBEDS)
        return OpenAIEmbeddings.name if embeds else OpenAIResponses.name
    return OpenAICompletions.name if isinstance(get("prompt"), str | list) else ""


def is_anthropic(fields: Mapping[str, Any]) -> bool:
    """Return whether a decoded body with messages is for Anthropic."""
    if "anthropic_version" in fields or ("system" in fields and "max_tokens" in fields):
        return True
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return False
    for message in messages[:_LOOKED_AT] + messages[-_LOOKED_AT:]:
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and block.get("type") in _ANTHROPIC_BLOCKS:
                return True
    return False


def head_of(call: Call) -> Chat | None:
    """Return the chat of a call without its messages; None for plain HTTP."""
    known = call.parsed
    if known.chat is None:
        parsed = parse(call.method, call.path, call.body)
        known.chat = False if parsed is None else parsed.head()
    return known.chat or None


def of_path(path: str) -> str:
    """Return the name of a path's dialect, or ""."""
    dialect = DIALECTS.of_path(path)
    return "" if dialect is None else dialect.name


def reader(dialect: str, content_type: bytes, *, streamed: bool = False) -> AnswerReader | None:
    """Return a reader of an answer; None if there is nothing to read. `streamed` is explained at `framing.form_of`."""
    found, form = DIALECTS.get(dialect), form_of(content_type, streamed=streamed)
    return None if found is None or form is None else reader_for(found, form)


def denial_for(verdict: Verdict, call: Call, dialect: str) -> tuple[int, bytes]:
    """Return status and body of a denial for the client itself. `dialect` may be "", see `error_body`."""
    found = DIALECTS.get(dialect)
    return (verdict.status, error_body(verdict, call, "")) if found is None else found.denial(verdict, call)


def error_body(verdict: Verdict, call: Call, dialect: str) -> bytes:
    """Return an error body in the client's dialect; if that is unknown (""), in the one that the request looks like."""
    found = DIALECTS.get(dialect) or DIALECTS.of_body(call.body) or DIALECTS.of_path(call.path)
    return denial.dump({"detail": denial.detail(verdict)}) if found is None else found.error_body(verdict, call)
