"""A denial as an HTTP answer, where the library stands in for the server: the body and the fields that a gateway would
send, so that SDKs raise their own error and do not try again (SPEC A-1 to A-4)."""

from __future__ import annotations

from typing import NamedTuple

from breakloop.model.decision import Decision
from breakloop.model.verdict import Verdict
from breakloop.sdk.core import chat_of
from breakloop.wire import denial, mcp
from breakloop.wire.dialects import of_path


class Denied(NamedTuple):
    """An answer in a server's stead."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def denied(decision: Decision) -> Denied:
    """Return the answer to a request that was denied."""
    headers = [("Content-Type", "application/json"), ("X-Breakloop-Reason", decision.reason)]
    if decision.request_id:
        headers.append(("X-Breakloop-Request-Id", decision.request_id))
    if decision.retry_after is not None:
        headers.append(("Retry-After", str(decision.retry_after)))
    if decision.is_loop or decision.retry_after is None:
        headers.append(("x-should-retry", "false"))
    call = decision.call
    chat = chat_of(call) if call is not None else None
    if chat is not None and chat.dialect == mcp.DIALECT:
        body = denial.mcp_tool_error(_verdict(decision), denial.rpc_id(call.body))
        return _sized(200, headers, body)
    dialect = chat.dialect if chat is not None else of_path(call.path) if call is not None else ""
    body = decision.body or denial.body(_verdict(decision), dialect, request_id=decision.request_id)
    return _sized(decision.status, headers, body)


def _sized(status: int, headers: list[tuple[str, str]], body: bytes) -> Denied:
    return Denied(status, [*headers, ("Content-Length", str(len(body)))], body)


def _verdict(decision: Decision) -> Verdict:
    """The engine's own, or what a service's answer tells of it."""
    if isinstance(decision.verdict, Verdict):
        return decision.verdict
    made = Verdict(allowed=False, reason=decision.reason, status=decision.status, message=decision.message)
    made.retry_after_s = decision.retry_after
    return made
