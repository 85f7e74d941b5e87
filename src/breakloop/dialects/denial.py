"""Verdicts as HTTP: their header fields (SPEC A-1, A-2, A-5), and the body of a denial in the shape that the client's
SDK expects (A-3, A-4). The gateway and the library both answer with these."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from breakloop.dialects import mcp
from breakloop.dialects.registry import of_path
from breakloop.model.call import Call
from breakloop.model.verdict import LimitState, Verdict

LOOP_ERROR = "recursive_loop_detected"
PROBLEM = "application/problem+json"

RpcId = str | int | None

PREFIX: Final = "X-Breakloop-"  # how our header names begin, unless a setting changes it

_LIMIT_HEADS_KEPT: Final = 4096
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


def quoted(name: str) -> str:
    """Return a policy id as a structured-field string: printable ASCII between quotes."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    if not (escaped.isascii() and escaped.isprintable()):
        escaped = "".join(c if c.isascii() and c.isprintable() else "?" for c in escaped)
    return f'"{escaped}"'


class VerdictHeaders:
    """Header lines of verdicts (SPEC A-1, A-2, A-5), for the gateway and for the library that answers in its place.

    `prefix` is `header_prefix`; `secret` keys the jitter, so that clients cannot compute it.
    """

    __slots__ = (
        "_body", "_delay", "_heads", "_loop_count", "_note", "_reason", "_request_id", "_secret", "_status", "_warning",
    )  # fmt: skip

    def __init__(self, prefix: str, secret: bytes) -> None:
        self._secret = secret[:64]
        self._reason = f"{prefix}Reason: "
        self._request_id = f"{prefix}Request-Id: "
        self._warning = f"{prefix}Warning: "
        self._loop_count = f"{prefix}Loop-Count: "
        self._delay = f"{prefix}Loop-Delay: "
        self._note = f"{prefix}Note: "
        self._status = f"{prefix}Status: "
        self._body = f"{prefix}Body: "
        # The part of the RateLimit fields that never changes for one limit, by (name, quota, window).
        self._heads: dict[tuple[str, int, int], tuple[str, str]] = {}

    def allowed(self, verdict: Verdict, request_id: str) -> bytes:
        """Return the header lines of an allowed answer."""
        head = f"{self._request_id}{request_id}\r\n"
        if verdict.limit is not None:
            head += self._limit(verdict.limit)
        if verdict.warning:
            head += self._warned(verdict)
        return head.encode("latin-1")

    def denied(self, verdict: Verdict, request_id: str, identity: str) -> bytes:
        """Return the header lines of a denial. `identity` is who is to wait: it has its own jitter."""
        head = f"{self._request_id}{request_id}\r\n{self._reason}{verdict.reason}\r\n"
        wait_s = self.retry_after_s(verdict, identity)
        if wait_s is not None:
            head += f"Retry-After: {wait_s}\r\n"
        if verdict.never:
            head += "x-should-retry: false\r\n"
        if verdict.limit is not None:
            head += self._limit(verdict.limit)
        elif verdict.policy and verdict.retry_after_s is not None:
            head += f"RateLimit: {quoted(verdict.policy)};r=0;t={verdict.retry_after_s}\r\n"
            head += f"RateLimit-Reset: {verdict.retry_after_s}\r\n"
        return head.encode("latin-1")

    def carried(self, status: int, body: bytes) -> bytes:
        """Return the header lines that carry a status and a one-line body past a gateway which drops both."""
        return self.real_status(status) + f"{self._body}{body.decode('ascii')}\r\n".encode("ascii")

    def real_status(self, status: int) -> bytes:
        """Return the header line that carries a status past a gateway which takes it for something else."""
        return f"{self._status}{status}\r\n".encode("ascii")

    def retry_after_s(self, verdict: Verdict, identity: str) -> int | None:
        """Return the `Retry-After` value: with up to half more for limits, spread by identity, always the same."""
        base = verdict.retry_after_s
        if base is None or not verdict.retry_jitter:
            return base
        seed = f"{verdict.policy}\x00{verdict.rule}\x00{verdict.reason}\x00{identity}".encode("utf-8", "surrogatepass")
        draw = int.from_bytes(blake2b(seed, digest_size=4, key=self._secret, person=b"breakloop-jit").digest())
        return base + draw * (max(1, base // 2) + 1) // 2**32

    def _limit(self, limit: LimitState) -> str:
        key = (limit.name, limit.quota, limit.window_s)
        head = self._heads.get(key)
        if head is None:
            name = quoted(limit.name)
            policy = f"RateLimit-Policy: {name};q={limit.quota};w={limit.window_s}\r\n"
            head = (f"{policy}RateLimit-Limit: {limit.quota}\r\nRateLimit: {name};r=", "RateLimit-Remaining: ")
            if len(self._heads) < _LIMIT_HEADS_KEPT:
                self._heads[key] = head
        left, reset = limit.remaining, limit.reset_s
        return f"{head[0]}{left};t={reset}\r\n{head[1]}{left}\r\nRateLimit-Reset: {reset}\r\n"

    def _warned(self, verdict: Verdict) -> str:
        head = f"{self._warning}{verdict.warning}\r\n"
        if verdict.loop is not None:
            head += f"{self._loop_count}{verdict.loop.hit_count}\r\n"
        if verdict.delay_ms:
            head += f"{self._delay}{verdict.delay_ms}\r\n"
        if verdict.note:
            head += f"{self._note}{verdict.note}\r\n"
        return head


def field_pairs(head: bytes) -> list[tuple[str, str]]:
    """Return header lines as names and values."""
    lines = head.decode("latin-1").split("\r\n")
    return [(name, value) for name, _, value in (line.partition(": ") for line in lines if line)]


def for_client(verdict: Verdict, call: Call, dialect: str) -> tuple[int, bytes]:
    """Return status and body of a denial for the client itself. The model behind an MCP client reads a tool's error,
    and no status."""
    if dialect == mcp.DIALECT:
        return 200, mcp_tool_error(verdict, rpc_id(call.body))
    return verdict.status, for_call(verdict, call, dialect)


def for_call(verdict: Verdict, call: Call, dialect: str) -> bytes:
    """Return an error in the client's dialect; where that is unknown (""), in the one that the request looks like."""
    dialect = dialect or (mcp.DIALECT if mcp.is_likely(call.body) else of_path(call.path))
    return body(
        verdict,
        dialect,
        request_id=call.request_id,
        rpc_id=rpc_id(call.body) if dialect == mcp.DIALECT else None,
    )


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
    elif dialect == mcp.DIALECT:
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
    if not mcp.is_likely(sent):
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
