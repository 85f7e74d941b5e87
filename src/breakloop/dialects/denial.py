"""Verdicts as HTTP: header fields, and the parts of a denial's body that all dialects share.

The gateway and the library answer with the same. Each dialect adds an error object in the shape that its SDKs expect
(`Dialect.error_fields`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

import orjson

from breakloop.model.decision import LOOP, LOOP_ERROR, PAUSED, STOP_REASONS
from breakloop.model.verdict import LimitState, TreeBudgetState, Verdict

PROBLEM: Final = "application/problem+json"
PREFIX: Final = "X-Breakloop-"  # of our header names, unless `header_prefix` changes it

_LIMIT_HEADS_KEPT: Final = 4096
_PROBLEM_TYPES: Final = "https://iana.org/assignments/http-problem-types#"


def quoted(name: str) -> str:
    """Return a policy id as a structured-field string: printable ASCII in quotes."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(escaped)}"'


def printable(text: str) -> str:
    """Return a text as a header field can hold it: tools may have names, and bundles sentences, in any language."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)


class VerdictHeaders:
    """Writes the header lines of verdicts.

    `prefix` is the setting `header_prefix`; `secret` keys the jitter, so that clients cannot compute it.
    """

    def __init__(self, prefix: str, secret: bytes) -> None:
        self._secret = secret[:64]
        self._reason = f"{prefix}Reason: "
        self._stop_reason = f"{prefix}Stop-Reason: "
        self._request_id = f"{prefix}Request-Id: "
        self._result_id = f"{prefix}Result-Id: "
        self._warning = f"{prefix}Warning: "
        self._loop_count = f"{prefix}Loop-Count: "
        self._delay = f"{prefix}Loop-Delay: "
        self._note = f"{prefix}Note: "
        self._action = f"{prefix}Action: "
        self._status = f"{prefix}Status: "
        self._body = f"{prefix}Body: "
        self._usd_left = f"{prefix}Tree-Usd-Left: "
        self._tokens_left = f"{prefix}Tree-Tokens-Left: "
        # The constant part of the RateLimit fields of each limit, by (name, quota, window).
        self._heads: dict[tuple[str, int, int], tuple[str, str]] = {}
        # The last state of a limit, and its lines: limiters return the same object as long as nothing changes.
        self._last: tuple[LimitState | None, str] = (None, "")

    def allowed(self, verdict: Verdict, request_id: str, result_id: str = "") -> bytes:
        """Return the header lines for the answer to an allowed request. `result_id` tells a gateway under which id to
        report the result.
        """
        limit = verdict.limit
        if limit is None and not (verdict.warning or verdict.note or result_id or verdict.tree):  # as most in the proxy
            return f"{self._request_id}{request_id}\r\n".encode("latin-1")
        result = f"{self._result_id}{result_id}\r\n" if result_id else ""
        if limit is not None and limit is self._last[0]:
            told = self._last[1]
        elif limit is not None:
            told = self._limit(limit)
            self._last = (limit, told)
        else:
            told = ""
        head = f"{self._request_id}{request_id}\r\n{result}{told}"
        if verdict.warning:
            head += self._warned(verdict)
        if verdict.note:
            head += f"{self._note}{printable(verdict.note)}\r\n"
        if verdict.tree is not None:
            head += self._left(verdict.tree)
        return head.encode("latin-1")

    def denied(self, verdict: Verdict, request_id: str, identity: str) -> bytes:
        """Return the header lines of a denial. Each `identity` gets its own jitter."""
        head = f"{self._request_id}{request_id}\r\n{self._reason}{verdict.reason}\r\n"
        stop_reason = STOP_REASONS.get(verdict.reason)
        if stop_reason is not None:
            head += f"{self._stop_reason}{stop_reason}\r\n"
        wait_s = self.retry_after_s(verdict, identity)
        if wait_s is not None:
            head += f"Retry-After: {wait_s}\r\n"
        if verdict.never:
            head += "x-should-retry: false\r\n"
        elif verdict.reason == PAUSED:
            head += "x-should-retry: true\r\n"  # waiting helps
        if verdict.limit is not None:
            head += self._limit(verdict.limit)
        elif verdict.policy and verdict.retry_after_s is not None:
            head += f"RateLimit: {quoted(verdict.policy)};r=0;t={verdict.retry_after_s}\r\n"
            head += f"RateLimit-Reset: {verdict.retry_after_s}\r\n"
        if verdict.tree is not None:
            head += self._left(verdict.tree)
        return head.encode("latin-1")

    def carried(self, status: int, body: bytes) -> bytes:
        """Return header lines that carry a status and a one-line body through a gateway that drops both."""
        return self.real_status(status) + f"{self._body}{body.decode('ascii')}\r\n".encode("ascii")

    def real_status(self, status: int) -> bytes:
        """Return the header line that carries a status through a gateway that would interpret it."""
        return f"{self._status}{status}\r\n".encode("ascii")

    def retry_after_s(self, verdict: Verdict, identity: str) -> int | None:
        """Return the value of `Retry-After`. For limits, up to half is added, fixed for each identity."""
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
        if verdict.landed:
            head += f"{self._action}land\r\n{self._stop_reason}{STOP_REASONS[verdict.warning]}\r\n"
        return head

    def _left(self, tree: TreeBudgetState) -> str:
        """Return what is left of the budget of a tree, in dollars and tokens."""
        usd, tokens = tree.microusd_left, tree.tokens_left
        head = "" if usd is None else f"{self._usd_left}{usd // 1_000_000}.{usd % 1_000_000:06}\r\n"
        return head if tokens is None else f"{head}{self._tokens_left}{tokens}\r\n"


def field_pairs(head: bytes) -> list[tuple[str, str]]:
    """Return header lines as pairs of name and value."""
    lines = head.decode("latin-1").split("\r\n")
    return [(name, value) for name, _, value in (line.partition(": ") for line in lines if line)]


def error_code(verdict: Verdict) -> str:
    """Return the `error` of the body: the reason, except for loops."""
    return LOOP_ERROR if verdict.reason == LOOP else verdict.reason


def message(verdict: Verdict) -> str:
    """Return the message followed by the code: SDKs may show nothing else of an error object."""
    return f"{verdict.message} ({error_code(verdict)})"


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
    stop_reason = STOP_REASONS.get(verdict.reason)
    if stop_reason is not None:
        fields["stop_reason"] = stop_reason
    return fields


def error_type(types: Mapping[int, str], status: int) -> str:
    """Return the type of this status, or that of 400 or 500."""
    return types.get(status) or types[500 if status >= 500 else 400]


def problem(verdict: Verdict) -> bytes:
    """Return a denial as `application/problem+json` (RFC 9457), with the types of the RateLimit draft."""
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
    return dump(content)


def _problem_type(verdict: Verdict) -> tuple[str, str]:
    if verdict.reason == LOOP:
        return "abnormal-usage-detected", "Request repeats itself"
    if verdict.reason in {"no_bundle_loaded", "store_unavailable"}:
        return "temporary-reduced-capacity", "Temporarily unavailable"
    if verdict.limit is not None:
        return "quota-exceeded", "Limit exceeded"
    return "", "Denied"


def dump(content: dict[str, object]) -> bytes:
    # ASCII on one line, so that it fits into a header field: nginx drops the bodies of `auth_request`.
    try:
        raw = orjson.dumps(content)
        if raw.isascii() and b"\x7f" not in raw:
            return raw
    except TypeError:  # a lone surrogate
        pass
    return json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode("ascii")
