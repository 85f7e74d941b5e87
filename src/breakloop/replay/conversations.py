"""Puts the requests of a recorded session together again: full OpenAI chat bodies out of differences. Messages are
written once and joined for each request, so that long sessions cost what their bodies weigh and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from breakloop.model.answer import Answer
from breakloop.replay.sessions import Delta

PATH = "/v1/chat/completions"
_RESULTS = ("tool", "function")


class Conversations:
    """The threads of one session."""

    def __init__(self, model: str) -> None:
        self._head = b'{"model":%s,"messages":[' % json_bytes(model)
        self._known: dict[str, list[bytes]] = {}  # thread -> its last request and the answer to it
        self._open: dict[str, list[str]] = {}  # thread -> ids of calls that have no result yet
        self._calls = 0

    def body(self, delta: Delta) -> bytes:
        """Return the whole request."""
        known = self._known.get(delta.thread, [])
        if delta.keep < len(known):
            known = known[: delta.keep]
            self._open.pop(delta.thread, None)  # the calls were part of what is forgotten
        messages = known + [json_bytes(message) for message in self._with_ids(delta)]
        self._known[delta.thread] = messages
        return self._head + b",".join(messages) + b"]}"

    def answered(self, thread: str, answer: Answer) -> None:
        """Take the answer into what the thread knows."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.calls:
            ids = [self._id() for _ in answer.calls]
            named = zip(ids, answer.calls, strict=True)
            message["content"] = answer.text or None
            message["tool_calls"] = [_call(call_id, call.name, call.arguments) for call_id, call in named]
            self._open[thread] = ids
        self._known.setdefault(thread, []).append(json_bytes(message))

    def _with_ids(self, delta: Delta) -> Iterator[Mapping[str, Any]]:
        """Give results the ids of their calls where the recording has none: each call on the wire has its own."""
        pending = self._open.pop(delta.thread, [])
        for message in delta.messages:
            calls = message.get("tool_calls")
            if isinstance(calls, list) and calls:
                made = [dict(call) if isinstance(call, dict) else {"name": str(call)} for call in calls]
                pending = [str(call.get("id") or self._id()) for call in made]
                yield {**message, "tool_calls": [_wired(*pair) for pair in zip(pending, made, strict=True)]}
            elif message.get("role") in _RESULTS and not message.get("tool_call_id") and pending:
                yield {**message, "tool_call_id": pending.pop(0)}
            else:
                yield message

    def _id(self) -> str:
        self._calls += 1
        return f"call_{self._calls}"


def _wired(call_id: str, call: dict[str, Any]) -> dict[str, Any]:
    if "function" in call or "custom" in call:
        return {**call, "id": call_id}
    return _call(call_id, str(call.get("name", "")), call.get("arguments", ""))


def _call(call_id: str, name: str, arguments: object) -> dict[str, Any]:
    spelled = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": spelled}}


def json_bytes(value: object) -> bytes:
    """Return compact JSON; half a character becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
