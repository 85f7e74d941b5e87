"""A denial as an HTTP answer, where the library answers instead of the server: the status, fields and body that a
gateway would send, so that SDKs raise their own error and do not try again (SPEC A-1 to A-4)."""

from __future__ import annotations

from typing import Final, NamedTuple

from breakloop.model.call import Call
from breakloop.model.decision import Decision
from breakloop.model.reason import REASONS
from breakloop.model.verdict import Loop, Verdict
from breakloop.sdk.core import chat_of
from breakloop.wire import denial, mcp

_HEADERS: Final = denial.VerdictHeaders(denial.PREFIX, b"")


class Denied(NamedTuple):
    """An answer instead of the server's."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def denied(decision: Decision) -> Denied:
    """Return the answer to a request that was denied."""
    verdict, call = _verdict(decision), decision.call or Call("", "", request_id=decision.request_id)
    chat = chat_of(call)
    dialect = chat.dialect if chat is not None else ""
    status, body = denial.for_client(verdict, call, dialect)
    if decision.body and dialect != mcp.DIALECT:  # what a service answered, which knows more of the verdict
        body = decision.body
    fields = decision.fields or denial.field_pairs(_HEADERS.denied(verdict, decision.request_id, ""))
    sized = ("Content-Type", "application/json"), ("Content-Length", str(len(body)))
    return Denied(status, [*fields, *sized], body)


def _verdict(decision: Decision) -> Verdict:
    """Return the engine's own, or what a service's answer tells of it."""
    if isinstance(decision.verdict, Verdict):
        return decision.verdict
    made = Verdict(allowed=False, reason=decision.reason, status=decision.status, message=decision.message)
    made.retry_after_s = decision.retry_after
    known = REASONS.get(decision.reason)
    made.never = decision.retry_after is None or (known is not None and not known.retry_helps)
    if decision.is_loop:
        made.loop = Loop(
            kind=decision.kind,
            fingerprint=decision.fingerprint,
            hit_count=decision.hit_count,
            window_s=0,
            cooldown_s=decision.cooldown_seconds,
            action="",
            fresh=False,
            message=decision.message,
            evidence=decision.evidence,
        )
    return made
