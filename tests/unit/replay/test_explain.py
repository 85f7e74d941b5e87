"""A recorded decision, explained: what was looked at, in order, and why it did or did not apply."""

from __future__ import annotations

import json
from typing import Any

from breakloop.clock import FakeClock
from breakloop.detect.counting import BuiltinLoopGuard
from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.policy.compile import compile_bundle
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.load import load_text
from breakloop.replay.explain import Explainer, ExplainStep, RecordingEngine, decision_of
from breakloop.store.memory import MemoryStore

PAST, FUTURE = "2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z"
ORDER = ["request", "identity", "bundle", "override", "kill_switch", "policy", "builtin", "verdict"]


def policy(name: str, **selector: Any) -> dict[str, Any]:
    return {"id": name, "spec": {"selector": selector}}


def explained(call: Call, bundle: dict[str, Any] | None, *, guard: BuiltinLoopGuard | None = None) -> list[ExplainStep]:
    """Let the engine decide once and explain it."""
    clock = FakeClock()
    descriptors = Descriptors(ContextSettings(), clock)
    source = None
    if bundle is not None:
        source = load_text(json.dumps({"bundle_version": 4, "policies": [], **bundle}).encode(), "b.json").bundle
    compiled = compile_bundle(source, "abcdef0123456789", descriptors, b"s", guard or BuiltinLoopGuard())
    engine = RecordingEngine(MemoryStore(), clock, descriptors)
    engine.set_bundle(compiled)
    engine.decide(call)
    assert engine.record is not None
    return Explainer(source, compiled, descriptors, engine.record).steps()


def told(steps: list[ExplainStep], stage: str) -> list[tuple[str, str, str]]:
    return [(step.subject, step.outcome, step.text) for step in steps if step.stage == stage]


def test_the_order_is_the_engines() -> None:
    """Bundle check, overrides, kill switches, routing, the policies in the order of the bundle, the verdict (E-7)."""
    bundle = {"policies": [policy("a", pathPrefix="/a/"), policy("b", pathPrefix="/b/")]}
    steps = explained(Call("GET", "/b/c"), bundle)
    assert list(dict.fromkeys(step.stage for step in steps)) == ORDER
    assert [name for name, _, _ in told(steps, "policy")] == ["a", "b"]


def test_why_a_policy_does_not_match() -> None:
    """The host is looked at first, then the path, then the method (R-1)."""
    bundle = {
        "policies": [
            policy("host", hosts=["a.example.com"], pathPrefix="/x/", methods=["PUT"]),
            policy("exact", pathExact="/v1", methods=["PUT"]),
            policy("prefix", pathPrefix="/v1/x/"),
            policy("method", pathPrefix="/v1/", methods=["PUT", "POST"]),
            policy("fits", pathPrefix="/"),
        ]
    }
    steps = explained(Call("GET", "/v1/models", host="b.example.com"), bundle)
    assert told(steps, "policy") == [
        ("host", "no match", "host b.example.com is not a.example.com"),
        ("exact", "no match", "path /v1/models is not /v1"),
        ("prefix", "no match", "path /v1/models does not begin with /v1/x/"),
        ("method", "no match", "method GET is not POST or PUT"),
        ("fits", "match", "mode enforce"),
    ]


def test_kill_switches() -> None:
    """Each is told, with why it does not match; the first that does ends everything before routing (K-2)."""
    switches = [
        {"scope_key": "header:x-team", "scope_value": "blue"},
        {"scope_key": "header:x-team", "scope_value": "red", "expires_at": PAST},
        {"scope_key": "header:x-team", "scope_value": "red", "route": "/b/*"},
        {"scope_key": "header:x-team", "scope_value": "red", "route": "/a/*"},
        {"scope_key": "query:key", "scope_value": "sk-1"},
    ]
    bundle = {"policies": [policy("p", pathPrefix="/")], "kill_switches": switches}
    steps = explained(Call("GET", "/a/b", headers={"x-team": b"red"}, query="key=sk-2"), bundle)
    assert told(steps, "kill_switch") == [
        ("kill_switches[0]", "no match", 'header:x-team = "blue": this request has "red"'),
        ("kill_switches[1]", "no match", 'header:x-team = "red": expired 2020-01-01T00:00:00Z'),
        ("kill_switches[2]", "no match", 'header:x-team = "red" on /b/*: another path'),
        ("kill_switches[3]", "match", 'header:x-team = "red" on /a/*'),
        ("kill_switches[4]", "no match", "query:key = <hidden>: this request has <hidden>"),
    ]
    assert told(steps, "policy") == []
    assert told(steps, "verdict") == [("deny", "deny", "kill_switch, by kill_switches[3]")]


def test_overrides() -> None:
    """Active, expired or not set; an active one says what it does (K-1)."""
    on = {"enabled": True, "reason": "drill", "expires_at": FUTURE}
    switch = [{"scope_key": "ip:address", "scope_value": "10.0.0.1"}]
    bundle = {"kill_switch_override": on, "global_shadow": {**on, "expires_at": PAST}, "kill_switches": switch}
    steps = explained(Call("GET", "/", peer="10.0.0.1"), bundle)
    assert told(steps, "override") == [
        ("global_shadow", "inactive", "expired 2020-01-01T00:00:00Z"),
        ("kill_switch_override", "active", "until 2100-01-01T00:00:00Z: kill switches are skipped"),
    ]
    assert told(steps, "kill_switch") == [("kill_switches[0]", "skipped", "kill_switch_override is active")]
    assert told(explained(Call("GET", "/"), {}), "override")[0] == ("global_shadow", "inactive", "not set")


def test_who_and_what() -> None:
    """Caller by digest, the agent, the session, the project; an LLM call says its model (C-7, C-8)."""
    body = json.dumps({"model": "m1", "messages": [{"role": "user", "content": "secret text"}]}).encode()
    call = Call("POST", "/v1/chat/completions", host="h", body=body, headers={"x-api-key": b"sk-secret"})
    steps = explained(call, {})
    assert told(steps, "request") == [
        ("POST /v1/chat/completions", "info", f"LLM call (openai_chat, m1, 1 message), host h, body {len(body)} bytes")
    ]
    who = {name: text for name, _, text in told(steps, "identity")}
    assert who["caller"].startswith("key:")
    assert (who["agent"], who["project"]) == ("the caller", "default")
    assert who["session"].startswith("derived:")
    assert "secret" not in str(steps)


def test_the_bundle() -> None:
    """Version and digest; an expired one is still enforced; none means the built-in protection (B-5, B-6)."""
    assert told(explained(Call("GET", "/"), {}), "bundle") == [("abcdef012345", "info", "version 4, 0 policies")]
    old = explained(Call("GET", "/"), {"expires_at": PAST, "policies": [policy("p", pathPrefix="/")]})
    assert told(old, "bundle")[0][2] == "version 4, 1 policy, expired 2020-01-01T00:00:00Z and still enforced"
    none = explained(Call("GET", "/"), None)
    assert told(none, "bundle")[0][2] == "no policy given: only the built-in protection applies"


def test_bodies_that_were_not_shown() -> None:
    """What a gateway kept from us is said (LD-1)."""
    steps = explained(Call("POST", "/", body_unseen=True), {})
    assert told(steps, "request")[0][2] == "HTTP, host (none), body not sent to breakloop"


def test_decisions_in_one_word() -> None:
    """Deny before land before throttle before warn before allow (LD-5)."""
    verdict = Verdict()
    assert decision_of(verdict) == "allow"
    verdict.warning = "loop_detected"
    assert decision_of(verdict) == "warn"
    verdict.delay_ms = 100
    assert decision_of(verdict) == "throttle"
    verdict.landed = True
    assert decision_of(verdict) == "land"
    verdict.allowed = False
    assert decision_of(verdict) == "deny"
