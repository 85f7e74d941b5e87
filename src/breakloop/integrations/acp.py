"""`AcpGuard`: reads what an editor and an agent tell each other over the Agent Client Protocol, for `breakloop acp`.

The agent reports its tool calls to the editor, and they are the steps of a turn, which begins with a prompt. The
protocol has no way to tell the model something or to take its tools away, so a turn is ended as an editor would end it:
`session/cancel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from breakloop.integrations.stdio import Id, is_id, read_line, write_line
from breakloop.model.decision import Decision, ToolFailedError
from breakloop.sdk.requests import arguments_text, denial_details
from breakloop.sdk.toolkit import BoundedDict, Run

_TURNS_MAX: Final = 1000
_CALL_FIELDS: Final = ("title", "kind", "status", "content", "rawInput", "rawOutput")
_META: Final = "breakloop/detail"
# A prompt that is denied has not reached the agent; a turn that is ended has taken too many steps.
_REFUSED: Final = "refusal"
_ENDED: Final = "max_turn_requests"

Json = dict[str, Any]


class _Turn:
    """A prompt that has no response yet, and the tool calls of the agent since then."""

    def __init__(self, prompt_id: Id, run: Run) -> None:
        self.prompt_id = prompt_id
        self.run = run
        self.calls: dict[str, Json] = {}  # what is known of those that are not done, by their ids
        self.done: set[str] = set()
        self.denied: Decision | None = None


class AcpGuard:
    """Checks the turns of one agent. `run` makes the run of a turn from its prompt. `tell` gets each notice, for the
    person who reads the log; in shadow mode, that is all. `send` writes a line to the agent: set it before the first
    line."""

    def __init__(self, run: Callable[[str], Run], tell: Callable[[str], None], *, shadow: bool = False) -> None:
        self._run = run
        self._tell = tell
        self._shadow = shadow
        self._turns: BoundedDict[str, _Turn] = BoundedDict(_TURNS_MAX)  # by session
        self.send: Callable[[bytes], None] = lambda _: None

    def from_client(self, line: bytes) -> bytes:
        """Return the answer to a prompt that is denied; b"" if the line goes on to the agent."""
        sent = read_line(line) if b"prompt" in line else None
        if sent is None or sent.get("method") != "session/prompt":
            return b""
        params, prompt_id = _fields(sent, "params"), sent.get("id")
        session = params.get("sessionId")
        if not isinstance(session, str) or not is_id(prompt_id):
            return b""
        turn = _Turn(prompt_id, self._run(_text(params.get("prompt"))))
        decision = turn.run.begin()
        if self._denies(decision):
            return _message(session, decision) + _response(prompt_id, _REFUSED, decision)
        self._turns[session] = turn
        return b""

    def from_server(self, line: bytes) -> bytes:
        """Return the lines for the client."""
        if not self._turns or not (b'"id"' in line or b"tool_call" in line):
            return line
        sent = read_line(line)
        if sent is None:
            return line
        method, params = sent.get("method"), _fields(sent, "params")
        if method is None:
            return self._responded(sent.get("id"), line)
        session = params.get("sessionId")
        turn = self._turns.get(session) if isinstance(session, str) else None
        if turn is None:
            return line
        if method == "session/update":
            return line + self._updated(str(session), turn, _fields(params, "update"))
        if method == "session/request_permission" and turn.denied is not None:  # as an editor does that has cancelled
            outcome = {"outcome": {"outcome": "cancelled"}}
            self.send(write_line({"jsonrpc": "2.0", "id": sent.get("id"), "result": outcome}))
            return b""
        return line

    def _updated(self, session: str, turn: _Turn, update: Mapping[str, Any]) -> bytes:
        """Read a report of the agent about a tool call. Returns what the client gets after it."""
        call_id = update.get("toolCallId")
        if not isinstance(call_id, str) or call_id in turn.done:
            return b""
        call = turn.calls.setdefault(call_id, {})
        call.update((name, update[name]) for name in _CALL_FIELDS if update.get(name) is not None)
        if call.get("status") not in {"completed", "failed"}:
            return b""
        turn.done.add(call_id)
        del turn.calls[call_id]
        decision = turn.run.after_tool(_name(call), _arguments(call), _result(call, call_id))
        if not self._denies(decision):
            return b""
        self.send(write_line({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}))
        told, turn.denied = turn.denied, decision
        return b"" if told else _message(session, decision)

    def _responded(self, response_id: Any, line: bytes) -> bytes:
        """End the turn whose prompt this is the response to."""
        found = [name for name, turn in self._turns.items() if turn.prompt_id == response_id]
        if not found:
            return line
        turn = self._turns.pop(found[0])
        turn.run.add_answer()
        return line if turn.denied is None else _response(turn.prompt_id, _ENDED, turn.denied)

    def _denies(self, decision: Decision) -> bool:
        if decision.notice:
            self._tell(decision.notice)
        return not decision.allowed and not self._shadow


def _name(call: Json) -> str:
    """Return the kind of a call, such as `execute`: titles are for people, and often contain the arguments."""
    kind = call.get("kind")
    return str(call.get("title") or "tool") if kind in {None, "other"} else str(kind)


def _arguments(call: Json) -> Any:
    given = call.get("rawInput")
    return {"title": call.get("title")} if given is None else given


def _result(call: Json, call_id: str) -> str | ToolFailedError:
    """Return what a call returned. Output that is only in a terminal of the client, or not reported, is not known: it
    counts as different each time."""
    given = call.get("rawOutput")
    text = _text(call.get("content")) if given is None else arguments_text(given)
    text = text or call_id
    return ToolFailedError(text) if call.get("status") == "failed" else text


def _text(parts: Any) -> str:
    """Return the text of a prompt, or of the content of a tool call."""
    found = []
    for part in parts if isinstance(parts, list) else ():
        inner = part.get("content", part) if isinstance(part, dict) else {}
        if isinstance(inner, dict):
            found.append(inner.get("text") or inner.get("newText") or inner.get("terminalId") or "")
    return "\n".join(str(one) for one in found if one)


def _fields(message: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = message.get(name)
    return found if isinstance(found, dict) else {}


def _message(session: str, decision: Decision) -> bytes:
    """Return what the person at the editor reads, as a piece of what the agent says."""
    content = {"type": "text", "text": f"\n\n[breakloop] The turn has ended. {decision.notice}"}
    update = {"sessionUpdate": "agent_message_chunk", "content": content}
    return write_line(
        {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}}
    )


def _response(prompt_id: Id, reason: str, decision: Decision) -> bytes:
    result = {"stopReason": reason, "_meta": {_META: denial_details(decision)}}
    return write_line({"jsonrpc": "2.0", "id": prompt_id, "result": result})
