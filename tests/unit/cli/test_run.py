"""`breakloop run`: when a run must end, and the environment of its command."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakloop.cli.run import EXIT_CODES, RunWatch, Spending, client_environment, upstreams_in
from breakloop.model.call import Answer, Call, Usage
from breakloop.model.decision import STOP_REASONS
from breakloop.model.verdict import Verdict
from tests.each import each

CALL = Call("POST", "/v1/chat/completions")


def denied(reason: str = "loop_detected") -> Verdict:
    return Verdict(allowed=False, reason=reason, status=429, message="Blocked: the same. Stop.")


def watching(max_usd: float | None = None, max_denials: int = 3) -> RunWatch:
    watch = RunWatch(max_usd, max_denials)
    watch.attach(lambda _call, usage: usage.output_tokens * 1000, None)
    return watch


def test_denials_in_a_row_end_a_run() -> None:
    watch = watching()
    for _ in range(2):
        watch.decided(CALL, denied())
    assert not watch.must_end.is_set()
    watch.decided(CALL, denied())
    assert watch.must_end.is_set()
    assert (watch.stop_reason, watch.message) == ("loop", "Blocked: the same")


def test_an_agent_that_does_something_else_goes_on() -> None:
    watch = watching()
    for _ in range(5):
        watch.decided(CALL, denied())
        watch.decided(CALL, denied())
        watch.decided(CALL, Verdict(allowed=True))
    assert not watch.must_end.is_set()
    assert (watch.spent.calls, watch.spent.denied) == (5, 10)


@pytest.mark.parametrize("reason", ["tpm_exceeded", "store_unavailable"])
def test_what_ends_by_waiting_ends_no_run(reason: str) -> None:
    watch = watching()
    for _ in range(10):
        watch.decided(CALL, denied(reason))
    assert not watch.must_end.is_set()


def test_a_killed_agent_ends_at_once() -> None:
    watch = watching()
    watch.decided(CALL, denied("agent_quarantined"))
    assert watch.must_end.is_set()
    assert watch.stop_reason == "killed"


def test_the_cost_ends_a_run() -> None:
    watch = watching(max_usd=0.01)
    watch.answered(CALL, Answer(200, usage=Usage(5, 9)))
    assert not watch.must_end.is_set()
    watch.answered(CALL, Answer(200, usage=None))
    watch.answered(CALL, Answer(200, usage=Usage(5, 1)))
    assert watch.must_end.is_set()
    assert (watch.stop_reason, watch.message) == ("budget", "it has spent $0.01")
    assert str(watch.spent) == "$0.01, 0 calls, 20 tokens"


def test_the_summary_of_the_page() -> None:
    page = Path("docs/how-to/run-an-agent.md").read_text()
    assert f"\nbreakloop: {Spending(61, 1, 310_224, 420_000)}\n" in page


def test_every_stop_reason_has_an_exit_code() -> None:
    assert set(EXIT_CODES) == set(STOP_REASONS.values())
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)


def test_clients_are_pointed_at_the_gateway() -> None:
    env = client_environment("http://127.0.0.1:1", {"HOME": "/h", "NO_PROXY": "a.example"}, {})
    assert env["OPENAI_BASE_URL"] == env["OPENAI_API_BASE"] == "http://127.0.0.1:1/openai/v1"
    assert env["ANTHROPIC_BASE_URL"] == env["ANTHROPIC_API_BASE"] == "http://127.0.0.1:1/anthropic"
    assert env["GOOGLE_GEMINI_BASE_URL"] == "http://127.0.0.1:1/gemini"
    assert env["GEMINI_API_BASE"] == "http://127.0.0.1:1/gemini/v1beta"
    assert (env["HOME"], env["NO_PROXY"], env["no_proxy"]) == ("/h", "a.example,127.0.0.1", "127.0.0.1")


def test_the_provider_that_was_set_stays_the_provider() -> None:
    """With its path, which then is not added twice."""
    env = {"OPENAI_BASE_URL": "https://llm.example/api/v4/", "ANTHROPIC_BASE_URL": "https://claude.example"}
    found = upstreams_in(env, ["anthropic=https://other.example"])
    assert found == {"openai": "https://llm.example/api/v4"}
    changed = client_environment("http://127.0.0.1:1", env, found)
    assert changed["OPENAI_BASE_URL"] == changed["OPENAI_API_BASE"] == "http://127.0.0.1:1/openai"
    assert upstreams_in({"OPENAI_BASE_URL": "https://api.openai.com/v1"}, []) == {}


@each(
    "variable, value, upstream, seen",
    [
        ("OPENAI_BASE_URL", "https://llm.example/v1/", "openai=https://llm.example", "/openai/v1"),
        ("OPENAI_API_BASE", "https://llm.example/v1", "openai=https://llm.example", "/openai/v1"),
        ("ANTHROPIC_API_BASE", "https://llm.example/a", "anthropic=https://llm.example/a", "/anthropic"),
        ("GOOGLE_GEMINI_BASE_URL", "https://llm.example", "gemini=https://llm.example", "/gemini"),
        ("GEMINI_API_BASE", "https://llm.example/v1beta", "gemini=https://llm.example", "/gemini/v1beta"),
        ("GEMINI_API_BASE", "https://llm.example/v9", "gemini=https://llm.example/v9", "/gemini"),
    ],
)
def test_a_variable_that_was_set_names_the_upstream(variable: str, value: str, upstream: str, seen: str) -> None:
    """Without the path that clients send; each variable has its own."""
    name, _, url = upstream.partition("=")
    found = upstreams_in({variable: value}, [])
    assert found == {name: url}
    assert client_environment("http://127.0.0.1:1", {variable: value}, found)[variable] == f"http://127.0.0.1:1{seen}"


def test_landed_calls_are_shown() -> None:
    """They passed, and are counted beside the others (LD-10)."""
    watch, verdict = watching(), Verdict(allowed=True)
    verdict.landed = True
    watch.decided(CALL, Verdict(allowed=True))
    watch.decided(CALL, verdict)
    watch.decided(CALL, denied())
    assert str(watch.spent) == "$0.00, 2 calls, 0 tokens, 1 landed, 1 denied"
