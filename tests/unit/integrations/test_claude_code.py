"""Claude Code's events and answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.integrations import claude_code
from breakloop.integrations.claude_code import AFTER, BEFORE, FAILED, PROMPT, read
from breakloop.model.decision import Decision
from tests.unit.sdk.backends import DENIED, NOTE, WARNED

KILLED = Decision(allowed=False, reason="kill_switch", status=403, message="Stopped by an operator.")


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"session_id": "s-1", "cwd": "/", "hook_event_name": kind, "tool_use_id": "toolu_1", **fields}


def test_events() -> None:
    """What Claude Code sends, for the main agent and a sub-agent (P-3)."""
    seen = read(event(AFTER, tool_name="Bash", tool_input={"command": "ls"}, tool_response={"stdout": "a"}))
    assert (seen.kind, seen.owner, seen.tool, seen.arguments, seen.outcome) == (
        AFTER,
        "s-1",
        "Bash",
        {"command": "ls"},
        "a",
    )
    failed = read(event(FAILED, agent_id="a-7", tool_name="Read", tool_input={}, error="No such file."))
    assert (failed.owner, failed.failed, str(failed.outcome)) == ("s-1:a-7", True, "No such file.")
    assert read(event(PROMPT, prompt="Go on.")).prompt == "Go on."


@pytest.mark.parametrize("sent", [{}, {"session_id": 3, "tool_name": None, "hook_event_name": []}])
def test_events_that_are_none(sent: dict[str, Any]) -> None:
    """Whatever is sent can be read."""
    assert read(sent)[:4] == ("", "", "", "")


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ("plain", "plain"),
        ({"stdout": "out", "stderr": "err", "interrupted": False}, "out\nerr"),
        ({"stdout": "", "stderr": "", "interrupted": True}, "(interrupted)"),
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "one\ntwo"),
        ({"content": [{"type": "text", "text": "one"}]}, "one"),
        ({"filenames": ["a"], "durationMs": 12, "numFiles": 1}, '{"filenames":["a"],"numFiles":1}'),
        ({"inner": [{"elapsed_ms": 3, "x": 1}]}, '{"inner":[{"x":1}]}'),
        (None, "null"),
    ],
)
def test_what_a_tool_answered(response: object, text: str) -> None:
    """The same answer is the same text, however long it took (LD-4)."""
    assert claude_code.response_text(response) == text


def test_a_healthy_agent_is_untouched() -> None:
    """No answer at all (P-3)."""
    assert claude_code.answer_to(BEFORE, Decision(), 0) == {}
    assert claude_code.answer_to(BEFORE, WARNED, 0) == {}
    assert claude_code.answer_to(AFTER, Decision(), 0) == {}
    assert claude_code.answer_to(PROMPT, Decision()) == {}


def test_a_note_for_the_model() -> None:
    """As context behind the result (LD-5)."""
    for kind in (AFTER, FAILED):
        assert claude_code.answer_to(kind, WARNED, 0) == {
            "hookSpecificOutput": {"hookEventName": kind, "additionalContext": NOTE}
        }


def test_a_blocked_call_is_denied() -> None:
    """With the reason, which the model reads (P-3)."""
    assert claude_code.answer_to(BEFORE, DENIED, 1) == {
        "hookSpecificOutput": {
            "hookEventName": BEFORE,
            "permissionDecision": "deny",
            "permissionDecisionReason": "Blocked: the same again. (recursive_loop_detected)",
        }
    }


@pytest.mark.parametrize(("strikes", "stop_after", "stops"), [(2, 3, False), (3, 3, True), (9, 0, False), (1, 1, True)])
def test_a_model_that_goes_on_is_stopped(strikes: int, stop_after: int, stops: bool) -> None:
    """After so many blocks in a row the run ends, before a call and behind one (P-3)."""
    for answer in (
        claude_code.answer_to(BEFORE, DENIED, strikes, stop_after),
        claude_code.answer_to(AFTER, DENIED, strikes, stop_after),
    ):
        assert (answer.get("continue") is False) is stops
        assert ("stopReason" in answer) is stops


def test_what_is_no_loop_stops_at_once() -> None:
    """Nothing that the model does would help (K-2)."""
    assert claude_code.answer_to(AFTER, KILLED, 1)["continue"] is False
    assert claude_code.answer_to(BEFORE, KILLED, 1)["continue"] is False
    assert claude_code.answer_to(PROMPT, KILLED) == {
        "decision": "block",
        "reason": "Stopped by an operator. (kill_switch)",
    }


def test_people_may_repeat_themselves() -> None:
    """A prompt is never blocked as a loop (LD-4)."""
    assert claude_code.answer_to(PROMPT, DENIED) == {}
    assert claude_code.answer_to(PROMPT, WARNED) == {}


@pytest.mark.parametrize(
    ("answer", "does"),
    [
        (claude_code.answer_to(AFTER, WARNED, 0), "tell"),
        (claude_code.answer_to(BEFORE, DENIED, 1), "block"),
        (claude_code.answer_to(BEFORE, DENIED, 3), "stop"),
        (claude_code.answer_to(PROMPT, KILLED), "block"),
    ],
)
def test_in_shadow_only_the_person_is_told(answer: dict[str, Any], does: str) -> None:
    """What would have been done, and nothing that Claude Code would act on (E-6)."""
    told = claude_code.shadow_answer(answer)
    assert list(told) == ["systemMessage"]
    assert told["systemMessage"].startswith(f"breakloop (shadow) would {does}: ")
    assert len(told["systemMessage"]) > 40
    assert claude_code.shadow_answer({}) == {}


def test_arguments_have_one_spelling() -> None:
    """The order of fields is none of the call's (LD-4)."""

    def text(arguments: object) -> str:
        return claude_code.HookEvent(claude_code.BEFORE, "s", arguments=arguments).arguments_text

    assert text({"b": 1, "a": 2}) == text({"a": 2, "b": 1}) == '{"a":2,"b":1}'
    assert text("as it is") == "as it is"
    assert json.loads(text({"timeoutMs": 5})) == {"timeoutMs": 5}
