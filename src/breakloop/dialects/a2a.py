"""Messages between agents: A2A 0.3 and 1.0, as JSON-RPC on any path (`dialects.mcp` finds it there), and its binding to
plain HTTP (`/message:send`).

For detection, a message is a call of another agent, and its response is the result, as with the tools of MCP
(`dialects.mcp`). Ids of messages are not part of it. Other methods, such as those that ask for the state of a task, are
plain HTTP.

What the conversation of two agents is in: a message names its context, and `hop_ids` of `dialects.mcp` reads the tree.
"""

from __future__ import annotations

from typing import Any, Final

from breakloop.dialects import denial, session_ids
from breakloop.dialects.answers import AnswerBuilder, StreamListener, word
from breakloop.dialects.base import BodyFields, Dialect, ParsedBody
from breakloop.dialects.content import ITEMS_MAX, as_list, clean, json_text, load, text
from breakloop.dialects.mcp import A2A_METHODS, A2A_PATHS, MCP, McpAnswer, a2a_ids, rpc_id
from breakloop.dialects.session_ids import BodyIds
from breakloop.dialects.steps import bounded
from breakloop.model.call import A2A_DIALECT, Call, Message, Step, ToolCall
from breakloop.model.verdict import Verdict

_SEND: Final = "message/send"
_DENIED: Final = -32000  # JSON-RPC leaves -32000 to -32099 to servers
_STATUSES: Final = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}
_FAILED: Final = frozenset(("failed", "rejected", "canceled", "cancelled"))


class A2a(Dialect):
    name = A2A_DIALECT
    provider = "a2a"
    operation = "invoke_agent"
    path_endings = A2A_PATHS
    is_llm = False

    def read_fields(self, body: bytes) -> BodyFields | None:
        return self.load_fields(body)

    def load_fields(self, body: bytes) -> BodyFields | None:
        found = load(body)
        requests = [one for one in as_list(found) if isinstance(one, dict)]
        sent = [one.get("params") for one in requests if one.get("method") in A2A_METHODS]
        if not sent and isinstance(found, dict) and "jsonrpc" not in found:
            sent = [found]  # the binding to plain HTTP: the parameters alone
        params = [one for one in sent if isinstance(one, dict) and isinstance(one.get("message"), dict)]
        return BodyFields("", [params], fields=params) if params else None

    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
        raise NotImplementedError  # `load_fields` also reads batches

    def flatten(self, item: list[dict[str, Any]]) -> Message:
        return Message(_SEND, "", tuple([ToolCall(_SEND, _parts(one["message"])) for one in item[:ITEMS_MAX]]))

    def newest_step(self, parsed: ParsedBody) -> Step | None:
        message = self.flatten(parsed.parts.items[0])
        calls = tuple([ToolCall(call.name, bounded(call.arguments)) for call in message.calls])
        ids = tuple([clean(text(one["message"].get("messageId"))) for one in parsed.parts.items[0][:ITEMS_MAX]])
        return Step("", calls, ids if all(ids) else (), (), (), (), 1, len(parsed.body))

    def session_ids(self, parsed: ParsedBody) -> BodyIds:
        return a2a_ids(parsed.parts.fields[0]) or session_ids.NONE

    def answer_builder(self, listener: StreamListener | None = None) -> AnswerBuilder:
        return A2aAnswer(listener)

    def denial(self, verdict: Verdict, call: Call) -> tuple[int, bytes]:
        """Return an error of JSON-RPC, whose clients expect 200, or of the binding to plain HTTP."""
        if MCP.is_likely(call.body):
            return 200, denial.dump(self.error_fields(verdict, call))
        return verdict.status, self.error_body(verdict, call)

    def error_fields(self, verdict: Verdict, call: Call) -> dict[str, object]:
        said, detail = denial.message(verdict), denial.detail(verdict)
        if not MCP.is_likely(call.body):
            status = _STATUSES.get(verdict.status, "FAILED_PRECONDITION")
            return {"error": {"code": verdict.status, "status": status, "message": said, "details": []}}
        del detail["message"]  # given already
        error: dict[str, object] = {"code": _DENIED, "message": said, "data": detail}
        return {"jsonrpc": "2.0", "id": rpc_id(call.body), "error": error}


def _parts(message: dict[str, Any]) -> str:
    """Return what a message says: texts as they are, data as JSON with sorted keys."""
    return clean("\n".join([_part(part) for part in as_list(message.get("parts"))[:ITEMS_MAX]]))


def _part(part: object) -> str:
    if not isinstance(part, dict):
        return text(part)
    said = part.get("text")
    if isinstance(said, str):
        return said
    return json_text({name: part[name] for name in part if name not in {"kind", "metadata"}}).decode()


class A2aAnswer(McpAnswer):
    """A message, a task, or the events of a stream about one; with or without the frame of JSON-RPC."""

    __slots__ = ()

    def read_fields(self, fields: dict[str, Any]) -> None:
        error = fields.get("error")
        if error is not None:
            self.ended = True
            self.set_error(error.get("code") if isinstance(error, dict) else None)
        result = fields.get("result", fields)
        if isinstance(result, dict):
            for name in ("task", "message", "statusUpdate", "artifactUpdate"):  # the frames of 1.0
                if isinstance(result.get(name), dict):
                    result = result[name]
                    break
            self._read(result)

    def _read(self, result: dict[str, Any]) -> None:
        artifacts = [*as_list(result.get("artifacts")), result.get("artifact")]
        status = result.get("status")
        said = [result, *artifacts]
        if isinstance(status, dict):
            said.append(status.get("message"))
            state = word(status.get("state")).rpartition("_")[2].lower()
            self.finish = state
            if state in _FAILED:
                self.set_error(state)
        for one in said:
            if isinstance(one, dict) and one.get("parts"):
                self.add_text(len(self._texts), _parts(one))
                self.ended = True
