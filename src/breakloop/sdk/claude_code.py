"""Claude Code's hooks as data: what an event says, and what is answered to it, in the JSON that Claude Code documents.

Pure, and light to import. Who judges is left to others: `claude_agent` inside of a program, `hook_session` for a
command that is started anew for every event.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from breakloop.model.decision import Decision
from breakloop.model.note import marked
from breakloop.sdk.tool_failure import ToolFailedError

PROMPT: Final = "UserPromptSubmit"
BEFORE: Final = "PreToolUse"
AFTER: Final = "PostToolUse"
FAILED: Final = "PostToolUseFailure"
END: Final = "SessionEnd"
EVENTS: Final = (PROMPT, BEFORE, AFTER, FAILED)

STOP_AFTER: Final = 3  # blocks in a row, until the run is ended

# What a tool's answer holds that is another each time, and says nothing.
_VOLATILE: Final = re.compile(r"duration|elapsed|timestamp|Ms$|_ms$").search

Json = dict[str, Any]


class Event(NamedTuple):
    """One event, as far as it matters here."""

    kind: str
    session: str
    agent: str = ""  # of a sub-agent, by its id
    tool: str = ""
    arguments: Any = None
    call_id: str = ""
    result: str = ""
    failed: bool = False
    prompt: str = ""

    @property
    def made(self) -> tuple[str, Any]:
        """The call."""
        return self.tool, self.arguments

    @property
    def owner(self) -> str:
        """Whose steps these are: the session, and within it the sub-agent."""
        return f"{self.session}:{self.agent}" if self.agent else self.session

    @property
    def outcome(self) -> str | ToolFailedError:
        """What the call returned, in the form in which steps are told."""
        return ToolFailedError(self.result) if self.failed else self.result


def read(sent: Mapping[str, Any]) -> Event:
    """Return an event; what is missing, or is not what it should be, is empty."""
    kind = _text(sent, "hook_event_name")
    failed = kind == FAILED
    return Event(
        kind,
        _text(sent, "session_id"),
        _text(sent, "agent_id"),
        _text(sent, "tool_name"),
        sent.get("tool_input"),
        _text(sent, "tool_use_id"),
        _text(sent, "error") if failed else shown(sent.get("tool_response")) if kind == AFTER else "",
        failed,
        _text(sent, "prompt"),
    )


def shown(response: Any) -> str:
    """Return what a tool answered as one text, about as the model reads it."""
    if isinstance(response, str):
        return response
    if isinstance(response, dict):
        if isinstance(response.get("stdout"), str):
            said = [
                response["stdout"],
                _text(response, "stderr"),
                "(interrupted)" if response.get("interrupted") else "",
            ]
            return "\n".join(filter(None, said))
        if isinstance(response.get("content"), list):
            response = response["content"]
    if isinstance(response, list) and all(isinstance(block, dict) for block in response):
        return "\n".join(_text(block, "text") or _json(block) for block in response)
    return _json(response)


def spelled(arguments: Any) -> str:
    """Return a call's arguments in one spelling."""
    return arguments if isinstance(arguments, str) else _json(arguments, steady=False)


def before(decision: Decision, strikes: int, stop_after: int = STOP_AFTER) -> Json:
    """Return the answer to `PreToolUse`: a blocked call is denied with its reason, which the model reads."""
    if decision.allowed:
        return {}
    denied = {
        "hookEventName": BEFORE,
        "permissionDecision": "deny",
        "permissionDecisionReason": decision.notice,
    }
    return {**_stopped(decision, strikes, stop_after), "hookSpecificOutput": denied}


def after(kind: str, decision: Decision, strikes: int, stop_after: int = STOP_AFTER) -> Json:
    """Return the answer to `PostToolUse` and its like: the tool has run; the model is told what it repeats."""
    if decision.allowed and not decision.notice:
        return {}
    told = {"hookEventName": kind, "additionalContext": marked(decision.notice)}
    stopped = {} if decision.allowed else _stopped(decision, strikes, stop_after)
    return {**stopped, "hookSpecificOutput": told}


def prompted(decision: Decision) -> Json:
    """Return the answer to `UserPromptSubmit`: people may repeat themselves, but not go on where they are held."""
    if decision.allowed or decision.is_loop:
        return {}
    return {"decision": "block", "reason": decision.notice}


def in_shadow(answer: Json) -> Json:
    """Return an answer that changes nothing, and tells the person (not the model) what would have been said."""
    if not answer:
        return {}
    inner = answer.get("hookSpecificOutput", {})
    said = inner.get("permissionDecisionReason") or inner.get("additionalContext") or answer.get("reason", "")
    does = (
        "stop" if "continue" in answer else "block" if "permissionDecision" in inner or "decision" in answer else "tell"
    )
    return {"systemMessage": f"breakloop (shadow) would {does}: {said}"}


def _stopped(decision: Decision, strikes: int, stop_after: int) -> Json:
    """A model that goes on all the same is stopped; so is at once whoever is denied for another reason than a loop."""
    if decision.is_loop and (not stop_after or strikes < stop_after):
        return {}
    return {"continue": False, "stopReason": f"breakloop stopped this run. {decision.notice}"}


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _json(value: Any, *, steady: bool = True) -> str:
    kept = _steady(value) if steady else value
    return json.dumps(kept, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=repr)


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _steady(one)
            for name, one in value.items()
            if not (isinstance(one, int | float) and _VOLATILE(str(name)))
        }
    return [_steady(one) for one in value] if isinstance(value, list) else value
