"""MCP `tools/call` requests (JSON-RPC 2.0), recognised by their body on any path. Other methods are plain HTTP.

A batch is one request, and all its calls are one message. `id`, `_meta`, task and state tokens are not part of it.

As a step, a request has calls whose results go to the client. The JSON-RPC ids together with the calls identify the
step: a client numbers its requests, so the same call with a new id was made again; every connection starts to count
again, so the same id with another call is a new step too. Only if both are equal was a request sent twice.

An error of a tool or of the protocol is an answer like any other, for the model to read. Only HTTP errors are failures.

Messages between agents (A2A) are JSON-RPC as well, and `dialects.a2a` reads them. `hop_ids` reads what both contain
about the tree of the agents.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.dialects import denial, session_ids
from breakloop.dialects.answers import AnswerBuilder, StreamListener, word
from breakloop.dialects.base import BodyFields, Dialect, ParsedBody
from breakloop.dialects.content import (
    DECODED_UNCOUNTED_BYTES,
    ITEMS_MAX,
    LONG_TEXT_CHARS,
    DenseError,
    arguments,
    as_list,
    clean,
    content,
    load,
    more,
    shortened,
    takes_long,
    text,
    truth,
)
from breakloop.dialects.session_ids import BodyIds
from breakloop.dialects.steps import bounded, digest, without_additions
from breakloop.model.call import MCP_DIALECT, TOOL_DIALECTS, Call, Message, Step, ToolCall, Usage
from breakloop.model.verdict import Verdict

TOOLS_CALL: Final = "tools/call"
TOOL_ERROR: Final = "tool_error"
_MARK: Final = b"jsonrpc"
_MARK_WITHIN_BYTES: Final = 256
_DENIED: Final = -32000  # JSON-RPC leaves -32000 to -32099 to servers
_DETAIL_META: Final = "breakloop/detail"
# Messages from agent to agent: the methods of A2A 0.3 and 1.0, and the paths of its binding to plain HTTP.
A2A_METHODS: Final = frozenset(("message/send", "message/stream", "SendMessage", "SendStreamingMessage"))
A2A_PATHS: Final = ("/message:send", "/message:stream")

_A2A_MARKS: Final = (b'"message/s', b'"message\\/s', b'"SendMessage"', b'"SendStreamingMessage"')

RpcId = str | int | None


class McpRequest(msgspec.Struct, gc=False):
    jsonrpc: str
    method: str = ""  # a response of the client has none
    id: Any = None
    params: Any = None


class _RpcId(msgspec.Struct):
    id: RpcId = None


_decode_body: Final = msgspec.json.Decoder(McpRequest | list[McpRequest]).decode
_decode_id: Final = msgspec.json.Decoder(_RpcId).decode


class ToolRequests:
    """The requests of one body that call a tool. They are flattened once."""

    __slots__ = ("_message", "requests")

    def __init__(self, requests: list[McpRequest]) -> None:
        self.requests = requests
        self._message: Message | None = None

    def message(self) -> Message:
        if self._message is None:
            self._message = _message([request.params for request in self.requests])
        return self._message


class Mcp(Dialect):
    name = MCP_DIALECT
    provider = "mcp"
    operation = "execute_tool"
    any_path = True
    is_llm = False

    def parse(self, body: bytes, path: str = "") -> ParsedBody | None:
        if any(mark in body for mark in _A2A_MARKS):
            from breakloop.dialects.a2a import A2a  # noqa: PLC0415 - most processes never need it

            return A2a().parse(body, path) or super().parse(body, path)
        return super().parse(body, path)

    def is_likely(self, body: bytes) -> bool:
        """Search for `jsonrpc`: some clients write it first, others last."""
        found = body.find(_MARK, 0, _MARK_WITHIN_BYTES)
        return found >= 0 or body.find(_MARK, -_MARK_WITHIN_BYTES) >= 0

    def read_fields(self, body: bytes) -> BodyFields | None:
        if len(body) > DECODED_UNCOUNTED_BYTES and takes_long(body):
            raise DenseError
        found = _decode_body(body)
        requests = found if isinstance(found, list) else [found]
        if len(body) > LONG_TEXT_CHARS:
            for request in requests:
                request.params = shortened(request.params)
        return _fields(requests)

    def load_fields(self, body: bytes) -> BodyFields | None:
        sent = [item for item in as_list(load(body)) if isinstance(item, dict) and "jsonrpc" in item]
        return _fields([McpRequest("", text(item.get("method")), item.get("id"), item.get("params")) for item in sent])

    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
        raise NotImplementedError  # `load_fields` also reads batches

    def flatten(self, item: ToolRequests) -> Message:
        return item.message()

    def newest_messages(self, parts: BodyFields, tail: int) -> list[Message]:
        return [parts.items[0].message()] if tail > 0 else []

    def newest_step(self, parsed: ParsedBody) -> Step | None:
        chat = parsed.chat(1)
        if chat is None:
            return None
        message = chat.tail[0]
        calls = tuple([ToolCall(call.name, bounded(call.arguments)) for call in message.calls[:ITEMS_MAX]])
        users = (without_additions(message.text),) if message.text else ()
        try:
            ids = _step_ids(parsed.parts.items[0].requests, message.calls)
        except RecursionError:
            ids = ()
        return Step("", calls, ids, (), users, (), chat.message_count, len(parsed.body))

    def session_ids(self, parsed: ParsedBody) -> BodyIds:
        """Return the ids in the first `_meta`; all requests of a batch belong to one client."""
        for request in parsed.parts.fields:
            meta = request.params.get("_meta") if isinstance(request.params, dict) else None
            if meta and isinstance(meta, dict):
                return session_ids.find_in_meta(meta)
        return session_ids.NONE

    def answer_builder(self, listener: StreamListener | None = None) -> AnswerBuilder:
        return McpAnswer(listener)

    def denial(self, verdict: Verdict, call: Call) -> tuple[int, bytes]:
        """Return a tool result with an error: the model reads that, but not a protocol error or an HTTP status."""
        result = {
            "resultType": "complete",  # required since 2026-07-28; older versions allow further fields
            "content": [{"type": "text", "text": denial.message(verdict)}],
            "isError": True,
            "_meta": {_DETAIL_META: denial.detail(verdict)},
        }
        return 200, denial.dump({"jsonrpc": "2.0", "id": rpc_id(call.body), "result": result})

    def error_fields(self, verdict: Verdict, call: Call) -> dict[str, object]:
        data = denial.detail(verdict)
        del data["message"]  # given already, and nginx has little room for a body in a header field
        error: dict[str, object] = {"code": _DENIED, "message": denial.message(verdict), "data": data}
        return {"jsonrpc": "2.0", "id": rpc_id(call.body), "error": error}


MCP: Final = Mcp()


def rpc_id(body: bytes) -> RpcId:
    """Return the id of a JSON-RPC request; None if it has none that a response could carry."""
    try:
        return _decode_id(body).id
    except (ValueError, RecursionError):
        return None


def rpc_stub(body: bytes) -> bytes:
    """Return the part of a JSON-RPC request that an error response needs; b"" for anything else."""
    return denial.dump({"jsonrpc": "2.0", "id": rpc_id(body)}) if MCP.is_likely(body) else b""


def hop_ids(call: Call) -> BodyIds | None:
    """Return the ids in a request that calls a tool or another agent; None for any other request. The session of a
    message between agents is its context."""
    parsed, body = call.parsed.body, call.body
    if isinstance(parsed, ParsedBody):
        return parsed.dialect.session_ids(parsed) if parsed.dialect.name in TOOL_DIALECTS else None
    if call.path.endswith(A2A_PATHS):
        return a2a_ids(load(body))
    if not MCP.is_likely(body):
        return None
    for item in as_list(load(body)):
        method = item.get("method") if isinstance(item, dict) else None
        if method in A2A_METHODS:
            return a2a_ids(item.get("params"))
        if method == TOOLS_CALL:  # no policy looked at it
            return session_ids.NONE
    return None


def a2a_ids(params: object) -> BodyIds | None:
    """Return the ids in the parameters of a message between agents."""
    if not isinstance(params, dict):
        return None
    message = params.get("message")
    if not isinstance(message, dict):
        return None
    metadata = [one for one in (params.get("metadata"), message.get("metadata")) if isinstance(one, dict)]
    found = session_ids.find_in_meta({name: value for one in metadata for name, value in one.items()})
    return found._replace(session=found.session or clean(text(message.get("contextId"))))


def _fields(requests: list[McpRequest]) -> BodyFields | None:
    tool_requests = [request for request in requests if request.method == TOOLS_CALL]
    return BodyFields("", [ToolRequests(tool_requests)], fields=requests) if tool_requests else None


def _message(params: list[Any]) -> Message:
    calls = [_call(one) for one in params[:ITEMS_MAX]]
    if len(params) > ITEMS_MAX:
        calls.append(ToolCall("", more(params)))
    # The user's answers to questions of the tool: the same call with other answers is another request.
    texts = [text(one.get("inputResponses")) for one in params[:ITEMS_MAX] if isinstance(one, dict)]
    return Message(TOOLS_CALL, "\n".join(filter(None, texts)), tuple(calls))


def _call(params: object) -> ToolCall:
    if not isinstance(params, dict):
        return ToolCall("", arguments(params))
    return ToolCall(text(params.get("name")), arguments(params.get("arguments")))


def _step_ids(requests: list[McpRequest], calls: tuple[ToolCall, ...]) -> tuple[str, ...]:
    ids = [clean(text(request.id)) for request in requests[:ITEMS_MAX]]
    if not any(ids):
        return ()
    digests = [digest("\0".join(call)) for call in calls]
    return tuple([f"{sent}:{made}" for sent, made in zip(ids, digests, strict=False)])


class McpAnswer(AnswerBuilder):
    """One JSON-RPC response, a batch of them, or events with notifications in between. Texts are numbered in order."""

    __slots__ = ()

    FAILS = False

    def read_event(self, payload: bytes) -> None:
        if not self.read_body(payload):
            self.unreadable += 1

    def read_body(self, body: bytes) -> bool:
        found = load(body)
        for message in as_list(found):
            if isinstance(message, dict):
                self.read_fields(message)
        return found is not None

    def read_fields(self, fields: dict[str, Any]) -> None:
        """Read one message; requests and notifications of the server are ignored."""
        get = fields.get
        result, error = get("result"), get("error")
        if "method" in fields or (result is None and error is None):
            return
        self.ended = True
        if isinstance(error, dict):
            self.set_error(error.get("code"))
        elif error is not None:
            self.set_error()
        if isinstance(result, dict):
            self._read_result(result)

    def read_usage(self, fields: dict[str, Any]) -> Usage | None:  # noqa: ARG002
        return None

    def _read_result(self, result: dict[str, Any]) -> None:
        get = result.get
        said = content(get("content"))
        if not said:
            said = arguments(get("structuredContent"))
        self.add_text(len(self._texts), said)
        self.finish = word(get("resultType"))
        if truth(get("isError")):
            self.set_error(TOOL_ERROR)
