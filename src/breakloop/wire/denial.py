"""A denial as bytes, in the shape the client's SDK expects (SPEC A-3, A-4). Which headers go with it is
`gateway.answers`' work. Only on the denial path, so clarity comes before speed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import msgspec

from breakloop.model.verdict import Verdict
from breakloop.wire.mcp import is_likely

LOOP_ERROR = "recursive_loop_detected"
PROBLEM = "application/problem+json"

RpcId = str | int | None

_PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types#"
_RPC: Final = "type.googleapis.com/google.rpc."
_MCP_DENIED: Final = -32000  # JSON-RPC leaves -32000 to -32099 to servers
_MCP_META: Final = "breakloop/detail"

# What each provider calls an error of this status, so that code that looks at the name does the right thing.
_OPENAI_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
}
_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_GEMINI_STATUSES: Final = {
    400: "FAILED_PRECONDITION",  # and not INVALID_ARGUMENT: nothing is wrong with what was sent
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class _Rpc(msgspec.Struct):
    id: RpcId = None


_read_rpc: Final = msgspec.json.Decoder(_Rpc).decode


def error_code(verdict: Verdict) -> str:
    """Return what stands as `error` in the body: the reason, except for loops."""
    return LOOP_ERROR if verdict.reason == "loop_detected" else verdict.reason


def detail(verdict: Verdict) -> dict[str, object]:
    """Return the `detail` object of a denial."""
    fields: dict[str, object] = {"error": error_code(verdict), "message": verdict.message}
    loop = verdict.loop
    if loop is not None:
        fields |= {
            "fingerprint": loop.fingerprint,
            "hit_count": loop.hit_count,
            "cooldown_seconds": loop.cooldown_s,
            "kind": loop.kind,
            "evidence": loop.evidence,
        }
    return fields


def body(verdict: Verdict, dialect: str = "", *, request_id: str = "", rpc_id: RpcId = None) -> bytes:
    """Return the JSON body, with the dialect's own error object beside `detail`."""
    content: dict[str, object] = {"detail": detail(verdict)}
    if dialect.startswith("openai"):
        content["error"] = _openai(verdict)
    elif dialect == "anthropic_messages":
        content["type"] = "error"
        kind = _error_type(_ANTHROPIC_TYPES, verdict.status)
        details = {"error_code": error_code(verdict)}
        content["error"] = {"type": kind, "message": _text(verdict), "details": details}
        if request_id:
            content["request_id"] = request_id
    elif dialect == "gemini":
        content["error"] = _gemini(verdict)
    elif dialect == "mcp":
        data = detail(verdict)
        del data["message"]  # said already, and nginx has little room for a body that travels as a header field
        content |= {"jsonrpc": "2.0", "id": rpc_id}
        content["error"] = {"code": _MCP_DENIED, "message": _text(verdict), "data": data}
    return _dump(content)


def mcp_tool_error(verdict: Verdict, request_id: RpcId) -> bytes:
    """Return a denied `tools/call` as its result: the model reads a tool's error, and a protocol error it does not."""
    result = {
        "resultType": "complete",  # wanted since 2026-07-28, and unknown before, when other fields were allowed
        "content": [{"type": "text", "text": _text(verdict)}],
        "isError": True,
        "_meta": {_MCP_META: detail(verdict)},
    }
    return _dump({"jsonrpc": "2.0", "id": request_id, "result": result})


def rpc_id(sent: bytes) -> RpcId:
    """Return the id of a JSON-RPC request, or None where it has none that an answer could carry."""
    try:
        return _read_rpc(sent).id
    except (ValueError, RecursionError):
        return None


def rpc_stub(sent: bytes) -> bytes:
    """Return as much of a JSON-RPC request as an error in its stead needs; nothing of anything else."""
    if not is_likely(sent):
        return b""
    return _dump({"jsonrpc": "2.0", "id": rpc_id(sent)})


def _text(verdict: Verdict) -> str:
    """The message and its code: of all that an error object holds, SDKs may show no more than the message."""
    return f"{verdict.message} ({error_code(verdict)})"


def _openai(verdict: Verdict) -> dict[str, object]:
    return {
        "message": _text(verdict),
        "type": _error_type(_OPENAI_TYPES, verdict.status),
        "param": None,
        "code": error_code(verdict),
    }


def _gemini(verdict: Verdict) -> dict[str, object]:
    code = error_code(verdict)
    # google.rpc.ErrorInfo wants its reason in capitals; who searches for ours finds it in the metadata.
    details: list[dict[str, object]] = [
        {"@type": _RPC + "ErrorInfo", "reason": code.upper(), "domain": "breakloop", "metadata": {"error": code}}
    ]
    if verdict.retry_after_s is not None and not verdict.never:
        details.append({"@type": _RPC + "RetryInfo", "retryDelay": f"{verdict.retry_after_s}s"})
    status = _error_type(_GEMINI_STATUSES, verdict.status)
    return {"code": verdict.status, "message": _text(verdict), "status": status, "details": details}


def _error_type(types: Mapping[int, str], status: int) -> str:
    """A status of its own, or that of its class: 400 and 500 stand for the rest."""
    return types.get(status) or types[500 if status >= 500 else 400]


def problem(verdict: Verdict) -> bytes:
    """Return the same as `application/problem+json` (RFC 9457), with the types of the RateLimit draft."""
    kind, title = _problem_type(verdict)
    content: dict[str, object] = {
        "type": _PROBLEM_TYPES + kind if kind else "about:blank",
        "title": title,
        "status": verdict.status,
    }
    fields = detail(verdict)
    content["detail"] = fields.pop("message")
    content |= fields
    if verdict.policy:
        content["violated-policies"] = [verdict.policy]
    return _dump(content)


def _problem_type(verdict: Verdict) -> tuple[str, str]:
    if verdict.reason == "loop_detected":
        return "abnormal-usage-detected", "Request repeats itself"
    if verdict.reason in {"no_bundle_loaded", "store_unavailable"}:
        return "temporary-reduced-capacity", "Temporarily unavailable"
    if verdict.limit is not None:
        return "quota-exceeded", "Limit exceeded"
    return "", "Denied"


def _dump(content: dict[str, object]) -> bytes:
    # ASCII and one line, so that the same text can travel in a header field (nginx drops bodies of `auth_request`).
    return json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode("ascii")
