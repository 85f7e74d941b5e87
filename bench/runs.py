"""Runs of agents for `bench.agent_calls`: in three APIs, plain and compressed, with what real clients send along
(reasoning, cache marks, definitions of tools) and results of 0.3 to 30 KB.

Each request is one step longer than the one before it, and continues with the call that the upstream has answered. A
header field tells the upstream which call that is, since it cannot read compressed bodies.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import zstandard

from bench import chat
from bench.agents import prose, to_json

CHAT, RESPONSES, MESSAGES = "chat", "Responses", "Messages"
PATHS: Final = {CHAT: chat.PATH, RESPONSES: "/v1/responses", MESSAGES: "/v1/messages"}
PLAIN, GZIP, ZSTD = "", "gzip", "zstd"
STEPS = 8  # of each run
ANSWER_FIELD = b"x-bench-answer: "  # API, run and number of the call; or "stream"
_STREAM = "stream"
_RESULT_BYTES = (300, 1_000, 3_000, 10_000, 30_000)
_SYSTEM_SHARE, _TOOL_SHARE = 0.1, 0.15
_TOOL_BYTES = 700
_CACHED = {"cache_control": {"type": "ephemeral"}}
_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


@dataclass(frozen=True, slots=True)
class AgentRuns:
    """Requests that grow to about `size_bytes`, in an API and a content coding."""

    api: str
    size_bytes: int
    coding: str = PLAIN
    streamed: bool = False

    def requests(self, run: int) -> list[bytes]:
        """The requests of one run, in their order."""
        turns = self._turns(run)
        first = len(turns) - STEPS + 1
        return [self._request(run, turns[: first + step]) for step in range(STEPS)]

    def _request(self, run: int, turns: list[list[dict[str, Any]]]) -> bytes:
        body = to_json(self._body(run, turns))
        if self.coding:
            body = gzip.compress(body, 6) if self.coding == GZIP else zstandard.compress(body)
        fields = chat.request_fields(len(body))
        if self.api == MESSAGES:
            fields = [one for one in fields if one[0] != "authorization"]
            fields += [("x-api-key", "sk-ant-" + "b3nch" * 20), ("anthropic-version", "2023-06-01")]
        fields += [("content-encoding", self.coding)] if self.coding else []
        fields.append(("x-bench-answer", _STREAM if self.streamed else f"{self.api} {run} {len(turns)}"))
        head = f"POST {PATHS[self.api]} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields)
        return (head + "\r\n").encode() + body

    def _body(self, run: int, turns: list[list[dict[str, Any]]]) -> dict[str, Any]:
        system = prose(0, 0, int(self.size_bytes * _SYSTEM_SHARE))
        opening = {"role": "user", "content": f"Find out how harbour {run:06d} opens."}
        said = [opening, *[message for turn in turns for message in turn]]
        if self.api == RESPONSES:
            content = {"model": "gpt-5.1-codex", "instructions": system, "input": said, "store": False}
            return {**content, "include": ["reasoning.encrypted_content"], "tools": self._tools()}
        if self.api == CHAT:
            messages = [{"role": "system", "content": system}, *said]
            return {"model": chat.MODEL, "messages": messages, "tools": self._tools(), "stream": self.streamed}
        last = said[-1]["content"] if turns else []
        if turns:  # the mark moves with the conversation
            said[-1] = {"role": "user", "content": [*last[:-1], {**last[-1], **_CACHED}]}
        told = [{"type": "text", "text": system, **_CACHED}]
        thinking = {"type": "enabled", "budget_tokens": 4096}
        content = {"model": "claude-sonnet-4-5", "max_tokens": 8192, "thinking": thinking, "system": told}
        return {**content, "messages": said, "tools": self._tools()}

    def _tools(self) -> list[dict[str, Any]]:
        count = max(1, int(self.size_bytes * _TOOL_SHARE) // _TOOL_BYTES)
        names = ["read_file", *[f"tool_{number}" for number in range(1, count)]]
        told = [(name, prose(1, number, 500 if count > 1 else 60)) for number, name in enumerate(names)]
        if self.api == MESSAGES:
            return [{"name": name, "description": text, "input_schema": _SCHEMA} for name, text in told]
        functions = [{"name": name, "description": text, "parameters": _SCHEMA} for name, text in told]
        if self.api == RESPONSES:
            return [{"type": "function", **one} for one in functions]
        return [{"type": "function", "function": one} for one in functions]

    def _turns(self, run: int) -> list[list[dict[str, Any]]]:
        """As many turns as fill the size, with results of different sizes; a step more than is sent at first."""
        room = self.size_bytes * (1 - _SYSTEM_SHARE - _TOOL_SHARE)
        most = max(60, int(room / (2 * STEPS)))
        turns: list[list[dict[str, Any]]] = []
        size = 0
        while size < room or len(turns) < STEPS:
            at = len(turns)
            result = prose(run, at, min(most, _RESULT_BYTES[at % len(_RESULT_BYTES)]))
            turns.append([*called(self.api, run, at), _result(self.api, run, at, result)])
            size += len(to_json(turns[-1]))
        return turns


def called(api: str, run: int, at: int) -> list[dict[str, Any]]:
    """What the model says: its reasoning, where clients send that along, and a call."""
    arguments = {"path": f"harbour-{run:06d}/file-{at}.txt"}
    call = f"call_{run}_{at}"
    opaque = hashlib.sha256(call.encode()).hexdigest() * 3
    thought: dict[str, Any]
    if api == MESSAGES:
        thought = {"type": "thinking", "thinking": f"File {at} may tell more.", "signature": opaque}
        use = {"type": "tool_use", "id": call, "name": "read_file", "input": arguments}
        return [{"role": "assistant", "content": [thought, use]}]
    text = to_json(arguments).decode()
    if api == RESPONSES:
        thought = {"type": "reasoning", "id": f"rs_{run}_{at}", "summary": [], "encrypted_content": opaque}
        return [thought, {"type": "function_call", "call_id": call, "name": "read_file", "arguments": text}]
    function = {"name": "read_file", "arguments": text}
    made = {"id": call, "type": "function", "function": function}
    return [{"role": "assistant", "content": None, "tool_calls": [made]}]


def _result(api: str, run: int, at: int, text: str) -> dict[str, Any]:
    call = f"call_{run}_{at}"
    if api == MESSAGES:
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": text}]}
    if api == RESPONSES:
        return {"type": "function_call_output", "call_id": call, "output": text}
    return {"role": "tool", "tool_call_id": call, "content": text}


def answer(field: bytes) -> bytes:
    """The response that the header field of a request asks for, with its head."""
    if field == _STREAM.encode():
        return chat.stream_head() + b"".join(chat.stream_chunks())
    return _whole(field.decode())


@lru_cache(maxsize=1024)
def _whole(field: str) -> bytes:
    api, run, at = field.split()
    said = called(api, int(run), int(at))
    usage = {"input_tokens": 431, "output_tokens": 96}
    if api == MESSAGES:
        content = {"id": f"msg_{run}_{at}", "type": "message", "model": "claude-sonnet-4-5", **said[0]}
        body = to_json({**content, "stop_reason": "tool_use", "stop_sequence": None, "usage": usage})
    elif api == RESPONSES:
        content = {"id": f"resp_{run}_{at}", "object": "response", "status": "completed", "model": "gpt-5.1-codex"}
        body = to_json({**content, "output": said, "usage": usage | {"total_tokens": 527}})
    else:
        body = chat.completion_body(said[0], "tool_calls")
    return chat.answer_head(("Content-Type", "application/json"), ("Content-Length", str(len(body)))) + body
