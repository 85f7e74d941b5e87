"""Runs test cases on a clock of their own and compares what came back with what was expected. The door that answers
is handed in; what a file of cases may say is in `case_schema`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from breakloop.model.verdict import Shadowed, Verdict
from breakloop.replay.case_schema import BAD_REQUEST, DECISIONS, Case, CaseFile, CaseRequest
from breakloop.replay.explain import decision_of

# What a case says where the answer has no such thing.
NONE = "none"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a door said. `verdict` is None for a request that could not be judged."""

    verdict: Verdict | None
    status: int
    headers: tuple[tuple[str, str], ...]
    message: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that was not as expected, in the `number`th request of a case."""

    number: int
    at_s: float
    field: str
    expected: Any
    actual: Any


@dataclass(frozen=True, slots=True)
class CaseResult:
    """How a case went: the differences of its first request that was not as expected, and the last answer."""

    case: Case
    at_s: float
    actual: Mapping[str, Any]
    differences: tuple[Difference, ...]
    failed: int  # how many of its requests were not as expected

    @property
    def passed(self) -> bool:
        """Tell whether every request of the case was answered as expected."""
        return not self.failed


Send = Callable[[CaseRequest, float], Answer]  # the request, and when it is sent: seconds from the start


def run_cases(file: CaseFile, send: Send) -> Iterator[CaseResult]:
    """Send every case in order and yield how it went."""
    now = 0.0
    for case in file.cases:
        begins = now + case.after_s if case.at_s is None else case.at_s
        yield _run(case, begins, send)
        now = begins + (case.repeat - 1) * case.every_s


def _run(case: Case, begins: float, send: Send) -> CaseResult:
    first: tuple[Difference, ...] = ()
    failed = 0
    actual: dict[str, Any] = {}
    for number in range(1, case.repeat + 1):
        at_s = begins + (number - 1) * case.every_s
        actual = actual_of(send(case.request, at_s))
        found = tuple(_differences(case, actual, number, at_s))
        failed += bool(found)
        first = first or found
    return CaseResult(case, begins, actual, first, failed)


def actual_of(answer: Answer) -> dict[str, Any]:
    """Return an answer by the names that cases use."""
    headers = dict(reversed([(name.lower(), value) for name, value in answer.headers]))  # the first of each name
    verdict = answer.verdict
    if verdict is None:
        actual = {"decision": "deny", "reason": BAD_REQUEST, "message": answer.message}
        return {**actual, "status": answer.status, "headers": headers}
    loop, limit = verdict.loop, verdict.limit
    strongest = _strongest(verdict.shadow)
    return {
        "decision": decision_of(verdict),
        "reason": verdict.reason,
        "status": answer.status,
        "policy": verdict.policy,
        "rule": verdict.rule,
        "message": verdict.message,
        "retry_after": verdict.retry_after_s,
        "delay_ms": verdict.delay_ms,
        "remaining": limit.remaining if limit else None,
        "limit": limit.quota if limit else None,
        "hit_count": loop.hit_count if loop else None,
        "cooldown_seconds": loop.cooldown_s if loop else None,
        "kind": loop.kind if loop else None,
        "warning": verdict.warning,
        "should_retry": not verdict.never,
        "shadow_decision": "allow" if strongest is None else _shadow_decision(strongest),
        "shadow_policy": None if strongest is None else strongest.policy,
        "headers": headers,
    }


def _shadow_decision(found: Shadowed) -> str:
    return "warn" if found.action == "steer" else found.action


def _strongest(shadow: tuple[Shadowed, ...]) -> Shadowed | None:
    """What shadow policies would have said together: the first of the strongest."""
    return max(shadow, key=lambda found: DECISIONS.index(_shadow_decision(found)), default=None)


def _differences(case: Case, actual: Mapping[str, Any], number: int, at_s: float) -> Iterator[Difference]:
    for name, expected in case.expect.items():
        if name == "headers":
            for header, value in expected.items():
                got = actual["headers"].get(header.lower())
                if (NONE if got is None else got) != str(value):
                    yield Difference(number, at_s, f"headers.{header}", str(value), got)
        elif not _same(expected, actual.get(name)):
            yield Difference(number, at_s, name, expected, actual.get(name))


def _same(expected: Any, actual: Any) -> bool:
    return actual == expected or (expected == NONE and actual in (None, ""))
