"""`breakloop test`: cases run on a simulated clock against a bundle; failures say what, where and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from breakloop.cli.main import cli, run
from breakloop.replay.cases import CASE, EXPECTED, REQUEST, TOP

POLICY = """bundle_version: 1
policies:
  - id: tools
    spec:
      selector: {pathPrefix: /tools/}
      rules:
        - name: everyone
          limit_keys: [agent:id]
          algorithm: token_bucket
          algorithm_config: {tokens_per_second: 1, burst: 2}
"""
CASES = """
- name: two pass
  request: {path: /tools/search, headers: {X-Agent-Id: a}}
  repeat: 2
  expect: {decision: allow, policy: tools}
- name: the third does not
  expect: {decision: deny, reason: token_bucket_exceeded, status: 429, retry_after: 1, remaining: 0}
- name: a second later it does
  after: 1
  expect: {decision: allow}
"""
WRONG = """
policy: policy.yaml
cases:
  - name: too hopeful
    request: {path: /tools/search}
    repeat: 4
    expect: {decision: allow}
"""


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(POLICY, encoding="utf-8")


def test_cases_that_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """The clock is simulated, state is shared by the cases, exit 0 (X-3)."""
    Path("t.yaml").write_text(CASES, encoding="utf-8")
    assert run(["test", "t.yaml", "--policy", "policy.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "t.yaml against policy.yaml"
    assert [line.split()[0] for line in lines[2:5]] == ["pass"] * 3
    assert lines[3].endswith("0 s         1  deny, token_bucket_exceeded")
    assert lines[-1] == "3 cases, all passed"


def test_a_failing_case_says_where_and_what(capsys: pytest.CaptureFixture[str]) -> None:
    """Expected and actual, the place in the file, and who decided; exit 1. The file may name its bundle (X-3)."""
    Path("t.yaml").write_text(WRONG, encoding="utf-8")
    assert run(["test", "t.yaml"]) == 1
    out = capsys.readouterr().out
    assert "FAIL  too hopeful" in out
    assert out.endswith(
        "t.yaml:4:5: too hopeful\n"
        "  2 of 4 requests, first number 3 at 0 s\n"
        "  decision: expected allow, got deny\n"
        "  decided by policy tools, rule everyone\n"
        "0 of 1 case passed\n"
    )


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """--json carries the differences (X-3)."""
    Path("t.yaml").write_text(WRONG, encoding="utf-8")
    assert run(["test", "t.yaml", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    case = said["files"][0]["cases"][0]
    assert said["ok"] is False
    assert case["differences"] == [
        {"request": 3, "at": 0.0, "field": "decision", "expected": "allow", "actual": "deny"}
    ]
    assert (case["failed_requests"], case["line"], case["last"]["reason"]) == (2, 4, "token_bucket_exceeded")


def test_notes_on_the_bundle_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever wonders why nothing happens is told what does nothing (B-2)."""
    Path("policy.yaml").write_text(POLICY + "expires_at: 2020-01-01T00:00:00Z\n", encoding="utf-8")
    Path("t.yaml").write_text(CASES, encoding="utf-8")
    assert run(["test", "t.yaml", "--policy", "policy.yaml"]) == 0
    assert "policy.yaml:11:13: note: expires_at: has passed" in capsys.readouterr().out


def test_help_names_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    """What a case may say is in the help (X-3)."""
    assert run(["test", "--help"]) == 0
    said = capsys.readouterr().out
    assert [name for name in (*CASE, *REQUEST, *EXPECTED, *TOP) if name not in said] == []


def test_a_bad_test_file_is_located(capsys: pytest.CaptureFixture[str]) -> None:
    """For test files: every mistake with its place and a suggestion, and nothing runs (B-2)."""
    Path("t.yaml").write_text("- request: {pth: /a}\n  expect: {decison: allow}\n", encoding="utf-8")
    assert run(["test", "t.yaml", "--policy", "policy.yaml"]) == 1
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith("t.yaml:1:3: [0].request: lacks path")
    assert err[1].startswith('t.yaml:1:13: [0].request.pth: unknown field "pth"; did you mean "path"?')
    assert err[2].startswith('t.yaml:2:12: [0].expect.decison: unknown field "decison"; did you mean "decision"?')


def test_a_bundle_given_as_tests_is_recognised(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever swaps the two files is told how to write it (X-3)."""
    Path("b.yaml").write_text("bundle_version: 1\npolicies: []\n", encoding="utf-8")
    assert run(["test", "b.yaml"]) == 1
    assert "b.yaml looks like a bundle: write `breakloop test TESTS.yaml --policy b.yaml`" in capsys.readouterr().err


def test_a_bad_bundle_is_located(capsys: pytest.CaptureFixture[str]) -> None:
    """The bundle's own problems come out as `validate` tells them (B-2)."""
    Path("t.yaml").write_text(CASES, encoding="utf-8")
    Path("policy.yaml").write_text("bundle_version: 1\npolicies: {}\n", encoding="utf-8")
    assert run(["test", "t.yaml", "--policy", "policy.yaml"]) == 1
    assert capsys.readouterr().err.startswith("policy.yaml:2:1: policies: ")
    assert run(["test", "t.yaml", "--policy", "policy.yaml", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"][0]["line"] == 2


def test_without_a_policy_the_builtin_protection_is_tested() -> None:
    """An LLM call is judged without any bundle; the test file comes from standard input (B-6)."""
    case = {"path": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "hi"}]}}
    cases = [
        {"request": case, "repeat": 5, "expect": {"decision": "allow"}},
        {"expect": {"decision": "deny", "policy": "builtin", "retry_after": 30}},
    ]
    done = CliRunner().invoke(cli, ["test", "-"], input=json.dumps(cases))
    assert done.output.startswith("<stdin> against the built-in protection\n")
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "2 cases, all passed")


def test_settings_apply(capsys: pytest.CaptureFixture[str]) -> None:
    """./breakloop.yaml names the policy and counts; a wrong one ends the command (T-1)."""
    Path("breakloop.yaml").write_text("policy: policy.yaml\nheader_prefix: X-Stop-\n", encoding="utf-8")
    Path("t.yaml").write_text(
        "- request: {path: /tools/a}\n  repeat: 2\n  expect: {decision: allow}\n"
        "- expect: {headers: {X-Stop-Reason: token_bucket_exceeded, X-Breakloop-Reason: none}}\n",
        encoding="utf-8",
    )
    assert run(["test", "t.yaml"]) == 0
    Path("breakloop.yaml").write_text("prot: 1\n", encoding="utf-8")
    assert run(["test", "t.yaml"]) == 1
    assert 'did you mean "port"' in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """1 with a plain message; no file at all is a usage error (X-3)."""
    assert run(["test", "nowhere.yaml"]) == 1
    assert capsys.readouterr().err == "nowhere.yaml: cannot be read: No such file or directory\n"
    assert run(["test"]) == 3
