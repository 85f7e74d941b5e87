"""The gateway behind a hook."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from breakloop.integrations.claude_code import AFTER, FAILED, PROMPT, GatewayHookBackend, HookEvent, HookSession
from breakloop.sdk.remote_backend import UnreadableAnswerError
from breakloop.testing import StandInLLM, ThreadedLLM, body

ALLOWED = body(b"").with_headers(("X-Breakloop-Request-Id", "r-1"))
EVENT = HookEvent(AFTER, "s-1", "a-2", "Bash", {"command": "ls"}, "toolu_1", "a.txt")


@pytest.fixture
def service() -> Iterator[ThreadedLLM]:
    with StandInLLM.in_thread() as running:
        yield running


@pytest.fixture
def judge(service: ThreadedLLM) -> GatewayHookBackend:
    return GatewayHookBackend(service.url, "sk-own", "claude-code")


def test_a_step_is_asked_about(judge: GatewayHookBackend, service: ThreadedLLM) -> None:
    """Call and result as a chat request of agent and session, and nothing of earlier ones (D-3)."""
    service.next(ALLOWED, ALLOWED)
    assert judge.decide(HookSession({}, b""), EVENT, 0.0).allowed
    failed = EVENT._replace(kind=FAILED, failed=True, result="denied")
    judge.decide(HookSession({}, b""), failed, 0.0)
    first, second = (seen.json()["messages"] for seen in service.requests)
    assert [message["role"] for message in first] == ["user", "assistant", "tool"]
    assert first[1]["tool_calls"][0]["function"] == {"name": "Bash", "arguments": '{"command":"ls"}'}
    assert (first[2]["content"], second[2]["content"]) == ("a.txt", "Error: ToolFailedError: denied")
    seen = service.requests[0]
    assert (seen.header("x-agent-id"), seen.header("x-agent-session")) == ("claude-code", "s-1:a-2")
    assert (seen.path, seen.header("x-breakloop-key")) == ("/v1/decision", "sk-own")
    service.wait_until(lambda: service.llm.open == 0)


def test_two_sessions_that_do_the_same_are_two(judge: GatewayHookBackend, service: ThreadedLLM) -> None:
    """`tail` counts caller and agent, and the two would look alike (LD-6)."""
    service.next(ALLOWED, ALLOWED)
    for session in ("one", "two"):
        judge.decide(HookSession({}, b""), EVENT._replace(session=session), 0.0)
    first, second = (seen.json()["messages"][0] for seen in service.requests)
    assert first != second


def test_a_prompt_is_asked_about(judge: GatewayHookBackend, service: ThreadedLLM) -> None:
    """As what a person said (D-3)."""
    service.next(ALLOWED)
    assert judge.decide(HookSession({}, b""), HookEvent(PROMPT, "s-1", prompt="Go on."), 0.0).allowed
    assert service.requests[0].json()["messages"][-1] == {"role": "user", "content": "Go on."}


def test_a_service_that_is_none(judge: GatewayHookBackend, service: ThreadedLLM) -> None:
    """Whoever asks lets it pass then."""
    service.next(body(b"hello"))
    with pytest.raises(UnreadableAnswerError):
        judge.decide(HookSession({}, b""), EVENT, 0.0)
