"""`breakloop explain`: the steps of a decision as text and JSON, and the answer that the decision service sends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from breakloop.cli.main import cli, run
from breakloop.store.data_dir import DataDir

POLICY = """bundle_version: 7
policies:
  - id: tools
    spec:
      selector: {pathPrefix: /tools/, methods: [POST]}
      loop_detection: {enabled: true, window_seconds: 45, threshold_identical_requests: 4}
      rules:
        - name: everyone
          limit_keys: [header:x-api-key]
          algorithm: token_bucket
          algorithm_config: {tokens_per_second: 1, burst: 10}
"""
REQUEST = """POST /tools//search?q=1 HTTP/1.1
Host: tools.example.com
X-API-Key: sk-canary
X-Agent-Id: researcher

{"query": "canary question"}
"""


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # where no server has kept a secret
    for name in ("XDG_DATA_HOME", "STATE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    Path("p.yaml").write_text(POLICY, encoding="utf-8")
    Path("r.http").write_text(REQUEST, encoding="utf-8")


def explain(*more: str) -> list[str]:
    return ["explain", "--policy", "p.yaml", "--request", "r.http", *more]


def test_it_says_why_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """What was read, what was looked at and what came of it, under headings in the order of evaluation (E-7)."""
    assert run(explain()) == 0
    out = capsys.readouterr().out
    headings = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert headings == [
        "Request",
        "Who",
        "Bundle",
        "Overrides",
        "Kill switches",
        "Policies",
        "Default loop detection",
        "Verdict",
        "Answer of the decision service (plus date and length)",
    ]
    assert "  POST /tools/search  HTTP, host tools.example.com, body 28 bytes\n" in out
    assert "  agent    researcher\n" in out
    assert "    everyone           pass   costs 1, 9 of 10 (refills 1/s) left\n" in out
    assert "  ALLOW  all_rules_passed\n" in out
    assert '  RateLimit: "tools";r=9;t=1\n' in out


def test_the_limits_of_an_agent_have_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    """The bundle's entry for the agent is explained after the policies (E-7, G-1)."""
    Path("p.yaml").write_text(POLICY + "agents: {research*: {budget_usd_per_day: 5}}\n", encoding="utf-8")
    assert run(explain()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("Agent") + 1].startswith("  agents/")


def test_repeats_show_the_way_there(capsys: pytest.CaptureFixture[str]) -> None:
    """--repeat sends it again on a simulated clock, and explains the last (E-7)."""
    assert run(explain("--repeat", "5", "--every", "2")) == 0
    out = capsys.readouterr().out
    assert out.startswith("Sent 5 times; the last is explained\n")
    assert "        1-3         0-4 s  allow    200 all_rules_passed\n" in out
    assert "        4-5         6-8 s  deny     429 loop_detected\n" in out
    assert ", request 5, number 4 trips (gaps below 45 s), still blocked for 45 s\n" in out
    assert "  DENY  loop_detected, by tools/loop_detection[0]\n" in out
    assert "  HTTP/1.1 429 Too Many Requests\n" in out
    assert "  Retry-After: 45\n" in out
    assert "  x-should-retry: false\n" in out
    assert '"error":"recursive_loop_detected"' in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """--json carries every step and the answer (X-3)."""
    assert run(explain("--json", "--repeat", "4")) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["decision"] for one in said["requests"]] == ["allow", "allow", "allow", "deny"]
    loop = next(step for step in said["steps"] if step["stage"] == "loop")
    assert (loop["outcome"], loop["data"]["hits"], loop["data"]["passes"]) == ("deny", 4, 3)
    assert said["answer"]["status"] == 429
    assert ["Retry-After", "45"] in said["answer"]["headers"]


def test_keys_and_prompts_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the API key nor what the request says comes out, in either form (Y-1)."""
    switch = "kill_switches: [{scope_key: header:x-api-key, scope_value: sk-other-canary}]\n"
    Path("p.yaml").write_text(POLICY + switch, encoding="utf-8")
    assert run(explain()) == 0
    assert run(explain("--json")) == 0
    out = capsys.readouterr().out
    assert "canary" not in out
    assert "header:x-api-key = <hidden>: this request has <hidden>" in out


def test_a_json_request_from_standard_input() -> None:
    """JSON {method, path, headers, body}; - is standard input (T-2)."""
    request = {"method": "GET", "path": "/other", "headers": {"Host": "a.example.com"}}
    done = CliRunner().invoke(cli, ["explain", "--policy", "p.yaml", "--request", "-"], input=json.dumps(request))
    assert done.exit_code == 0
    assert "  GET /other  HTTP, host a.example.com, body none\n" in done.output
    assert "  tools  no match  path /other does not begin with /tools/\n" in done.output
    assert "  ALLOW  no_matching_policy\n" in done.output


def test_a_request_that_cannot_be_judged(capsys: pytest.CaptureFixture[str]) -> None:
    """An encoded slash is 400, and that is shown (R-3)."""
    Path("r.http").write_text("GET /tools/a%2Fb HTTP/1.1\nHost: a\n\n", encoding="utf-8")
    assert run(explain()) == 0
    out = capsys.readouterr().out
    assert "  HTTP/1.1 400 Bad Request\n" in out
    assert "encoded slash" in out
    assert run(explain("--json")) == 0
    assert json.loads(capsys.readouterr().out)["requests"][0]["reason"] == "bad_request"


def test_many_policies_that_do_not_match_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Explaining one request does not print a bundle of thousands."""
    policies = [{"id": f"p{n}", "spec": {"selector": {"pathPrefix": f"/{n}/"}}} for n in range(50)]
    Path("p.yaml").write_text(json.dumps({"bundle_version": 1, "policies": policies}), encoding="utf-8")
    assert run(explain()) == 0
    out = capsys.readouterr().out
    assert out.count("no match") == 20
    assert "  and 30 more that do not match (--json lists them)\n" in out


def test_digests_are_those_of_the_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the server's data directory they are its own; else it is said that they are not (LD-1)."""
    assert run(explain()) == 0
    alone = capsys.readouterr()
    assert "digests differ from those of a server" in alone.err
    DataDir(tmp_path / "data").secret("", "")
    Path("breakloop.yaml").write_text("data_dir: data\n", encoding="utf-8")
    assert run(explain()) == 0
    beside = capsys.readouterr()
    assert beside.err == ""
    caller = [next(line for line in out.splitlines() if "caller " in line) for out in (alone.out, beside.out)]
    assert caller[0] != caller[1]
    Path("breakloop.yaml").write_text("secret_file: nowhere\n", encoding="utf-8")
    assert run(explain()) == 1
    assert "secret_file" in capsys.readouterr().err


def test_what_is_wrong_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A missing or bad request or bundle gives 1 with its place; no request is a usage error (X-3)."""
    assert run(["explain", "--request", "nowhere"]) == 1
    assert capsys.readouterr().err == "nowhere: cannot be read: No such file or directory\n"
    Path("r.http").write_text("hello\n", encoding="utf-8")
    assert run(explain()) == 1
    assert capsys.readouterr().err.startswith('r.http:1:1: "hello" is not a request line')
    Path("r.http").write_text(REQUEST, encoding="utf-8")
    Path("p.yaml").write_text("bundle_version: 1\n", encoding="utf-8")
    assert run(explain()) == 1
    assert "p.yaml:1:1: policies: " in capsys.readouterr().err
    assert run(["explain"]) == 3


def test_keys_behind_a_url_are_said_to_be_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """No network is used, so what a fetched key would verify is only read, and that is said (C-3)."""
    Path("breakloop.yaml").write_text("jwt: {jwks_url: 'https://keys.example.com/'}\n", encoding="utf-8")
    assert run(explain()) == 0
    assert "jwks_url is not fetched here" in capsys.readouterr().err
