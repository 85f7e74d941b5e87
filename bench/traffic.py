"""What is sent and what it is judged by: the same head, token, body and policies for every program measured."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

JWT_SECRET = "bench-secret-of-32-bytes-and-more"
AGENT_URI = "/v1/tools/search?q=weather&page="
CHAT_URI = "/v1/chat/completions"
_FAR_FUTURE = 4_000_000_000
_TAIL = {"similarity": "tail", "window_seconds": 60, "max_hits": 5, "cooldown_seconds": 30}
_PLENTY = {"tokens_per_second": 1_000_000, "burst": 1_000_000}


def token() -> str:
    """A signed HS256 token of about 400 bytes, as identity providers make them."""
    claims = {
        "iss": "https://id.example.com/realms/agents",
        "aud": "tools.example.com",
        "sub": "agent-7f3a9c21-5b7e-4b60-9c55",
        "org_id": "acme-industries",
        "plan": "pro",
        "team": "research",
        "scope": "tools:read tools:run models:use",
        "iat": 1_700_000_000,
        "exp": _FAR_FUTURE,
    }
    signed = f"{_b64(json.dumps({'alg': 'HS256', 'typ': 'JWT'}))}.{_b64(json.dumps(claims))}"
    mac = hmac.new(JWT_SECRET.encode(), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{_b64(mac)}"


def fields(method: str, uri: str) -> list[tuple[str, str]]:
    """The header fields of a request as a gateway passes it on."""
    return [
        ("Host", "tools.example.com"),
        ("X-Original-Method", method),
        ("X-Original-URI", uri),
        ("X-Forwarded-For", "203.0.113.7"),
        ("Authorization", f"Bearer {token()}"),
        ("User-Agent", "research-agent/2.4 (python-httpx/0.28.1)"),
        ("Accept", "application/json"),
        ("X-Request-Id", "6f1f8c0e-0d3b-4f4e-8a1a-2f7f0f3f9b11"),
        ("Content-Type", "application/json"),
        ("X-Tool-Name", "search"),
    ]


def chat_body(marker: str, size_bytes: int = 2048) -> bytes:
    """An OpenAI chat request of `size_bytes`, with `marker` in its last message."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a careful research agent. Use the tools you are given, one at a time."},
        {"role": "user", "content": "Find out how the harbour's opening hours changed since 2019."},
        {"role": "assistant", "content": None, "tool_calls": [_tool_call()]},
        {"role": "tool", "tool_call_id": "call_8Zk2", "content": ""},
        {"role": "user", "content": f"Go on with page {marker}."},
    ]
    request = {"model": "gpt-4.1-mini", "messages": messages, "max_tokens": 512, "stream": True}
    room = size_bytes - len(json.dumps(request))
    messages[3]["content"] = ("The harbour opens at seven and closes at nine in the evening. " * 40)[:room]
    return json.dumps(request).encode()


def one_rule() -> dict[str, Any]:
    """The simplest policy with a limit: one bucket per organisation. Built-in loop protection sees LLM calls only."""
    return _bundle([_policy("one", rules=[_bucket("org", ["jwt:org_id"])])])


def complex_policy(*, tail: bool = False) -> dict[str, Any]:
    """Five rules over token, header and address, one of them with `match`, and loop detection."""
    rules = [
        _bucket("org", ["jwt:org_id"]),
        _bucket("org-tool", ["jwt:org_id", "header:x-tool-name"]),
        _bucket("agent", ["jwt:sub"]),
        _bucket("address", ["ip:address"]),
        {**_bucket("pro", ["jwt:team"]), "match": {"jwt:plan": "pro"}},
    ]
    loops: list[dict[str, Any]] = [exact(5)]
    if tail:
        loops.append(_TAIL)
    return _bundle([_policy("complex", rules=rules, loop_detection=loops)])


def proxy_policy() -> dict[str, Any]:
    """Three buckets, by key, model and address, and `tail` loop detection."""
    rules = [_bucket("key", ["caller:key"]), _bucket("model", ["llm:model"]), _bucket("address", ["ip:address"])]
    return _bundle([_policy("proxy", rules=rules, loop_detection=[_TAIL])])


def engine_policy(others: int = 9, *, tail: bool = False) -> dict[str, Any]:
    """Three buckets and exact loop detection, among `others` policies for other routes, half of them by host."""
    rules = [_bucket("org", ["jwt:org_id"]), _bucket("tool", ["jwt:org_id", "header:x-tool-name"])]
    rules.append(_bucket("address", ["ip:address"]))
    loops = [exact(1000, window_s=86_400)]
    if tail:
        loops = [_TAIL]
    policies = [_policy("main", rules=rules, loop_detection=loops)]
    for number in range(others):
        selector: dict[str, Any] = {"pathPrefix": f"/service-{number}/api/"}
        if number % 2:
            selector["hosts"] = [f"host-{number}.example.com"]
        policies.append(_policy(f"other-{number}", rules=[_bucket("org", ["jwt:org_id"])], selector=selector))
    return _bundle(policies)


def limits_policy(*, limits: bool = True) -> dict[str, Any]:
    """Five limits of every kind in one policy, or none; no loop detection, so that they alone are measured."""
    stages = [{"threshold_percent": 80, "action": "warn"}, {"threshold_percent": 100, "action": "reject"}]

    def rule(name: str, keys: list[str], algorithm: str, **config: Any) -> dict[str, Any]:
        return {"name": name, "limit_keys": keys, "algorithm": algorithm, "algorithm_config": config}

    rules = [
        _bucket("org", ["jwt:org_id"]),
        rule("day", ["jwt:org_id"], "cost_based", budget=1e9, period="1d", staged_actions=stages),
        rule("month", [], "cost_based", budget=1e9, period="30d", staged_actions=stages),
        rule("llm", ["jwt:sub"], "token_bucket_llm", tokens_per_minute=10**12, tokens_per_day=10**15),
        _bucket("address", ["ip:address"]),
    ]
    policies = [_policy("limits", rules=rules if limits else [])]
    return {**_bundle(policies), "defaults": {"loop_detection": "off"}}


def looping() -> dict[str, Any]:
    """Denies every request but the first."""
    return _bundle([_policy("looping", rules=[], loop_detection=[exact(2)])])


def exact(threshold: int, window_s: int = 60) -> dict[str, Any]:
    """An exact loop detector."""
    return {"enabled": True, "window_seconds": window_s, "threshold_identical_requests": threshold, "action": "reject"}


def _bundle(policies: list[dict[str, Any]]) -> dict[str, Any]:
    return {"bundle_version": 1, "policies": policies}


def _policy(name: str, **spec: Any) -> dict[str, Any]:
    return {"id": name, "spec": {"selector": {"pathPrefix": "/v1/"}, **spec}}


def _bucket(name: str, keys: list[str]) -> dict[str, Any]:
    return {"name": name, "limit_keys": keys, "algorithm": "token_bucket", "algorithm_config": _PLENTY}


def _tool_call() -> dict[str, Any]:
    arguments = json.dumps({"query": "harbour opening hours 2019", "page": 1})
    return {"id": "call_8Zk2", "type": "function", "function": {"name": "search", "arguments": arguments}}


def _b64(content: str | bytes) -> str:
    raw = content.encode() if isinstance(content, str) else content
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
