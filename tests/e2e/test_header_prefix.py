"""A server whose `header_prefix` is not the default: every client of ours sees its denials, with no setting of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from breakloop import Guard, LoopDetectedError
from breakloop.anthropic import Anthropic
from breakloop.integrations.claude_code import AFTER, GatewayHookBackend, HookEvent, HookSession
from breakloop.integrations.httpx import GuardTransport
from breakloop.openai import DeniedError, OpenAI
from breakloop.testing import ThreadedLLM
from tests.e2e.served import Caller, Served, serving

pytestmark = pytest.mark.e2e

KILLED = {"x-agent-id": "killed"}
POLICY = """
bundle_version: 1
policies: []
kill_switches:
  - {scope_key: "agent:id", scope_value: killed, reason: "out of hand"}
"""


@pytest.fixture(scope="module")
def served(llm: ThreadedLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("prefix")
    (folder / "policy.yaml").write_text(POLICY)
    names = [f"--upstream={name}={llm.url}" for name in ("openai", "anthropic")]
    with serving(folder, *names, "--policy", "policy.yaml", BREAKLOOP_HEADER_PREFIX="X-Own-") as running:
        yield running


def test_the_server_uses_its_prefix(served: Served) -> None:
    """In allowed answers and in denials (A-1)."""
    assert {"x-own-request-id"} == {name for name in served.decide("/x")[1] if name.endswith("-request-id")}
    status, fields, _ = served.decide("/x", x_agent_id="killed")
    assert (status, fields["x-own-reason"]) == (429, "kill_switch")
    assert not [name for name in fields if name.startswith("x-breakloop-")]


def test_a_guard_that_asks(served: Served) -> None:
    """Loops, kill switches, and results under the right request id; nothing is taken for a fault (D-4)."""
    with Guard(url=served.url) as guard:
        body = {"model": "m", "messages": [{"role": "user", "content": "the same again"}]}
        decisions = []
        for _ in range(6):
            decisions.append(guard.check(body, agent="guarded"))
            guard.report(decisions[-1])
        assert [decision.allowed for decision in decisions] == [True] * 5 + [False]
        assert (decisions[-1].is_loop, decisions[-1].hit_count) == (True, 6)
        assert guard.check(body, agent="killed").reason == "kill_switch"
        assert all(decision.request_id for decision in decisions)
        assert guard.faults == 0


def test_a_hook_that_asks(served: Served) -> None:
    """What `breakloop hook` does where it has a gateway (P-3)."""
    event = HookEvent(AFTER, "s-1", "a-2", "Bash", {"command": "ls"}, "toolu_1", "a.txt")
    assert GatewayHookBackend(served.url, "", "claude-code").decide(HookSession({}, b""), event, 0.0).allowed
    assert GatewayHookBackend(served.url, "", "killed").decide(HookSession({}, b""), event, 0.0).reason == "kill_switch"


def test_a_transport_whose_guard_asks(served: Served) -> None:
    """The service's denial reaches the client of httpx (D-4)."""
    unsent = httpx.MockTransport(lambda _: pytest.fail("was sent"))
    with Guard(url=served.url) as guard, httpx.Client(transport=GuardTransport(unsent, guard=guard)) as client:
        answer = client.post("http://api.example.com/v1/chat/completions", json={"model": "m"}, headers=KILLED)
    assert (answer.status_code, answer.json()["detail"]["error"]) == (429, "kill_switch")
    assert (answer.headers["x-should-retry"], answer.headers["x-own-reason"]) == ("false", "kill_switch")


def test_openai_behind_the_gateway(served: Served, caller: Caller) -> None:
    """Our errors, sent once (P-2)."""
    with OpenAI(base_url=served.url + "/v1", api_key=caller.key, agent="killed") as client:
        with pytest.raises(DeniedError) as denied:
            client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "hi"}])
        assert denied.value.reason == "kill_switch"
    with OpenAI(base_url=served.url + "/v1", api_key=caller.key) as client:
        for _ in range(5):
            client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "again"}])
        with pytest.raises(LoopDetectedError) as caught:
            client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "again"}])
    assert caught.value.hit_count == 6


def test_anthropic_behind_the_gateway(served: Served, caller: Caller) -> None:
    """The same for Anthropic's client (P-2)."""
    with Anthropic(base_url=served.url, api_key=caller.key) as client:
        for _ in range(5):
            client.messages.create(model="claude", max_tokens=9, messages=[{"role": "user", "content": "go"}])
        with pytest.raises(LoopDetectedError) as caught:
            client.messages.create(model="claude", max_tokens=9, messages=[{"role": "user", "content": "go"}])
    assert json.loads(caught.value.response.content)["detail"]["hit_count"] == 6  # type: ignore[attr-defined]
