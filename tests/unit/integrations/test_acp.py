"""Lines of the Agent Client Protocol; tests/e2e/test_acp.py has a real client and a real agent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop import Guard
from breakloop.integrations.acp import AcpGuard
from breakloop.model.decision import Decision
from tests.unit.sdk.backends import DENIED, WARNED, ScriptedBackend

ALLOWED = Decision(request_id="r")
BLOCKED = "Blocked: the same again. (recursive_loop_detected)"


def line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def prompt(number: int = 1, text: str = "Fix it.", session: str = "s1") -> bytes:
    blocks = [{"type": "text", "text": text}]
    return line(id=number, method="session/prompt", params={"sessionId": session, "prompt": blocks})


def update(call_id: str = "c1", session: str = "s1", **fields: Any) -> bytes:
    made = {"sessionUpdate": "tool_call_update", "toolCallId": call_id, **fields}
    return line(method="session/update", params={"sessionId": session, "update": made})


def done(call_id: str, text: str = "1 failed") -> bytes:
    content = [{"type": "content", "content": {"type": "text", "text": text}}]
    return update(call_id, status="completed", kind="execute", rawInput={"command": "make"}, content=content)


class Talk:
    """A guard, what it decided with, and what it told and sent."""

    def __init__(self, *decisions: Decision, shadow: bool = False) -> None:
        self.backend = ScriptedBackend(*decisions)
        guard = Guard(_backend=self.backend)
        self.told: list[str] = []
        self.sent: list[Any] = []
        self.guard = AcpGuard(lambda task: guard.run("a", task=task), self.told.append, shadow=shadow)
        self.guard.send = lambda one: self.sent.append(json.loads(one))

    def agent(self, sent: bytes) -> list[Any]:
        """What the client gets for a line of the agent, or else []: the line as it was."""
        got = self.guard.from_server(sent)
        return [] if got == sent else [json.loads(one) for one in got.splitlines()]

    @property
    def calls(self) -> list[Any]:
        """The last step, as it was judged."""
        *_, asked, result = self.backend.bodies[-1]["messages"]
        return [asked["tool_calls"][0]["function"], result["content"]]


def test_a_turn_that_is_denied_is_cancelled() -> None:
    """The agent is cancelled, and asks nobody any longer; the client reads why, and gets a stop reason of the protocol
    (P-3)."""
    talk = Talk(ALLOWED, WARNED, DENIED, DENIED)
    assert talk.guard.from_client(prompt(7)) == b""
    assert talk.agent(done("c1")) == []
    passed, why = talk.agent(done("c2"))
    assert passed == json.loads(done("c2"))
    assert why["params"]["sessionId"] == "s1"
    assert why["params"]["update"]["content"]["text"] == f"\n\n[breakloop] The turn has ended. {BLOCKED}"
    cancel = {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s1"}}
    assert talk.sent == [cancel]
    asked = line(id=3, method="session/request_permission", params={"sessionId": "s1", "options": []})
    assert talk.guard.from_server(asked) == b""
    assert talk.sent[1:] == [{"jsonrpc": "2.0", "id": 3, "result": {"outcome": {"outcome": "cancelled"}}}]
    assert talk.agent(done("c3")) == []  # it goes on all the same: cancelled again, and told once
    assert talk.sent[2:] == [cancel]
    (ended,) = talk.agent(line(id=7, result={"stopReason": "cancelled"}))
    assert (ended["id"], ended["result"]["stopReason"]) == (7, "max_turn_requests")
    assert ended["result"]["_meta"]["breakloop/detail"]["kind"] == "repeat"
    assert talk.told[0].startswith("You repeat yourself")
    assert talk.agent(line(id=3, method="session/request_permission", params={"sessionId": "s1"})) == []


def test_a_prompt_that_is_denied_does_not_reach_the_agent() -> None:
    """By a kill switch or a limit (P-3)."""
    talk = Talk(DENIED)
    why, ended = [json.loads(one) for one in talk.guard.from_client(prompt(7)).splitlines()]
    assert "Blocked: the same again." in why["params"]["update"]["content"]["text"]
    assert (ended["id"], ended["result"]["stopReason"]) == (7, "refusal")
    assert talk.backend.bodies[0]["messages"][0]["content"] == "Fix it."


def test_shadow_mode_changes_nothing() -> None:
    """What would have been denied is told (P-3)."""
    talk = Talk(DENIED, DENIED, shadow=True)
    assert talk.guard.from_client(prompt(7)) == b""
    assert talk.agent(done("c1")) == []
    assert talk.agent(line(id=7, result={"stopReason": "end_turn"})) == []
    assert talk.told == [BLOCKED] * 2
    assert talk.sent == []


def test_a_call_is_a_step_once_it_is_done() -> None:
    """What several updates report is put together, and the last one counts once (P-3)."""
    talk = Talk()
    talk.guard.from_client(prompt())
    talk.agent(update("c1", sessionUpdate="tool_call", kind="execute", status="pending", rawInput={"command": "ls"}))
    talk.agent(update("c1", status="in_progress"))
    assert len(talk.backend.calls) == 1  # the prompt
    for _ in range(2):
        talk.agent(update("c1", status="completed", rawOutput={"code": 0}))
    assert len(talk.backend.calls) == 2
    assert talk.calls == [{"name": "execute", "arguments": '{"command":"ls"}'}, '{"code":0}']


@pytest.mark.parametrize(
    ("fields", "name", "arguments", "result"),
    [
        ({"title": "Look up", "kind": "other"}, "Look up", '{"title":"Look up"}', "c1"),
        ({"rawInput": "x", "content": [{"type": "terminal", "terminalId": "t9"}]}, "tool", "x", "t9"),
        ({"kind": "edit", "rawInput": {}, "content": [{"type": "diff", "newText": "b"}]}, "edit", "{}", "b"),
        ({"kind": "read", "rawInput": {}, "content": ["?", {"content": "?"}]}, "read", "{}", "c1"),
    ],
)
def test_what_an_agent_may_leave_out(fields: dict[str, Any], name: str, arguments: str, result: str) -> None:
    """A result that is not reported, or is in a terminal, is another one each time: it is no repetition (P-3)."""
    talk = Talk()
    talk.guard.from_client(prompt())
    talk.agent(update("c1", status="completed", **fields))
    assert talk.calls == [{"name": name, "arguments": arguments}, result]


def test_a_failed_call_is_an_error() -> None:
    """As it is for every integration (P-3)."""
    talk = Talk()
    talk.guard.from_client(prompt())
    talk.agent(update("c1", status="failed", kind="read", rawInput={}, rawOutput="no such file"))
    assert talk.calls[1].startswith("Error")


def test_each_prompt_begins_anew() -> None:
    """A person is between two turns. What is replayed when a session is loaded belongs to no turn (P-3)."""
    talk = Talk()
    talk.agent(done("c0"))
    assert talk.backend.calls == []
    for number in range(2):
        talk.guard.from_client(prompt(number))
        talk.agent(done(f"c{number}"))
        talk.agent(line(id=number, result={"stopReason": "end_turn"}))
    first, second = talk.backend.named(0), talk.backend.named(2)
    assert first[0] == "a"
    assert first[1] != second[1]


@pytest.mark.parametrize(
    "sent",
    [
        line(id=1, method="initialize", params={"protocolVersion": 1}),
        line(method="session/prompt", params={"sessionId": "s1"}),
        line(id=True, method="session/prompt", params={"sessionId": "s1"}),
        line(id=1, method="session/prompt", params={"sessionId": 4}),
        line(id=1, method="session/prompt", params=["prompt"]),
        line(id=1, method="session/set_mode", params={"prompt": "x"}),
        b"not json: prompt, tool_call\n",
        b'[{"method": "session/prompt"}]\n',
    ],
)
def test_everything_else_passes(sent: bytes) -> None:
    """Byte for byte, both ways (P-3)."""
    talk = Talk()
    talk.guard.from_client(prompt(9))
    assert talk.guard.from_client(sent) == b""
    assert talk.guard.from_server(sent) == sent
    assert talk.guard.from_server(update("c1", session="s2")) == update("c1", session="s2")
    assert talk.guard.from_server(line(id=8, result={})) == line(id=8, result={})
    assert len(talk.backend.calls) == 1
