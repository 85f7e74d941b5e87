"""Cases run in order on their own clock; what was answered is compared with what was expected."""

from __future__ import annotations

from typing import Any

from breakloop.model.verdict import LimitState, LoopFinding, ShadowFinding, Verdict
from breakloop.policy.documents import DocumentPlace
from breakloop.replay.cases import (
    EXPECTED,
    Actual,
    CaseFile,
    CaseRequest,
    CaseResult,
    PolicyCase,
    actual_of,
    run_cases,
)
from tests.each import each

REQUEST = CaseRequest("GET", "/")
LOOP = LoopFinding("tail", "f" * 32, 6, 60, 30, "reject", fresh=True, message="m", evidence="e")


def case(expect: dict[str, Any], **more: Any) -> PolicyCase:
    return PolicyCase("c", DocumentPlace("t", 1, 1), REQUEST, expect, **more)


def run(expect: dict[str, Any], answer: Actual) -> CaseResult:
    (result,) = run_cases(CaseFile((case(expect),)), lambda _request, _at: answer)
    return result


def denied() -> Verdict:
    verdict = Verdict(
        allowed=False, reason="loop_detected", status=429, policy="p", rule="r", limit=LimitState("p", 5, 1, 0, 1)
    )
    verdict.loop, verdict.retry_after_s, verdict.never = LOOP, 30, True
    return verdict


def test_when_requests_are_sent() -> None:
    """`at` from the start, `after` from the request before, `every` between repeats (X-3)."""
    sent: list[float] = []

    def send(_request: CaseRequest, at_s: float) -> Actual:
        sent.append(at_s)
        return actual_of(Verdict(), 200, ())

    expect = {"status": 200}
    cases = (
        case(expect, at_s=1.0, repeat=3, every_s=2.0),
        case(expect),
        case(expect, after_s=4.0),
        case(expect, at_s=20.0),
    )
    results = list(run_cases(CaseFile(cases), send))
    assert sent == [1, 3, 5, 5, 9, 20]
    assert [result.at_s for result in results] == [1, 5, 9, 20]


@each(
    "expect, actual",
    [
        ({"decision": "allow"}, "deny"),
        ({"reason": "kill_switch"}, "loop_detected"),
        ({"status": 200}, 429),
        ({"policy": "q"}, "p"),
        ({"rule": "none"}, "r"),
        ({"retry_after": 31}, 30),
        ({"delay_ms": 1}, 0),
        ({"remaining": 1}, 0),
        ({"limit": 6}, 5),
        ({"hit_count": 5}, 6),
        ({"cooldown_seconds": 60}, 30),
        ({"kind": "exact"}, "tail"),
        ({"warning": "loop_detected"}, ""),
        ({"should_retry": True}, False),
        ({"message": "x"}, ""),
        ({"shadow_decision": "deny"}, "allow"),
        ({"shadow_policy": "s"}, None),
    ],
)
def test_each_field_is_compared(expect: dict[str, Any], actual: object) -> None:
    """A field that is given and differs fails the case; what is not given is not compared (X-3)."""
    result = run(expect, actual_of(denied(), 429, ()))
    assert [(one.field, one.expected, one.actual) for one in result.differences] == [
        (*next(iter(expect.items())), actual)
    ]
    assert not result.passed
    same = "none" if actual in (None, "") else actual
    assert run({next(iter(expect)): same}, actual_of(denied(), 429, ())).passed


def test_headers() -> None:
    """Header fields by name whatever the case, as text; `none` for one that must not be there (A-1)."""
    answer = actual_of(Verdict(), 200, (("RateLimit-Remaining", "4"), ("X-A", "1"), ("X-A", "2")))
    assert run({"headers": {"ratelimit-remaining": 4, "X-A": "1", "Retry-After": "none"}}, answer).passed
    (one,) = run({"headers": {"Retry-After": 3}}, answer).differences
    assert (one.field, one.expected, one.actual) == ("headers.Retry-After", "3", None)


def test_requests_that_could_not_be_judged() -> None:
    """A bad request is a denial with its own reason (R-3)."""
    answer = actual_of(None, 400, (), "the path contains an encoded slash")
    assert run({"decision": "deny", "reason": "bad_request", "status": 400}, answer).passed


def test_the_first_failing_request_is_shown() -> None:
    """Of many repeats, the first that differs is told, and how many did."""
    answers = iter([Verdict(), denied(), denied()])
    file = CaseFile((case({"decision": "allow"}, repeat=3, every_s=1.0),))
    (result,) = run_cases(file, lambda _request, _at: actual_of(next(answers), 200, ()))
    assert result.failed == 2
    assert [(one.number, one.at_s) for one in result.differences] == [(2, 1.0)]


def test_shadow_findings() -> None:
    """The strongest would-be verdict; `steer` counts as a warning (E-1)."""
    verdict = Verdict()
    verdict.shadow = (
        ShadowFinding("a", "r", "loop_detected", "steer"),
        ShadowFinding("b", "r", "loop_detected", "deny"),
    )
    actual = actual_of(verdict, 200, ())
    assert (actual["decision"], actual["shadow_decision"], actual["shadow_policy"]) == ("allow", "deny", "b")
    verdict.shadow = verdict.shadow[:1]
    assert actual_of(verdict, 200, ())["shadow_decision"] == "warn"


def test_whatever_may_be_expected_is_known() -> None:
    """Every field that a case may name is there to be compared."""
    assert set(actual_of(Verdict(), 200, ())) == set(EXPECTED)
