"""Reads MCP `tools/call` requests (JSON-RPC 2.0) into a `Chat` of one message that holds the calls.

A batch is one request, so all its calls stand in that message. `id`, `_meta`, task and state tokens are not identity;
every other method is plain HTTP.

Reads an MCP `tools/call` request as a step: calls whose results go to the client and are not seen here.

What tells one step from the next are the JSON-RPC ids together with what is called: a client counts its requests, so
the same call with a new id is made again, and is a step; but every connection begins to count anew, so the same id with
another call is a step too. Only where both are the same has a request been sent twice. Neither ids nor `_meta` are part
of what was asked.

Reads MCP answers to `tools/call`: one JSON-RPC response, a batch of them, or events with notices in between.

A tool's error is an answer like any other, for the model to read; so is one of the protocol. Only HTTP's are failures.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import xxhash

from breakloop.dialects.answers import AnswerBuilder, word
from breakloop.dialects.base import (
    ITEMS_MAX,
    arguments,
    as_list,
    clean,
    clean_message,
    content,
    load,
    more,
    text,
    truth,
)
from breakloop.dialects.steps import bounded, own
from breakloop.model.call import UNREAD, Chat, Message, Step, ToolCall, Usage

DIALECT: Final = "mcp"
TOOLS_CALL: Final = "tools/call"
_MARK: Final = b"jsonrpc"
_MARK_WITHIN_BYTES: Final = 256


class McpRequest(msgspec.Struct, gc=False):
    """One message of JSON-RPC, as far as it is read."""

    jsonrpc: str
    method: str = ""  # an answer of the client has none
    id: Any = None
    params: Any = None


_decode_body = msgspec.json.Decoder(McpRequest | list[McpRequest]).decode


class McpBody:
    """One body, taken apart: all its requests, and those among them that call a tool."""

    __slots__ = ("_said", "asked", "body", "requests", "tolerant")

    dialect: Final = DIALECT

    def __init__(self, body: bytes, requests: list[McpRequest], asked: list[McpRequest], *, tolerant: bool) -> None:
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


def take(body: bytes) -> McpBody | None:
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
    return McpBody(body, requests, asked, tolerant=tolerant) if asked else None


def read_chat(body: bytes, tail: int) -> Chat | None:
    """Read a request body, or return None when no tool is called in it."""
    taken = take(body)
    return None if taken is None else taken.chat(tail)


def opening(_body: bytes) -> str:
    """Return "": a tool call does not say which conversation it belongs to."""
    return ""


def _tolerant(body: bytes) -> list[McpRequest]:
    sent = [item for item in as_list(load(body)) if isinstance(item, dict) and "jsonrpc" in item]
    return [McpRequest("", text(item.get("method")), item.get("id"), item.get("params")) for item in sent]


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


def of(taken: McpBody) -> Step | None:
    """Return the calls of a request as a step; None where they cannot be read."""
    chat = taken.chat(1)
    if chat is None:
        return None
    asked = chat.tail[0]
    calls = tuple([ToolCall(call.name, bounded(call.arguments)) for call in asked.calls[:ITEMS_MAX]])
    users = (own(asked.text),) if asked.text else ()
    try:
        ids = _ids(taken, asked.calls)
    except RecursionError:
        ids = ()
    return Step("", calls, ids, (), users, (), chat.message_count, len(taken.body))


def read_step(body: bytes) -> Step | None:
    """Read the calls of a request, or return None where no tool is called in it."""
    taken = take(body)
    return None if taken is None else of(taken)


def _ids(taken: McpBody, calls: tuple[ToolCall, ...]) -> tuple[str, ...]:
    ids = [clean(text(request.id)) for request in taken.asked[:ITEMS_MAX]]
    if not any(ids):
        return ()
    return tuple([f"{sent}:{_digest(call)}" for sent, call in zip(ids, calls, strict=False)])


def _digest(call: ToolCall) -> str:
    return xxhash.xxh3_64_hexdigest(f"{call.name}\0{call.arguments}".encode("utf-8", "replace"))


TOOL_ERROR = "tool_error"


class McpAnswer(AnswerBuilder):
    """One answer. Texts are numbered as the responses come."""

    __slots__ = ()

    FAILS = False

    def event(self, payload: bytes) -> None:
        """Read one message."""
        if not self.body(payload):
            self.gave_up += 1

    def body(self, body: bytes) -> bool:
        """Read one message or a batch of them."""
        found = load(body)
        for message in as_list(found):
            if isinstance(message, dict):
                self.whole(message)
        return found is not None

    def whole(self, fields: dict[str, Any]) -> None:
        """Read one message; what the server asks for or tells on the way is passed over."""
        get = fields.get
        result, error = get("result"), get("error")
        if "method" in fields or (result is None and error is None):
            return
        self.ended = True
        if isinstance(error, dict):
            self.fail(error.get("code"))
        elif error is not None:
            self.fail()
        if isinstance(result, dict):
            self._result(result)

    def tokens(self, fields: dict[str, Any]) -> Usage | None:  # noqa: ARG002 - there is nothing to look at
        """Return None: tools count no tokens."""
        return None

    def _result(self, result: dict[str, Any]) -> None:
        get = result.get
        said = content(get("content"))
        if not said:
            said = arguments(get("structuredContent"))
        self.say(len(self._texts), said)
        self.finish = word(get("resultType"))
        if truth(get("isError")):
            self.fail(TOOL_ERROR)
