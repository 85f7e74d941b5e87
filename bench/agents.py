"""Conversations of agents that grow with every step: a tool call of the model and its result, which is new each time.

Unlike `bench.chat`, whose conversation opens alike in every request, each session here is a run of its own, and each
answer of the upstream is the call that the next request continues with.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from bench import chat

STEPS = 10  # of each session
_TOOL_SHARE, _SYSTEM_SHARE = 0.15, 0.1  # of the body: definitions of tools, and the system prompt
_RESULT_BYTES = 3000  # of a result in a long conversation; in a short one it is a part of the whole
_WORDS = ("harbour", "ferry", "tide", "crane", "cargo", "quay", "pilot", "buoy", "anchor", "berth", "dredge", "lock")


@dataclass(frozen=True, slots=True)
class Conversations:
    """Requests with about `size_bytes`, ten for each session, and the answers to them."""

    size_bytes: int
    anthropic: bool = False
    named: bool = False
    agents: int = 1  # whose steps alternate
    traced: bool = False  # each request has a trace id

    def request(self, number: int) -> bytes:
        """The whole request with this number."""
        session, step = self._place(number)
        before, after = self._frame(session)
        body = before + b",".join(self._turns(session)[: self._kept + step + 1]) + after
        extra = [("X-Agent-Session", f"s-{session:03d}")] if self.named else []
        if self.traced:
            trace = hashlib.sha256(b"%d" % number).hexdigest()
            extra.append(("traceparent", f"00-{trace[:32]}-{trace[32:48]}-01"))
        fields = self._fields(len(body)) + extra
        path = "/v1/messages" if self.anthropic else chat.PATH
        head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields) + "\r\n"
        return head.encode() + body

    def answer(self, number: int) -> bytes:
        """The response to that request: the call that the next one has the result of."""
        session, step = self._place(number)
        message = _call(session, self._kept + step + 1, anthropic=self.anthropic)
        if self.anthropic:
            usage = {"input_tokens": 431, "output_tokens": 96}
            content = {"id": f"msg_{number}", "type": "message", "model": "claude-sonnet-4-5", **message}
            body = to_json({**content, "stop_reason": "tool_use", "stop_sequence": None, "usage": usage})
        else:
            body = chat.completion_body(message, "tool_calls")
        head = chat.answer_head(("Content-Type", "application/json"), ("Content-Length", str(len(body))))
        return chat.numbered(head, number) + body

    def _place(self, number: int) -> tuple[int, int]:
        """Session and step of a request."""
        group, rest = divmod(number, self.agents * STEPS)
        step, agent = divmod(rest, self.agents)
        return group * self.agents + agent, step

    @property
    def _result_bytes(self) -> int:
        return min(_RESULT_BYTES, self.size_bytes // (2 * STEPS))

    @property
    def _kept(self) -> int:
        """Turns of the conversation before the first request of the session that is counted."""
        room = self.size_bytes * (1 - _TOOL_SHARE - _SYSTEM_SHARE) / (self._result_bytes + 200)
        return max(0, int(room) - STEPS // 2)

    def _fields(self, length: int) -> list[tuple[str, str]]:
        fields = chat.request_fields(length)
        if self.anthropic:
            key = [("x-api-key", chat.API_KEY.replace("sk-proj-", "sk-ant-")), ("anthropic-version", "2023-06-01")]
            fields = [*[one for one in fields if one[0] != "authorization"], *key]
        return fields

    @lru_cache(maxsize=16)  # noqa: B019 - there are as many of these objects as lines in the table
    def _turns(self, session: int) -> list[bytes]:
        """The turns of a session, each as it stands in a list of messages."""
        turns: list[bytes] = []
        for at in range(self._kept + STEPS):
            found = prose(session, at, self._result_bytes)
            result: dict[str, Any] = {"role": "tool", "tool_call_id": f"call_{at}", "content": found}
            if self.anthropic:
                block = {"type": "tool_result", "tool_use_id": f"call_{at}", "content": found}
                result = {"role": "user", "content": [block]}
            turns.append(to_json(_call(session, at, anthropic=self.anthropic)) + b"," + to_json(result))
        return turns

    def _frame(self, session: int) -> tuple[bytes, bytes]:
        """What a body has before and after the turns of a session."""
        system = prose(0, 0, int(self.size_bytes * _SYSTEM_SHARE))
        task = {"role": "user", "content": f"Find out how harbour {session:03d} opens."}
        opening: list[dict[str, Any]] = [task] if self.anthropic else [{"role": "system", "content": system}, task]
        content: dict[str, Any] = {"model": "claude-sonnet-4-5" if self.anthropic else chat.MODEL}
        if self.anthropic:
            content |= {"system": system, "max_tokens": 4096}
        whole = to_json({**content, "messages": opening, "tools": self._tools()})
        before, _, after = whole.partition(b'],"tools":')
        return before + b",", b'],"tools":' + after

    def _tools(self) -> list[dict[str, Any]]:
        count = max(1, int(self.size_bytes * _TOOL_SHARE) // 700)
        schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
        tools: list[dict[str, Any]] = []
        for number in range(count):
            said = prose(1, number, 500 if count > 1 else 60)
            name = "read_file" if not number else f"tool_{number}"
            if self.anthropic:
                tools.append({"name": name, "description": said, "input_schema": schema})
            else:
                function = {"name": name, "description": said, "parameters": schema}
                tools.append({"type": "function", "function": function})
        return tools


def _call(session: int, at: int, *, anthropic: bool) -> dict[str, Any]:
    """The message of the model that calls a tool."""
    given = {"path": f"harbour-{session:03d}/file-{at}.txt"}
    if anthropic:
        use = {"type": "tool_use", "id": f"call_{at}", "name": "read_file", "input": given}
        return {"role": "assistant", "content": [use]}
    function = {"name": "read_file", "arguments": json.dumps(given)}
    return {"role": "assistant", "content": None, "tool_calls": [_tool_call(at, function)]}


def _tool_call(at: int, function: dict[str, str]) -> dict[str, Any]:
    return {"id": f"call_{at}", "type": "function", "function": function}


@lru_cache(maxsize=1024)
def prose(session: int, at: int, size_bytes: int) -> str:
    """Lines of words and numbers that no other result has."""
    lines: list[str] = []
    size = 0
    while size < size_bytes:
        new = hashlib.sha256(b"%d %d %d" % (session, at, len(lines))).digest()
        lines.append(" ".join([_WORDS[byte % len(_WORDS)] for byte in new[:8]] + [str(new[8] * 256 + new[9])]))
        size += len(lines[-1]) + 2
    return "\n".join(lines)[:size_bytes]


def to_json(content: object) -> bytes:
    """Compact JSON, as SDKs send it."""
    return json.dumps(content, separators=(",", ":")).encode()
