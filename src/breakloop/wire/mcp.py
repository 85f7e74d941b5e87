"""Reads MCP `tools/call` requests (JSON-RPC 2.0) into a `Chat` of one message that holds the calls.

A batch is one request, so all its calls stand in that message. `id`, `_meta`, task and state tokens are not identity;
every other method is plain HTTP.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.model.call import UNREAD, Chat, Message, ToolCall
from breakloop.wire.content import ITEMS_MAX, arguments, as_list, clean_message, load, more, text

DIALECT: Final = "mcp"
TOOLS_CALL: Final = "tools/call"
_MARK: Final = b"jsonrpc"
_MARK_WITHIN_BYTES: Final = 256


class Request(msgspec.Struct, gc=False):
    """One message of JSON-RPC, as far as it is read."""

    jsonrpc: str
    method: str = ""  # an answer of the client has none
    id: Any = None
    params: Any = None


_decode_body = msgspec.json.Decoder(Request | list[Request]).decode


class Taken:
    """One body, taken apart: all its requests, and those among them that call a tool."""

    __slots__ = ("_said", "asked", "body", "requests", "tolerant")

    dialect: Final = DIALECT

    def __init__(self, body: bytes, requests: list[Request], asked: list[Request], *, tolerant: bool) -> None:
        self.body = body
        self.requests = requests
        self.asked = asked
        self.tolerant = tolerant  # texts may hold lone surrogates then
        self._said: Message | None = None

    def chat(self, tail: int) -> Chat | None:
        """Return the calls as the only message; None where they cannot be read after all."""
        said = self._said
        if said is None:
            try:
                said = _message([request.params for request in self.asked])
            except RecursionError:
                return None
            if self.tolerant:
                said = clean_message(said)
            self._said = said
        return Chat(DIALECT, "", (said,) if tail > 0 else (), 1, fallback="tolerant" if self.tolerant else "")

    def head(self) -> Chat:
        """Return the same without what is called."""
        return Chat(DIALECT, "", UNREAD, 1, fallback="tolerant" if self.tolerant else "")

    def opening(self) -> str:
        """Return "": a tool call does not say which conversation it belongs to."""
        return ""

    def system(self) -> str:
        """Return "", likewise."""
        return ""


def is_likely(body: bytes) -> bool:
    """Say whether a body looks like JSON-RPC, without decoding it: some clients write the mark first, others last."""
    found = body.find(_MARK, 0, _MARK_WITHIN_BYTES)
    return found >= 0 or body.find(_MARK, -_MARK_WITHIN_BYTES) >= 0


def take(body: bytes) -> Taken | None:
    """Take a request body apart, or return None when no tool is called in it."""
    tolerant = False
    try:
        try:
            found = _decode_body(body)
            requests = found if isinstance(found, list) else [found]
        except ValueError:
            requests, tolerant = _tolerant(body), True
    except RecursionError:
        return None
    asked = [request for request in requests if request.method == TOOLS_CALL]
    return Taken(body, requests, asked, tolerant=tolerant) if asked else None


def read(body: bytes, tail: int) -> Chat | None:
    """Read a request body, or return None when no tool is called in it."""
    taken = take(body)
    return None if taken is None else taken.chat(tail)


def opening(_body: bytes) -> str:
    """Return "": a tool call does not say which conversation it belongs to."""
    return ""


def _tolerant(body: bytes) -> list[Request]:
    sent = [item for item in as_list(load(body)) if isinstance(item, dict) and "jsonrpc" in item]
    return [Request("", text(item.get("method")), item.get("id"), item.get("params")) for item in sent]


def _message(asked: list[Any]) -> Message:
    calls = [_call(params) for params in asked[:ITEMS_MAX]]
    if len(asked) > ITEMS_MAX:
        calls.append(ToolCall("", more(asked)))
    # What the user was asked for and answered: the same call again with it is another request.
    texts = [text(params.get("inputResponses")) for params in asked[:ITEMS_MAX] if isinstance(params, dict)]
    return Message(TOOLS_CALL, "\n".join(filter(None, texts)), tuple(calls))


def _call(params: object) -> ToolCall:
    if not isinstance(params, dict):
        return ToolCall("", arguments(params))
    return ToolCall(text(params.get("name")), arguments(params.get("arguments")))
