"""Test files are read whole: what they say, and every mistake with its place."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from breakloop.errors import BundleError
from breakloop.replay.cases import CaseRequest, read_cases
from tests.each import each


def problems(text: str) -> list[str]:
    with pytest.raises(BundleError) as refused:
        read_cases(text.encode(), "t.yaml")
    return [str(problem) for problem in refused.value.problems]


def test_a_whole_file() -> None:
    """Times, repeats, requests and expectations; a case without a request repeats the one before (X-3)."""
    file = read_cases(
        b"""
policy: p.yaml
start: 2026-01-31T18:00:00Z
cases:
  - name: first
    at: 2
    repeat: 3
    every: 0.5
    request:
      path: /a?b=c
      headers: {X-One: 1, X-Many: [a, b]}
      body: {q: "\xc3\xbc"}
      peer: 10.0.0.1
    expect: {decision: allow}
  - after: 1
    expect: {status: 200}
""",
        "t.yaml",
    )
    first, second = file.cases
    assert (file.policy, file.start) == ("p.yaml", datetime(2026, 1, 31, 18, tzinfo=UTC))
    assert first.request == CaseRequest(
        "POST",
        "/a?b=c",
        "localhost",
        (("X-One", "1"), ("X-Many", "a"), ("X-Many", "b")),
        '{"q":"ü"}'.encode(),
        "10.0.0.1",
    )
    assert (first.name, first.at_s, first.repeat, first.every_s) == ("first", 2, 3, 0.5)
    assert (first.place.line, first.place.column) == (5, 5)
    assert (second.name, second.at_s, second.after_s, second.request) == ("case 2", None, 1, first.request)


def test_a_bare_list_and_text_bodies() -> None:
    """A list alone is enough; without a body the method is GET; a text body is sent as it is (X-3)."""
    file = read_cases(
        b"- {request: {path: /a}, expect: {status: 200}}\n- {request: {path: /a, body: hi}, expect: {status: 200}}",
        "t.yaml",
    )
    assert [(case.request.method, case.request.body) for case in file.cases] == [("GET", b""), ("POST", b"hi")]
    assert file.start is None


@each(
    "text, message",
    [
        ("hello", "t.yaml:1:1: must be a list of cases, or a map with cases"),
        ("[]", "t.yaml:1:1: has no cases (write a list of maps with request and expect)"),
        ("cases: []", "t.yaml:1:8: cases: has no cases (write a list of maps with request and expect)"),
        ("policy: p", "t.yaml:1:1: cases: has no cases (write a list of maps with request and expect)"),
        ("- hello", "t.yaml:1:3: [0]: must be a map with request and expect"),
        (
            "- {expect: {status: 200}}",
            "t.yaml:1:3: [0]: lacks request (only a later case may leave it out, to repeat the previous request)",
        ),
        ("- {request: {path: /a}}", "t.yaml:1:3: [0]: lacks expect (write expect: {decision: allow})"),
        ("- {request: {path: /a}, expect: {}}", "t.yaml:1:33: [0].expect: expects nothing (write decision: allow)"),
        (
            "- {request: {path: a}, expect: {status: 1}}",
            't.yaml:1:20: [0].request.path: "a" is not a request path (it begins with / and is percent-encoded)',
        ),
        (
            "- {request: {path: /a}, expect: {decision: block}}",
            't.yaml:1:44: [0].expect.decision: unknown decision "block" (one of allow, warn, throttle, land, pause, deny)',
        ),
        (
            "- {request: {path: /a}, expect: {reason: loop_detectd}}",
            't.yaml:1:42: [0].expect.reason: unknown reason "loop_detectd"; did you mean "loop_detected"?',
        ),
        ("- {request: {path: /a}, expect: {status: '200'}}", "t.yaml:1:42: [0].expect.status: must be a whole number"),
        ("- {request: {path: /a}, expect: {status: true}}", "t.yaml:1:42: [0].expect.status: must be a whole number"),
        ("- {request: {path: /a}, at: -1, expect: {status: 1}}", "t.yaml:1:29: [0].at: must not be negative"),
        ("- {request: {path: /a}, at: x, expect: {status: 1}}", "t.yaml:1:29: [0].at: must be a number"),
        (
            "- {request: {path: /a}, repeat: 0, expect: {status: 1}}",
            "t.yaml:1:33: [0].repeat: must be from 1 to 100000",
        ),
        (
            "- {request: {path: /a}, at: 1, after: 1, expect: {status: 1}}",
            "t.yaml:1:39: [0].after: cannot be combined with at (keep one of them)",
        ),
        (
            "- {request: {path: /a, headers: {x: {}}}, expect: {status: 1}}",
            "t.yaml:1:37: [0].request.headers.x: must be text, or a list of texts",
        ),
        (
            "- {request: {path: /a}, at: 5, expect: {status: 1}}\n- {at: 4, expect: {status: 1}}",
            "t.yaml:2:8: [1].at: 4 is before the last request of the previous case (5)",
        ),
        (
            "start: yesterday\ncases: [{request: {path: /}, expect: {status: 1}}]",
            't.yaml:1:8: start: "yesterday" is not a time with its zone (write it like 2026-01-31T18:00:00Z)',
        ),
        (
            "cases: [{request: {path: /}, expect: {status: 1}, expects: 1}]",
            't.yaml:1:51: cases[0].expects: unknown field "expects"; did you mean "expect"? (known: name, at, after, repeat, every, request, expect)',
        ),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    """For test files: one mistake, one message with its place (B-2)."""
    assert problems(text) == [message]


def test_all_mistakes_at_once() -> None:
    """Reading goes on past what is wrong, and what follows from it is not reported again (B-2)."""
    found = problems(
        "- {request: {path: a}, expect: {}}\n- {expect: {decision: no}}\n- {repeat: -1, expect: {status: 1}}\n"
    )
    assert [line.split(": ")[1] for line in found] == [
        "[0].request.path",
        "[0].expect",
        "[1].expect.decision",
        "[2].repeat",
    ]


def test_broken_yaml_is_located() -> None:
    """What is no YAML at all (B-2)."""
    assert problems("- {request: {path: /a}\n")[0].startswith("t.yaml:")
