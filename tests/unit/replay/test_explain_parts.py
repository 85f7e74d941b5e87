"""Loop detectors and rules of a matched policy, explained from the record of a decision."""

from __future__ import annotations

import json
from typing import Any

from breakloop.clock import FakeClock
from breakloop.detect.counting import BuiltinLoopGuard
from breakloop.model.call import Call
from breakloop.policy.compile import compile_bundle
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.load import load_text
from breakloop.pricing.prices import ListedModel, Price, Prices
from breakloop.replay.explain import Explainer, ExplainStep, RecordingEngine, hidden
from breakloop.store.memory import MemoryStore
from tests.unit.engine.test_procedure import stuck

EXACT = {"enabled": True, "window_seconds": 45, "threshold_identical_requests": 2}
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
FUTURE = "2100-01-01T00:00:00Z"


def rule(name: str, burst: int = 3, **more: Any) -> dict[str, Any]:
    config = {"tokens_per_second": 1, "burst": burst}
    return {"name": name, "limit_keys": [], "algorithm": "token_bucket", "algorithm_config": config, **more}


PRICES = Prices(ListedModel({"m": Price(2_000_000, 8_000_000)}, "a test"))


def explained(
    spec: dict[str, Any], *, repeat: int = 1, call: Any = None, guard: BuiltinLoopGuard | None = None, **bundle: Any
) -> list[ExplainStep]:
    """Send the same call to one policy `repeat` times; explain the last."""
    clock = FakeClock()
    descriptors = Descriptors(ContextSettings(), clock)
    policies = [{"id": "p", "spec": {"selector": {"pathPrefix": "/"}, **spec}}]
    text = json.dumps({"bundle_version": 1, "policies": policies, **bundle}).encode()
    source = load_text(text, "b.json").bundle
    compiled = compile_bundle(source, "d", descriptors, b"s", guard or BuiltinLoopGuard())
    engine = RecordingEngine(MemoryStore(), clock, descriptors, lambda: PRICES)
    engine.set_bundle(compiled)
    for _ in range(repeat):
        engine.decide(call() if call else Call("GET", "/a"))
    assert engine.record is not None
    return Explainer(source, compiled, descriptors, engine.record).steps()


def told(steps: list[ExplainStep], stage: str) -> list[tuple[str, str, str]]:
    return [(step.subject, step.outcome, step.text) for step in steps if step.stage == stage]


def test_a_detector_that_counts() -> None:
    """The count, the window, the threshold, the start of the fingerprint; then how long it blocks (LD-1)."""
    (subject, outcome, text) = told(explained({"loop_detection": EXACT}), "loop")[0]
    assert (subject, outcome) == ("p/loop_detection[0]", "pass")
    assert text.startswith("exact ")
    assert text.endswith(", request 1, number 2 trips (gaps below 45 s)")
    steps = explained({"loop_detection": EXACT}, repeat=2)
    loop = next(step for step in steps if step.stage == "loop")
    assert loop.outcome == "deny"
    assert loop.text.endswith(", request 2, number 2 trips (gaps below 45 s), blocked for 45 s")
    assert (loop.data["tripped"], loop.data["blocked_for_s"], loop.data["shadow"]) == (True, 45, False)
    assert len(str(loop.data["fingerprint"])) == 32


def test_actions_that_do_not_deny() -> None:
    """Warn and throttle are told by their names (LD-5)."""
    for action in ("warn", "throttle"):
        steps = explained({"loop_detection": {**EXACT, "action": action}}, repeat=2)
        assert told(steps, "loop")[0][1] == action


def test_why_a_detector_is_not_asked() -> None:
    """No LLM call, an unseen body, an allow list, switched off, or not there yet (LD-2, LD-6)."""
    blocks = [
        {"similarity": "tail"},
        {"similarity": "tail", "enabled": False},
        {"similarity": "tail", "max_hits": 0},
        {"similarity": "simhash"},
        {**EXACT, "allow": {"routes": ["/a"]}},
    ]
    assert [(outcome, text) for _, outcome, text in told(explained({"loop_detection": blocks}), "loop")] == [
        ("skipped", "tail, not a readable LLM request"),
        ("skipped", "disabled"),
        ("skipped", "disabled"),
        ("skipped", "simhash, not a readable LLM request"),
        ("skipped", "exact, on its allow list"),
    ]
    unseen = explained({"loop_detection": EXACT}, call=lambda: Call("POST", "/a", body_unseen=True))
    assert told(unseen, "loop")[0][2] == "exact, the gateway did not send the body"


def test_rules_by_what_they_match() -> None:
    """Which descriptor does not fit, which key is missing, and who is limited by the fallback (E-3)."""
    rules = [rule("a", match={"header:x-plan": "gold"}), rule("b", limit_keys=["header:x-team"])]
    steps = explained({"rules": rules, "fallback_limit": rule("f")})
    assert told(steps, "rule") == [
        ("p/a", "no match", 'header:x-plan is nothing, not "gold"'),
        ("p/b", "skipped", "the request lacks header:x-team"),
        ("p/fallback_limit", "skipped", "a rule applies"),
    ]
    steps = explained({"rules": rules[:1], "fallback_limit": rule("f")})
    assert told(steps, "rule")[1][1:] == ("pass", "costs 1, 2 of 3 (refills 1/s) left")


def test_a_missing_key_may_deny() -> None:
    """`on_missing: reject` is told as the denial it is (E-3)."""
    steps = explained({"rules": [rule("b", limit_keys=["header:x-team"], on_missing="reject")]})
    assert told(steps, "rule") == [("p/b", "deny", "the request lacks header:x-team")]
    assert told(steps, "verdict")[0][2] == "missing_descriptor, by p/b"


def test_what_a_bucket_holds() -> None:
    """What is left, what was missing, what is not charged because another rule denies, what is not asked (L-1, E-4)."""
    rules = [rule("wide", 9), rule("narrow", 1), rule("after", 5)]
    assert [one[1:] for one in told(explained({"rules": rules}, repeat=2), "rule")] == [
        ("pass", "would pass, 8 of 9 (refills 1/s) available; not charged, the request is denied"),
        ("deny", "costs 1, only 0 of 1 (refills 1/s) available"),
        ("not asked", "the request was denied before"),
    ]
    step = next(step for step in explained({"rules": rules}) if step.stage == "rule")
    assert step.data["key"] == "tb:default:p:wide:"
    assert (step.data["tokens"], step.data["charged"]) == (8.0, True)


def test_budgets_tokens_and_breakers() -> None:
    """What each has left, in its own unit; and which of them denies (L-2, L-3, CB-1)."""
    stages = [{"threshold_percent": 100, "action": "reject"}]
    budget = {"budget": 5, "period": "1d", "cost_key": "fixed", "fixed_cost": 2, "staged_actions": stages}
    rules = [
        {"name": "c", "limit_keys": [], "algorithm": "cost_based", "algorithm_config": budget},
        {
            "name": "t",
            "limit_keys": [],
            "algorithm": "token_bucket_llm",
            "algorithm_config": {"tokens_per_minute": 6000, "tokens_per_day": 9000},
        },
    ]
    spec = {"rules": rules, "fallback_limit": rule("f")}
    spec["circuit_breaker"] = {"enabled": True, "spend_rate_threshold_per_minute": 5, "auto_reset_after_minutes": 5}

    def chat() -> Call:
        return Call("POST", "/v1/chat/completions", body=CHAT)

    first = explained(spec, call=chat)
    assert [one[1] for one in told(first, "rule")] == ["pass", "pass", "skipped"]
    assert told(first, "rule")[0][2] == "costs 2, 3 of 5 left"
    assert "of 6000 left" in told(first, "rule")[1][2]
    assert told(first, "breaker") == [("p/circuit_breaker", "pass", "closed: 2 of 5 in the last minute")]
    third = explained(spec, call=chat, repeat=3)
    assert told(third, "breaker") == [("p/circuit_breaker", "deny", "open: its threshold of 5 a minute was reached")]
    assert told(third, "rule")[0][1] == "not asked"
    del spec["circuit_breaker"]
    assert told(explained(spec, call=chat, repeat=3), "rule")[0] == (
        "p/c", "deny", "costs 2, only 1 of 5 available"
    )  # fmt: skip


def test_shadow_only_would() -> None:
    """What a shadow policy finds is told as what it would have done (E-1)."""
    steps = explained({"mode": "shadow", "loop_detection": EXACT, "rules": [rule("a", 1)]}, repeat=2)
    assert told(steps, "policy") == [("p", "match", "mode shadow")]
    assert told(steps, "loop")[0][1] == "would deny"
    assert told(steps, "rule")[0][1] == "not asked"
    assert told(steps, "verdict")[0][1] == "allow"
    shadowed = explained(
        {"rules": [rule("a", 1)]},
        repeat=2,
        global_shadow={"enabled": True, "reason": "drill", "expires_at": FUTURE},
    )
    assert told(shadowed, "policy") == [("p", "match", "mode global_shadow")]
    assert told(shadowed, "rule")[0][1] == "would deny"


def test_default_loop_detection() -> None:
    """It judges LLM calls that no enforcing policy's own covers (B-6)."""

    def chat() -> Call:
        return Call("POST", "/v1/chat/completions", body=CHAT)

    (subject, outcome, text), steps = told(explained({}, call=chat, repeat=6), "builtin")
    assert steps[0] == "builtin/loop_detection[1]"
    assert (subject, outcome) == ("builtin/loop_detection[0]", "deny")
    assert text.endswith(", request 6, number 6 trips (in 60 s), blocked for 30 s")
    cooling = told(explained({}, call=chat, repeat=8), "builtin")[0][2]
    assert cooling.endswith(", request 8, number 6 trips (in 60 s), still blocked for 30 s")
    embedding = Call("POST", "/v1/embeddings", body=b'{"model": "e", "input": "a"}')
    (_, outcome, text), *_ = told(explained({}, call=lambda: embedding, repeat=6), "builtin")
    assert (outcome, text.rpartition(", ")[2]) == ("warn", "only reported: an embedding or a ping")
    own = explained({"loop_detection": EXACT}, call=chat)
    assert told(own, "builtin") == [("defaults", "skipped", "policy p has its own loop detection")]
    shadow = explained({"loop_detection": EXACT, "mode": "shadow"}, call=chat)
    assert told(shadow, "builtin")[0][1] == "pass"
    off = explained({}, call=chat, guard=BuiltinLoopGuard(max_hits=0))
    assert told(off, "builtin") == [("defaults", "skipped", "switched off")]
    assert told(explained({}), "builtin")[0][1:] == ("skipped", "tail, not a readable LLM request")


def test_values_for_people() -> None:
    """Keys and tokens are never shown (Y-1)."""
    assert hidden("header:x-team", "red") == '"red"'
    assert hidden("header:x-team", None) == "nothing"
    assert hidden("header:authorization", "Bearer x") == "<hidden>"


def test_a_session_that_is_watched() -> None:
    """What was seen in words, or that there was nothing (LD-4)."""
    counts = iter(range(100))

    def call() -> Call:
        return Call(
            "POST", "/v1/chat/completions", body=json.dumps({"model": "m", "messages": stuck(next(counts))}).encode()
        )

    loop = {"loop_detection": {"similarity": "steps"}}
    assert told(explained(loop), "loop") == [("p/loop_detection[0]", "skipped", "steps, not a readable LLM request")]
    assert told(explained(loop, call=call), "loop")[0][1:] == (
        "pass",
        "steps: no repetition in its window",
    )
    counts = iter(range(100))
    [(_, outcome, text)] = told(explained(loop, call=call, repeat=5), "loop")
    assert (outcome, text) == ("deny", "failure: the same call of `read` failed 4 times")


def test_what_a_run_may_cost() -> None:
    """What is left of it in money; and why a request is not charged (B-1, G-1)."""

    def call() -> Call:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 4000}]}).encode()
        headers = {"x-agent-id": b"worker", "x-agent-session": b"s"}
        return Call("POST", "/v1/chat/completions", headers=headers, body=body)

    agents = {"*": {"max_usd_per_run": 0.015}}
    name = "agents/*/max_usd_per_run"
    assert told(explained({}, call=call, agents=agents), "agent") == [
        (name, "pass", "costs $0.01, $0.005 of $0.015 left for this run")
    ]
    assert told(explained({}, call=call, agents=agents, repeat=2), "agent") == [
        (name, "deny", "costs $0.01, only $0.005 of $0.015 available for this run")
    ]
    assert told(explained({}, agents=agents), "agent") == [
        (name, "skipped", "not an LLM request of a session, so nothing is charged")
    ]


def test_what_a_tree_may_cost() -> None:
    """What is left of it, for an agent with a limit; and what was used, for one without (B-1, G-6)."""

    def call() -> Call:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 4000}]}).encode()
        headers = {"x-agent-id": b"worker", "x-agent-session": b"s", "x-agent-parent": b"root"}
        return Call("POST", "/v1/chat/completions", headers=headers, body=body)

    agents: dict[str, Any] = {"*": {"max_usd_per_tree": 0.015, "max_tokens_per_tree": 9000}}
    usd, tokens = "agents/*/max_usd_per_tree", "agents/*/max_tokens_per_tree"
    assert told(explained({}, call=call, agents=agents), "agent") == [
        (usd, "pass", "costs $0.01, $0.005 of $0.015 left for its tree of agents"),
        (tokens, "pass", "costs 2000 tokens, 7000 tokens of 9000 tokens left for its tree of agents"),
    ]
    assert told(explained({}, call=call, agents=agents, repeat=2), "agent") == [
        (usd, "deny", "costs $0.01, only $0.005 of $0.015 available for its tree of agents"),
        (tokens, "not asked", "the request was denied before"),
    ]
    others = {"lead": {"max_usd_per_tree": 1.0}}
    assert told(explained({}, call=call, agents=others), "agent") == [
        (
            "agents/max_usd_per_tree",
            "pass",
            "costs $0.01, $0.01 used, and no limit for this agent for its tree of agents",
        )
    ]
    assert told(explained({}, agents=others), "agent") == [
        ("agents/max_usd_per_tree", "skipped", "not an LLM request of a session, so nothing is charged")
    ]


def test_what_the_bundle_says_of_the_agent() -> None:
    """Its ceiling and its own kill switch are explained too (B-1)."""
    counts = iter(range(100))

    def call() -> Call:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"say {next(counts)}"}]}).encode()
        headers = {"x-agent-id": b"worker", "x-agent-session": b"s"}
        return Call("POST", "/v1/chat/completions", headers=headers, body=body)

    agents = {"work*": {"max_steps_per_run": 1, "kill_switch_enabled": True}}
    assert told(explained({}, call=call, agents=agents), "agent") == [
        ("agents/work*", "pass", "at most 1 steps (max_steps_per_run)"),
        ("agents/work*", "pass", "simhash: no repetition in its window"),
    ]
    assert told(explained({}, call=call, agents=agents, repeat=2), "agent")[0][1] == "deny"
