"""Test files: parse them with located problems, run their cases on a simulated clock, and compare the verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from breakloop.errors import BundleError
from breakloop.model.decision import ALLOWED
from breakloop.model.verdict import ALLOWED_NO_POLICY, REASONS, Verdict
from breakloop.policy.diagnostics import did_you_mean
from breakloop.policy.documents import (
    DocumentFinding,
    DocumentPath,
    DocumentPlace,
    DocumentPlaces,
    in_order,
    read_document,
)
from breakloop.replay.explain import decision_of

DECISIONS = ("allow", "warn", "throttle", "land", "pause", "deny")
BAD_REQUEST = "bad_request"  # status of a request that cannot be decided, such as one with an encoded slash in its path

# Field -> its types. Expectations of a case; only the given ones are compared.
EXPECTED: dict[str, tuple[type, ...]] = {
    "decision": (str,),
    "reason": (str,),
    "status": (int,),
    "policy": (str,),
    "rule": (str,),
    "message": (str,),
    "retry_after": (int,),
    "delay_ms": (int,),
    "remaining": (int,),
    "limit": (int,),
    "hit_count": (int,),
    "cooldown_seconds": (int,),
    "kind": (str,),
    "warning": (str,),
    "should_retry": (bool,),
    "shadow_decision": (str,),
    "shadow_policy": (str,),
    "headers": (dict,),
}
REQUEST: dict[str, tuple[type, ...]] = {
    "method": (str,),
    "path": (str,),
    "host": (str,),
    "headers": (dict,),
    "body": (str, dict, list),
    "peer": (str,),
}
CASE: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "at": (int, float),
    "after": (int, float),
    "repeat": (int,),
    "every": (int, float),
    "request": (dict,),
    "expect": (dict,),
}
TOP: dict[str, tuple[type, ...]] = {"policy": (str,), "start": (str,), "cases": (list,)}
_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "a map", list: "a list"}


@dataclass(frozen=True, slots=True)
class CaseRequest:
    method: str
    path: str
    host: str = "localhost"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    peer: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class PolicyCase:
    """One case: when and how often its request is sent, and the expected verdict."""

    name: str
    place: DocumentPlace
    request: CaseRequest
    expect: Mapping[str, Any]
    at_s: float | None = None  # seconds from the start; None: `after_s` seconds after the previous request
    after_s: float = 0.0
    repeat: int = 1
    every_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CaseFile:
    """All cases of a file, the bundle it names, and its start time (None: now)."""

    cases: tuple[PolicyCase, ...]
    policy: str = ""
    start: datetime | None = None


def read_cases(text: bytes, name: str) -> CaseFile:
    """Read a test file. Raises `BundleError` with every problem found."""
    data, places = read_document(text, name)
    reader = _Reader(places)
    found = reader.file(data)
    if reader.findings:
        raise BundleError(in_order(finding.located(places) for finding in reader.findings))
    return found


def request_from(data: Mapping[str, Any]) -> CaseRequest:
    """Return the request of a map whose fields have been checked."""
    body = data.get("body", b"")
    if isinstance(body, dict | list):
        body = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    return CaseRequest(
        data.get("method", "POST" if body else "GET"),
        data["path"],
        data.get("host", "localhost"),
        tuple(_header_lines(data.get("headers", {}))),
        body,
        data.get("peer", "127.0.0.1"),
    )


def check_request(data: Mapping[str, Any], path: DocumentPath) -> Iterator[DocumentFinding]:
    yield from _check(data, REQUEST, path)
    target = data.get("path")
    if target is None:
        yield DocumentFinding(path, "lacks path", "write path: /v1/chat/completions", at_key=True)
    elif isinstance(target, str) and not (target.startswith("/") and target.isascii() and " " not in target):
        yield DocumentFinding(
            (*path, "path"), f'"{target}" is not a request path', "it begins with / and is percent-encoded"
        )
    headers = data.get("headers")
    for name, value in headers.items() if isinstance(headers, dict) else ():
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(one, str | int) and "\n" not in str(one) for one in values):
            yield DocumentFinding((*path, "headers", name), "must be text, or a list of texts")


def _check(
    data: Mapping[str, Any], fields: Mapping[str, tuple[type, ...]], path: DocumentPath
) -> Iterator[DocumentFinding]:
    for key, value in data.items():
        kinds = fields.get(key)
        if kinds is None:
            hint = "known: " + ", ".join(fields)
            yield DocumentFinding((*path, key), f'unknown field "{key}"{did_you_mean(key, fields)}', hint, at_key=True)
        elif not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            # an int is accepted for a float; list it once
            names = [_KINDS[kind] for kind in kinds if not (kind is int and float in kinds)]
            yield DocumentFinding((*path, key), f"must be {' or '.join(names)}")


def _header_lines(headers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in headers.items():
        for one in value if isinstance(value, list) else [value]:
            yield name, str(one)


@dataclass(slots=True)
class _Reader:
    """Continues after a problem, so that all problems of a file are reported at once."""

    places: DocumentPlaces
    findings: list[DocumentFinding] = field(default_factory=list)

    def file(self, data: Any) -> CaseFile:
        if isinstance(data, list):
            return CaseFile(tuple(self._cases(data, ())))
        if not isinstance(data, dict):
            self._say((), "must be a list of cases, or a map with cases")
            return CaseFile(())
        self.findings += _check(data, TOP, ())
        cases = data.get("cases")
        start = self._start(data.get("start"))
        listed = cases if isinstance(cases, list) else []
        return CaseFile(tuple(self._cases(listed, ("cases",))), str(data.get("policy", "")), start)

    def _cases(self, listed: list[Any], path: DocumentPath) -> Iterator[PolicyCase]:
        if not listed and not self.findings:
            self._say(path, "has no cases", "write a list of maps with request and expect")
        before: CaseRequest | None = None
        latest = 0.0
        for index, data in enumerate(listed):
            here = (*path, index)
            if not isinstance(data, dict):
                self._say(here, "must be a map with request and expect")
                continue
            known = len(self.findings)
            self._check_case(data, here, first=before is None)
            if len(self.findings) > known:
                before = before or CaseRequest("GET", "/")  # a missing or invalid request is reported once
                continue
            before = request_from(data["request"]) if "request" in data else before
            assert before is not None  # noqa: S101 - the first case was checked to have one
            case = PolicyCase(
                data.get("name") or f"case {index + 1}",
                self.places.locate(here),
                before,
                data["expect"],
                data.get("at"),
                data.get("after", 0.0),
                data.get("repeat", 1),
                data.get("every", 0.0),
            )
            latest = self._times(case, latest, here)
            yield case

    def _check_case(self, data: Mapping[str, Any], path: DocumentPath, *, first: bool) -> None:
        self.findings += _check(data, CASE, path)
        if isinstance(data.get("request"), dict):
            self.findings += check_request(data["request"], (*path, "request"))
        elif "request" not in data and first:
            self._say(path, "lacks request", "only a later case may leave it out, to repeat the previous request")
        if isinstance(data.get("expect"), dict):
            self._check_expected(data["expect"], (*path, "expect"))
        elif "expect" not in data:
            self._say(path, "lacks expect", "write expect: {decision: allow}")
        if "at" in data and "after" in data:
            self._say((*path, "after"), "cannot be combined with at", "keep one of them")
        for name in ("at", "after", "every"):
            if isinstance(data.get(name), int | float) and data[name] < 0:
                self._say((*path, name), "must not be negative")
        if isinstance(data.get("repeat"), int) and not 1 <= data["repeat"] <= 100_000:
            self._say((*path, "repeat"), "must be from 1 to 100000")

    def _check_expected(self, expect: Mapping[str, Any], path: DocumentPath) -> None:
        self.findings += _check(expect, EXPECTED, path)
        if not expect:
            self._say(path, "expects nothing", "write decision: allow")
        for name in ("decision", "shadow_decision"):
            self._check_word(expect.get(name), DECISIONS, (*path, name))
        self._check_word(expect.get("reason"), (*REASONS, ALLOWED, ALLOWED_NO_POLICY, BAD_REQUEST), (*path, "reason"))

    def _check_word(self, value: Any, known: tuple[str, ...], path: DocumentPath) -> None:
        if isinstance(value, str) and value not in known:
            hint = "one of " + ", ".join(known) if len(known) < 8 else ""
            self._say(path, f'unknown {path[-1]} "{value}"{did_you_mean(value, known)}', hint)

    def _times(self, case: PolicyCase, latest: float, path: DocumentPath) -> float:
        begins = latest + case.after_s if case.at_s is None else case.at_s
        if begins < latest:
            self._say((*path, "at"), f"{case.at_s:g} is before the last request of the previous case ({latest:g})")
        return begins + (case.repeat - 1) * case.every_s

    def _start(self, text: Any) -> datetime | None:
        if not isinstance(text, str):
            return None
        try:
            start = datetime.fromisoformat(text)
        except ValueError:
            start = None
        if start is None or start.tzinfo is None:
            self._say(("start",), f'"{text}" is not a time with its zone', "write it like 2026-01-31T18:00:00Z")
        return start

    def _say(self, path: DocumentPath, message: str, hint: str = "") -> None:
        self.findings.append(DocumentFinding(path, message, hint))


# Expected values where the response has no such field.
NONE = "none"


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that differs from the expectation in request `number` of a case."""

    number: int
    at_s: float
    field: str
    expected: Any
    actual: Any


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case: the differences of its first failing request, and the last response."""

    case: PolicyCase
    at_s: float
    actual: Mapping[str, Any]
    differences: tuple[Difference, ...]
    failed: int  # number of failing requests

    @property
    def passed(self) -> bool:
        return not self.failed


Actual = dict[str, Any]  # a response by the field names of test files
Send = Callable[[CaseRequest, float], Actual]  # the request, and its time in seconds from the start


def run_cases(file: CaseFile, send: Send) -> Iterator[CaseResult]:
    """Send every case in order and yield the results."""
    now = 0.0
    for case in file.cases:
        begins = now + case.after_s if case.at_s is None else case.at_s
        yield _run(case, begins, send)
        now = begins + (case.repeat - 1) * case.every_s


def _run(case: PolicyCase, begins: float, send: Send) -> CaseResult:
    first: tuple[Difference, ...] = ()
    failed = 0
    actual: Actual = {}
    for number in range(1, case.repeat + 1):
        at_s = begins + (number - 1) * case.every_s
        actual = send(case.request, at_s)
        found = tuple(_differences(case, actual, number, at_s))
        failed += bool(found)
        first = first or found
    return CaseResult(case, begins, actual, first, failed)


def actual_of(verdict: Verdict | None, status: int, fields: Sequence[tuple[str, str]], message: str = "") -> Actual:
    """Return a response under the field names of test files. `verdict` is None for a request that could not be decided,
    for which `message` is the reason.
    """
    headers = dict(reversed([(name.lower(), value) for name, value in fields]))  # the first field of each name
    if verdict is None:
        return {"decision": "deny", "reason": BAD_REQUEST, "message": message, "status": status, "headers": headers}
    loop, limit = verdict.loop, verdict.limit
    shadow = [("warn" if found.action == "steer" else found.action, found.policy) for found in verdict.shadow]
    strongest = max(shadow, key=lambda found: DECISIONS.index(found[0]), default=("allow", None))
    return {
        "decision": decision_of(verdict),
        "reason": verdict.reason,
        "status": status,
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
        "shadow_decision": strongest[0],
        "shadow_policy": strongest[1],
        "headers": headers,
    }


def _differences(case: PolicyCase, actual: Mapping[str, Any], number: int, at_s: float) -> Iterator[Difference]:
    for name, expected in case.expect.items():
        if name == "headers":
            for header, value in expected.items():
                got = actual["headers"].get(header.lower())
                if (NONE if got is None else got) != str(value):
                    yield Difference(number, at_s, f"headers.{header}", str(value), got)
        elif actual.get(name) != expected and not (expected == NONE and actual.get(name) in (None, "")):
            yield Difference(number, at_s, name, expected, actual.get(name))
