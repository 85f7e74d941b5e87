"""Bodies of denials."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.model.reason import REASONS
from breakloop.model.verdict import Limit, Loop, Verdict
from breakloop.wire import denial

LOOP = Loop("tail", "ab" * 16, 6, 60, 30, "reject", fresh=True, message="Blocked: x.", evidence="6 times")


def refused(reason: str = "kill_switch", message: str = "No.", status: int = 429) -> Verdict:
    return Verdict(allowed=False, reason=reason, status=status, message=message)


def looped() -> Verdict:
    verdict = refused("loop_detected", LOOP.message)
    verdict.loop, verdict.policy = LOOP, "p"
    return verdict


DETAIL = {
    "error": "recursive_loop_detected",
    "message": "Blocked: x.",
    "fingerprint": "ab" * 16,
    "hit_count": 6,
    "cooldown_seconds": 30,
    "kind": "tail",
    "evidence": "6 times",
}


def loads(body: bytes) -> Any:
    return json.loads(body)


def test_a_loop_body() -> None:
    """A-3: exactly these fields, in plain JSON."""
    assert loads(denial.body(looped())) == {"detail": DETAIL}
    assert denial.body(looped()).startswith(b'{"detail":{"error":"recursive_loop_detected","message":')


def test_the_openai_error_stands_beside_it() -> None:
    """A-3: OpenAI shapes get their own error object too."""
    error = {"message": "Blocked: x.", "type": "rate_limit_error", "param": None, "code": "recursive_loop_detected"}
    assert loads(denial.body(looped(), "openai")) == {"detail": DETAIL, "error": error}
    assert "error" not in loads(denial.body(looped(), "plain"))


@pytest.mark.parametrize("reason", sorted(set(REASONS) - {"loop_detected"}))
def test_other_denials_have_the_same_shape(reason: str) -> None:
    """A-4: `error` is the reason."""
    assert loads(denial.body(refused(reason))) == {"detail": {"error": reason, "message": "No."}}
    assert loads(denial.body(refused(reason), "openai"))["error"]["code"] == reason


@pytest.mark.parametrize("text", ["a\r\nb", "ü", "\x7f", '"', "\u2028", "\ud800", "\x00"])
def test_bodies_are_one_line_of_ascii(text: str) -> None:
    """D-3: so that they can travel in a header field."""
    for body in (denial.body(refused(message=text), "openai"), denial.problem(refused(message=text))):
        assert all(0x20 <= byte < 0x7F for byte in body)
        assert text in str(
            loads(body)["detail"] if isinstance(loads(body)["detail"], str) else loads(body)["detail"]["message"]
        )


def test_problems() -> None:
    """A-4: RFC 9457 members, `detail` as text, our fields beside them."""
    found = loads(denial.problem(looped()))
    assert found["type"].endswith("#abnormal-usage-detected")
    assert (found["status"], found["detail"], found["error"]) == (429, "Blocked: x.", "recursive_loop_detected")
    assert (found["hit_count"], found["cooldown_seconds"], found["violated-policies"]) == (6, 30, ["p"])


@pytest.mark.parametrize(
    ("reason", "limit", "kind"),
    [
        ("token_bucket_exceeded", Limit("p", 1, 1, 0, 1), "quota-exceeded"),
        ("no_bundle_loaded", None, "temporary-reduced-capacity"),
        ("store_unavailable", None, "temporary-reduced-capacity"),
    ],
)
def test_problem_types(reason: str, limit: Limit | None, kind: str) -> None:
    """A-4: the types of the RateLimit draft where they fit."""
    verdict = refused(reason)
    verdict.limit = limit
    assert loads(denial.problem(verdict))["type"] == f"https://iana.org/assignments/http-problem-types#{kind}"


def test_a_problem_without_a_type() -> None:
    """A-4: `about:blank` for the rest, and no empty list of policies."""
    found = loads(denial.problem(refused()))
    assert found == {"type": "about:blank", "title": "Denied", "status": 429, "detail": "No.", "error": "kill_switch"}
