"""What stands in spans: the names of the conventions, and nothing that was said."""

from __future__ import annotations

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from breakloop.dialects import registry
from breakloop.model.call import CLIENT_LEFT, NO_ANSWER, Answer, Call, Chat, Usage
from breakloop.model.verdict import LoopFinding, ShadowFinding, Verdict
from breakloop.observe.tracing import (
    MODEL,
    OPERATION,
    PROVIDER,
    SpanNames,
    answer_attributes,
    call_attributes,
    failure,
    span_name,
    verdict_attributes,
)

KNOWN = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
CHAT = Chat("openai_chat", "gpt-x", (), 3, stream=True, max_tokens=50, answers=2)


def test_a_chat_by_the_conventions() -> None:
    """Names as OpenTelemetry has them (G-5)."""
    call = Call("POST", "/v1/chat/completions", request_id="r-1", upstream="openai")
    call.identity.project = "blue"
    found = call_attributes(call, CHAT, "fixer")
    assert found == {
        "breakloop.request_id": "r-1",
        "breakloop.project": "blue",
        "breakloop.upstream": "openai",
        "http.request.method": "POST",
        "gen_ai.agent.id": "fixer",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-x",
        "gen_ai.request.max_tokens": 50,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stream": True,
    }
    assert span_name(found, "POST") == "chat gpt-x"


@pytest.mark.parametrize(
    ("upstream", "dialect", "provider", "operation"),
    [
        ("openai", "openai_responses", "openai", "chat"),
        ("openai", "openai_completions", "openai", "text_completion"),
        ("openai", "openai_embeddings", "openai", "embeddings"),
        ("anthropic", "anthropic_messages", "anthropic", "chat"),
        ("gemini", "gemini", "gcp.gemini", "generate_content"),
        ("", "gemini", "gcp.gemini", "generate_content"),
        ("azure", "openai_chat", "azure.ai.openai", "chat"),
        ("our-vllm", "openai_chat", "openai", "chat"),
    ],
)
def test_providers_and_operations(upstream: str, dialect: str, provider: str, operation: str) -> None:
    """The conventions' own values (G-5)."""
    found = call_attributes(Call("POST", "/", upstream=upstream), Chat(dialect, "m", (), 1), "a")
    assert (found[PROVIDER], found[OPERATION]) == (provider, operation)
    values = vars(gen_ai_attributes)
    assert operation in {one.value for one in values["GenAiOperationNameValues"]}
    assert provider in {one.value for one in values["GenAiProviderNameValues"]}


def test_a_call_of_a_tool_and_plain_http() -> None:
    tool = call_attributes(Call("POST", "/mcp"), Chat("mcp", "", (), 1), "a", ("read_file",))
    assert span_name(tool, "POST") == "execute_tool read_file"
    assert (PROVIDER in tool, MODEL in tool) == (False, False)
    assert span_name(call_attributes(Call("GET", "/secret/path"), None, "a"), "GET") == "GET"


def test_all_names_are_the_conventions_own() -> None:
    """No name with gen_ai in front that is not theirs (G-5)."""
    usage = Usage(10, 5, 4, 2, 1)
    answer = Answer(200, "text", usage=usage, model="gpt-x-1", response_id="id", finish="stop", complete=True)
    found = call_attributes(Call("POST", "/"), CHAT, "a", ("t",)) | answer_attributes(answer)
    assert {name for name in found if name.startswith("gen_ai.")} - KNOWN == set()
    assert found["gen_ai.response.finish_reasons"] == ["stop"]
    assert found["gen_ai.usage.cache_read.input_tokens"] == 4
    assert "text" not in found.values()


def test_every_dialect_has_an_operation() -> None:
    names = [name for name, one in registry.DIALECTS.items() if one.provider in {"openai", "anthropic"}]
    assert {call_attributes(Call("POST", "/"), Chat(one, "m", (), 1), "a")[OPERATION] for one in names} == {
        "chat",
        "text_completion",
        "embeddings",
    }


def test_a_verdict() -> None:
    """What was decided, and why; neither message nor evidence (G-5)."""
    verdict = Verdict(allowed=False, reason="loop_detected", status=429, policy="p", message="said to the client")
    verdict.loop = LoopFinding("exact", "f00", 5, 60, 30, "reject", fresh=True, message="m", evidence="e")
    verdict.shadow = (ShadowFinding("q", "r", "tpm_exceeded", "deny"),)
    assert verdict_attributes(verdict) == {
        "breakloop.allowed": False,
        "breakloop.reason": "loop_detected",
        "breakloop.policy": "p",
        "breakloop.shadow.policies": ["q"],
        "breakloop.loop.kind": "exact",
        "breakloop.loop.fingerprint": "f00",
        "breakloop.loop.hit_count": 5,
        "breakloop.loop.action": "reject",
    }
    slow = Verdict()
    slow.delay_ms, slow.degraded = 250, True
    assert verdict_attributes(slow) == {
        "breakloop.allowed": True,
        "breakloop.reason": "all_rules_passed",
        "breakloop.delay_ms": 250,
        "breakloop.degraded": True,
    }


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(200, complete=True), ""),
        (Answer(503, complete=True), "503"),
        (Answer(NO_ANSWER), "no_answer"),
        (Answer(CLIENT_LEFT), "client_left"),
        (Answer(200, error="the upstream's own words"), "incomplete"),
    ],
)
def test_why_an_answer_is_none(answer: Answer, why: str) -> None:
    """Never in the words of the upstream (Y-1)."""
    assert failure(answer) == why


def test_an_answer_that_never_came_has_no_status() -> None:
    assert answer_attributes(Answer(NO_ANSWER)) == answer_attributes(Answer(CLIENT_LEFT)) == {}
    assert answer_attributes(Answer(429)) == {"http.response.status_code": 429}


def test_models_of_metrics_are_bounded() -> None:
    """Models of metrics are bounded (G-5)."""
    names = SpanNames()
    chat = {OPERATION: "chat", PROVIDER: "openai"}
    seen = {names.of({**chat, MODEL: f"m{number}"})[MODEL] for number in range(60)}
    assert len(seen) == 51
    assert "_OTHER" in seen
    assert names.of({**chat, MODEL: "m3", "gen_ai.agent.id": "a"}) == {**chat, MODEL: "m3"}
    assert names.of({"http.request.method": "GET"}) == names.of({OPERATION: "execute_tool"}) == {}
