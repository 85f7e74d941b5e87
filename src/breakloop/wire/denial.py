"""A denial as bytes, in the shape the client's SDK expects (SPEC A-3, A-4). Which headers go with it is
`gateway.answers`' work. Only on the denial path, so clarity comes before speed."""

from __future__ import annotations

import json

from breakloop.model.verdict import Verdict

LOOP_ERROR = "recursive_loop_detected"
JSON = "application/json"
PROBLEM = "application/problem+json"

_PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types#"


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


def body(verdict: Verdict, dialect: str = "") -> bytes:
    """Return the JSON body, with the dialect's own error object beside `detail`."""
    content: dict[str, object] = {"detail": detail(verdict)}
    if dialect.startswith("openai"):
        content["error"] = {
            "message": verdict.message,
            "type": "rate_limit_error",
            "param": None,
            "code": error_code(verdict),
        }
    return _dump(content)


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
