"""The guardrail for LiteLLM, without LiteLLM: the few names of it that the guardrail stands on are put in their places.
The real proxy runs in `tests/e2e/test_litellm.py`."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from breakloop import Guard
from breakloop.clock import FakeClock
from breakloop.model.decision import Decision
from breakloop.testing import StandInLLM, body
from tests.builders import bundle, policy
from tests.unit.sdk.backends import ScriptedBackend

CALLER = SimpleNamespace(api_key="hash-of-a-key")
STEER = {
    "bundle_version": 1,
    "policies": [],
    "defaults": {"loop_detection": [{"similarity": "tail", "max_hits": 2, "action": "steer"}]},
}


class CustomGuardrail:
    """What LiteLLM brings."""

    def __init__(self, supported_event_hooks: list[str], **litellm_params: Any) -> None:
        self.supported = supported_event_hooks
        self.litellm_params = litellm_params

    def raise_passthrough_exception(self, message: str, data: Any, detection_info: Any) -> None:
        raise InsteadError(message, detection_info)


class InsteadError(Exception):
    """LiteLLM answers with its text."""


class ProxyException(Exception):  # noqa: N818 - its name
    """LiteLLM's own error."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.fields = fields


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, imported with the stubs in place, and gone again."""
    names: dict[str, dict[str, Any]] = {
        "litellm": {},
        "litellm.integrations": {},
        "litellm.integrations.custom_guardrail": {"CustomGuardrail": CustomGuardrail},
        "litellm.proxy": {},
        "litellm.proxy._types": {"ProxyException": ProxyException},
        "litellm.types": {},
        "litellm.types.guardrails": {"GuardrailEventHooks": SimpleNamespace(pre_call="pre_call")},
    }
    for name, content in names.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    yield importlib.import_module("breakloop.integrations.litellm")
    del sys.modules["breakloop.integrations.litellm"]


def test_a_service_with_another_prefix(litellm: Any) -> None:
    """Its denials are denials (A-1)."""
    told = b'{"detail":{"error":"kill_switch","message":"Out of hand."}}'
    denial = body(told, status=429).with_headers(("X-Own-Request-Id", "0a1b2c3d-1"), ("X-Own-Reason", "kill_switch"))
    with StandInLLM.in_thread() as service:
        service.next(denial)
        guardrail = litellm.BreakloopGuardrail(api_base=service.url)
        with pytest.raises(ProxyException, match="Out of hand"):
            asyncio.run(guardrail.async_pre_call_hook(CALLER, None, {"model": "m"}, "completion"))
        assert guardrail.guard.faults == 0
        guardrail.guard.close()


def request(number: int = 1, path: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    sent = {"url": f"http://proxy:4000{path}?a=1", "method": "POST", "headers": {"x-agent-id": "me", "cookie": "c=1"}}
    body = body or {"model": "m", "messages": [{"role": "user", "content": "again"}]}
    return {**body, "litellm_call_id": f"c{number}", "proxy_server_request": sent, "secret_fields": {"key": "sk-1"}}


def judged(guardrail: Any, data: dict[str, Any]) -> Any:
    return asyncio.run(guardrail.async_pre_call_hook(CALLER, None, data, "acompletion"))


def headers(guardrail: Any, data: dict[str, Any]) -> Any:
    return asyncio.run(guardrail.async_post_call_response_headers_hook(data, CALLER, None, request_headers={}))


def succeeded(guardrail: Any, number: int, response: Any) -> None:
    asyncio.run(guardrail.async_log_success_event({"litellm_call_id": f"c{number}"}, response, 0, 1))


def failed(guardrail: Any, number: int, error: Exception) -> None:
    told = guardrail.async_post_call_failure_hook({"litellm_call_id": f"c{number}"}, error, CALLER, traceback_str="")
    assert asyncio.run(told) is None


def test_what_is_judged_is_the_clients_request(litellm: Any) -> None:
    """Its path, its conversation and its agent, under LiteLLM's name for the key; no secret beside it (P-3, Y-1)."""
    backend = ScriptedBackend()
    guardrail = litellm.BreakloopGuardrail(guard=Guard(_backend=backend), guardrail_name="loops", event_hook="pre_call")
    data = request()
    before = json.dumps(data)
    assert judged(guardrail, data) is None
    assert json.dumps(data) == before
    call = backend.calls[0]
    assert (call.method, call.path, call.headers["authorization"]) == (
        "POST",
        "/v1/chat/completions",
        b"Bearer hash-of-a-key",
    )
    assert call.headers["x-agent-id"] == b"me"
    assert "cookie" not in call.headers
    assert json.loads(call.body) == {"model": "m", "messages": [{"role": "user", "content": "again"}]}
    assert guardrail.litellm_params == {"guardrail_name": "loops", "event_hook": "pre_call"}
    assert guardrail.supported == ["pre_call"]


@pytest.mark.parametrize(
    ("told", "session"),
    [
        ({"litellm_session_id": "s"}, "s"),
        ({"metadata": {"session_id": "s"}}, "s"),
        ({"litellm_metadata": {"session_id": "s"}, "metadata": None}, "s"),
        ({"litellm_session_id": "s", "metadata": {"litellm_session_id_generated": True}}, None),
        ({}, None),
    ],
)
def test_sessions_are_the_clients(litellm: Any, told: dict[str, Any], session: str | None) -> None:
    """One that LiteLLM made up for this request alone is none (LD-4)."""
    backend = ScriptedBackend()
    judged(litellm.BreakloopGuardrail(guard=Guard(_backend=backend)), {**request(), **told})
    assert json.loads(backend.calls[0].body).get("litellm_session_id") == session


def test_other_routes_are_judged_by_their_head(litellm: Any) -> None:
    """Limits and kill switches hold for images and the like, whose bodies nobody reads."""
    backend = ScriptedBackend()
    judged(
        litellm.BreakloopGuardrail(guard=Guard(_backend=backend)),
        request(path="/v1/images/generations", prompt="a cat"),
    )
    assert (backend.calls[0].path, backend.calls[0].body, backend.calls[0].body_unseen) == (
        "/v1/images/generations",
        b"",
        True,
    )


def test_a_loop_is_litellms_own_error(litellm: Any, clock: FakeClock) -> None:
    """With the fields that keep an SDK from trying again; others pass (P-3, A-3)."""
    guardrail = litellm.BreakloopGuardrail(guard=Guard(clock=clock))
    for number in range(5):
        assert judged(guardrail, request(number)) is None
        succeeded(guardrail, number, {"choices": [{"message": {"content": "hi"}}]})
    with pytest.raises(ProxyException, match="recursive_loop_detected") as caught:
        judged(guardrail, request(6))
    fields = caught.value.fields
    assert (fields["code"], fields["type"], fields["openai_code"]) == (
        429,
        "rate_limit_error",
        "recursive_loop_detected",
    )
    assert fields["headers"]["x-should-retry"] == "false"
    assert fields["headers"]["Retry-After"] == "30"
    assert not [name for name in fields["headers"] if name.startswith("Content-")]
    assert fields["provider_specific_fields"]["detail"]["hit_count"] == 6
    assert judged(guardrail, request(7, model="m", messages=[{"role": "user", "content": "else"}])) is None
    assert guardrail.guard.faults == 0


def test_a_loop_may_be_an_answer(litellm: Any) -> None:
    """`on_block: answer`; and only that or `error` (P-3)."""
    denied = Decision(allowed=False, reason="loop_detected", status=429, message="Blocked.")
    guardrail = litellm.BreakloopGuardrail(guard=Guard(_backend=ScriptedBackend(denied)), on_block="answer")
    with pytest.raises(InsteadError) as caught:
        judged(guardrail, request())
    assert caught.value.args[0] == "Blocked. (recursive_loop_detected)"
    assert caught.value.args[1]["reason"] == "loop_detected"
    with pytest.raises(ValueError, match="on_block"):
        litellm.BreakloopGuardrail(on_block="shout")


def test_other_denials_have_their_own_status(litellm: Any) -> None:
    """A kill switch is no rate limit (A-1)."""
    denied = Decision(allowed=False, reason="kill_switch", status=403, message="Stopped.", request_id="r1")
    with pytest.raises(ProxyException) as caught:
        judged(litellm.BreakloopGuardrail(guard=Guard(_backend=ScriptedBackend(denied))), request())
    assert (caught.value.fields["code"], caught.value.fields["type"]) == (403, "permission_error")
    assert caught.value.fields["headers"]["X-Breakloop-Request-Id"] == "r1"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
            "messages",
        ),
        ("/v1/responses", {"input": "b"}, "input"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "b"}], "max_tokens": 9}, "messages"),
    ],
)
def test_a_note_stands_in_the_conversation(litellm: Any, clock: FakeClock, path: str, body: Any, field: str) -> None:
    """At its end; messages before it are the very objects that they were. The header says that it is there (LD-5)."""
    guardrail = litellm.BreakloopGuardrail(guard=Guard(STEER, clock=clock))
    for number in range(2):
        assert judged(guardrail, request(number, path, model="m", **body)) is None
        assert headers(guardrail, request(number)) is None
        succeeded(guardrail, number, "hi")
    data = request(3, path, model="m", **body)
    before = data[field]
    assert judged(guardrail, data) is data
    assert "b\\n\\n[breakloop] " in json.dumps(data[field])
    if isinstance(before, list):
        assert all(one is other for one, other in zip(before[:-1], data[field], strict=False))
        assert "[breakloop]" not in str(before)
    told = headers(guardrail, data)
    assert told["X-Breakloop-Warning"] == "loop_detected"
    assert int(told["X-Breakloop-Loop-Count"]) == 3
    assert "X-Breakloop-Note" not in told
    assert headers(guardrail, data) is None


def test_tools_are_switched_off_when_a_call_is_landed(litellm: Any, clock: FakeClock) -> None:
    """The tools stay declared, and the header says it (LD-10)."""
    blocks = [{"similarity": "tail", "max_hits": 1, "action": "land"}]
    guard = Guard({"bundle_version": 1, "policies": [], "defaults": {"loop_detection": blocks}}, clock=clock)
    guardrail, tools = litellm.BreakloopGuardrail(guard=guard), [{"type": "function", "function": {"name": "a"}}]
    for number in range(2):
        data = request(
            number, "/v1/chat/completions", model="m", messages=[{"role": "user", "content": "b"}], tools=tools
        )
        judged(guardrail, data)
        assert data.get("tool_choice") == (None, "none")[number]
        assert data["tools"] is tools
        told = headers(guardrail, data) or {}
        assert told.get("X-Breakloop-Action") == (None, "land")[number]
        succeeded(guardrail, number, "hi")


def test_a_note_without_a_place_is_told_to_the_client(litellm: Any) -> None:
    """A warning changes nothing; a note that cannot be placed stands in the header, in ASCII (LD-5)."""
    noted = Decision(warning="loop_detected", note="Änder was.", hit_count=0, request_id="")
    guardrail = litellm.BreakloopGuardrail(guard=Guard(_backend=ScriptedBackend(noted)))
    data = request()
    assert judged(guardrail, data) is None
    assert headers(guardrail, data) == {"X-Breakloop-Warning": "loop_detected", "X-Breakloop-Note": "?nder was."}


def test_a_request_is_known_again_by_when_it_came(litellm: Any) -> None:
    """LiteLLM gives it another id where it translates it; without a time, its id has to do (D-6)."""
    backend = ScriptedBackend()
    guardrail = litellm.BreakloopGuardrail(guard=Guard(_backend=backend))
    data = request(1)
    data["proxy_server_request"]["arrival_time"] = 12.5
    judged(guardrail, data)
    inside = {"litellm_call_id": "another", "litellm_params": {"proxy_server_request": {"arrival_time": 12.5}}}
    asyncio.run(guardrail.async_log_success_event(inside, "hi", 0, 1))
    assert [answer.text for answer in backend.answers] == ["hi"]
    assert not guardrail._open


def test_what_was_said_and_what_failed_is_settled(litellm: Any) -> None:
    """Once each; what nobody asked about is left alone (D-6)."""
    backend = ScriptedBackend()
    guardrail = litellm.BreakloopGuardrail(guard=Guard(_backend=backend))
    for number in range(4):
        judged(guardrail, request(number))
    used = {"prompt_tokens": 3, "completion_tokens": 2}
    response = {"choices": [{"message": {"content": "hi"}}], "usage": used}
    succeeded(guardrail, 0, SimpleNamespace(model_dump=lambda mode: response))
    succeeded(guardrail, 0, response)
    error = RuntimeError("overloaded")
    error.status_code = 503  # type: ignore[attr-defined]
    failed(guardrail, 1, error)
    failed(guardrail, 2, RuntimeError("gone"))
    failed(guardrail, 99, error)
    assert [(answer.status, answer.text) for answer in backend.answers] == [(200, "hi"), (503, ""), (0, "")]
    assert backend.answers[0].usage is not None
    assert (backend.answers[0].usage.input_tokens, backend.answers[0].usage.output_tokens) == (3, 2)


def test_a_mistake_of_ours_stops_nobody(litellm: Any) -> None:
    """A request that cannot be read passes, an answer that cannot be read has been one; both are counted (D-4)."""
    backend = ScriptedBackend()
    guardrail = litellm.BreakloopGuardrail(guard=Guard(_backend=backend))
    assert judged(guardrail, {"proxy_server_request": 7}) is None
    assert guardrail.guard.faults == 1

    def broken(mode: str) -> None:
        raise TypeError

    judged(guardrail, request(1))
    succeeded(guardrail, 1, SimpleNamespace(model_dump=broken))
    assert guardrail.guard.faults == 2
    assert [answer.status for answer in backend.answers] == [200]


def test_a_throttle_waits(litellm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without blocking the proxy (D-4)."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert (
        judged(litellm.BreakloopGuardrail(guard=Guard(_backend=ScriptedBackend(Decision(delay_seconds=2)))), request())
        is None
    )
    assert waited == [2]


def test_where_it_is_decided(litellm: Any, tmp_path: Any) -> None:
    """A file of a policy, or a service under LiteLLM's own names for an address and a key (D-4)."""
    (tmp_path / "policy.json").write_text(json.dumps(bundle(policy("p"))))
    assert litellm.BreakloopGuardrail(policy=str(tmp_path / "policy.json")).guard._toolkit.backend.engine is not None
    backend = litellm.BreakloopGuardrail(api_base="http://127.0.0.1:1", api_key="k").guard._toolkit.backend
    assert (backend.where, backend._token) == ("http://127.0.0.1:1", "k")


@pytest.mark.slow
def test_requests_that_never_end_are_forgotten(litellm: Any) -> None:
    """Memory is bounded (Y-2)."""
    guardrail = litellm.BreakloopGuardrail(guard=Guard(_backend=ScriptedBackend()))
    for number in range(4100):
        guardrail._open[f"c{number}"] = Decision()
    assert len(guardrail._open) == 4096
    assert "c0" not in guardrail._open
