"""Data for tests: request bodies of each dialect, messages with tool calls and results, growing conversations, bundles.

In a conversation each request contains all messages before it, and ids of calls are unique.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Self

Json = dict[str, Any]

MODEL: Final = "stand-in"
PATHS: Final = {  # paths of the dialects
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "openai_completions": "/v1/completions",
    "openai_embeddings": "/v1/embeddings",
    "anthropic_messages": "/v1/messages",
    "gemini": f"/v1beta/models/{MODEL}:generateContent",
    "mcp": "/mcp",
    "ollama_chat": "/api/chat",
    "ollama_generate": "/api/generate",
    "cohere_chat": "/v2/chat",
    "vertex_anthropic": f"/v1/projects/p/locations/global/publishers/anthropic/models/{MODEL}:rawPredict",
    "bedrock_anthropic": f"/model/{MODEL}/invoke",
    "bedrock_chat": f"/model/{MODEL}/invoke",
    "bedrock_converse": f"/model/{MODEL}/converse",
    "mistral_conversations": "/v1/conversations",
}

# -- requests


def chat_request(*messages: Json | str, model: str = MODEL, **more: Any) -> Json:
    """Return a Chat Completions body; a string is a user message."""
    return {"model": model, "messages": [_message(message) for message in messages or ("Hello.",)], **more}


def messages_request(*messages: Json | str, model: str = MODEL, max_tokens: int = 1024, **more: Any) -> Json:
    """Return a body of Anthropic's Messages API; a string is a user message."""
    listed = [_message(message) for message in messages or ("Hello.",)]
    return {"model": model, "max_tokens": max_tokens, "messages": listed, **more}


def responses_request(*items: Json | str, model: str = MODEL, **more: Any) -> Json:
    """Return a Responses body; a string is a user message, and a single string is the whole input."""
    if len(items) <= 1 and not isinstance(items[0] if items else "", dict):
        return {"model": model, "input": items[0] if items else "Hello.", **more}
    return {"model": model, "input": [_message(item) for item in items], **more}


def gemini_request(*contents: Json | str, **more: Any) -> Json:
    """Return a `generateContent` body; a string is a user turn. The model is part of the path."""
    listed = [
        {"role": "user", "parts": [{"text": content}]} if isinstance(content, str) else content
        for content in contents or ("Hello.",)
    ]
    return {"contents": listed, **more}


def mcp_call(name: str = "echo", arguments: Mapping[str, Any] | None = None, *, call_id: int | str = 1) -> Json:
    """Return the `tools/call` request of an MCP client."""
    params = {"name": name, "arguments": dict(arguments or {})}
    return {"jsonrpc": "2.0", "id": call_id, "method": "tools/call", "params": params}


def _message(message: Json | str) -> Json:
    return {"role": "user", "content": message} if isinstance(message, str) else message


# -- messages


def tool_call(
    name: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    text: str = "",
    call_id: str = "call_1",
    dialect: str = "openai_chat",
) -> Json:
    """Return a tool call of the model: a message, or for Responses an item (which has no text)."""
    given = dict(arguments or {})
    if dialect == "openai_responses":
        return {"type": "function_call", "call_id": call_id, "name": name, "arguments": json.dumps(given)}
    if dialect in _ANTHROPIC:
        said = [{"type": "text", "text": text}] if text else []
        use = {"type": "tool_use", "id": call_id, "name": name, "input": given}
        return {"role": "assistant", "content": [*said, use]}
    if dialect == "gemini":
        parts: list[Json] = [{"text": text}] if text else []
        return {"role": "model", "parts": [*parts, {"functionCall": {"name": name, "args": given}}]}
    if dialect == "bedrock_converse":
        block = {"toolUse": {"toolUseId": call_id, "name": name, "input": given}}
        return {"role": "assistant", "content": [*([{"text": text}] if text else []), block]}
    if dialect == "ollama_chat":
        made = [{"function": {"name": name, "arguments": given}}]
        return {"role": "assistant", "content": text, "tool_calls": made}
    function = {"name": name, "arguments": json.dumps(given)}
    calls = [{"id": call_id, "type": "function", "function": function}]
    said_in = "tool_plan" if dialect == "cohere_chat" else "content"
    return {"role": "assistant", said_in: text or None, "tool_calls": calls}


def tool_result(
    text: str, *, call_id: str = "call_1", name: str = "tool", failed: bool = False, dialect: str = "openai_chat"
) -> Json:
    """Return a tool result. Gemini matches it by the name of the tool, the others by the id of the call."""
    if dialect == "openai_responses":
        return {"type": "function_call_output", "call_id": call_id, "output": text}
    if dialect in _ANTHROPIC:
        result: Json = {"type": "tool_result", "tool_use_id": call_id, "content": text}
        return {"role": "user", "content": [result | ({"is_error": True} if failed else {})]}
    if dialect == "gemini":
        response = {"error" if failed else "output": text}
        return {"role": "user", "parts": [{"functionResponse": {"name": name, "response": response}}]}
    if dialect == "bedrock_converse":
        returned = {"toolUseId": call_id, "content": [{"text": text}], "status": "error" if failed else "success"}
        return {"role": "user", "content": [{"toolResult": returned}]}
    if dialect == "ollama_chat":
        return {"role": "tool", "tool_name": name, "content": text}
    return {"role": "tool", "tool_call_id": call_id, "content": text}


# -- bundles


def bundle(*policies: Json, version: int = 1, **top: Any) -> Json:
    """Return a bundle of policies; further fields (`kill_switches=[...]`) are added to it."""
    return {"bundle_version": version, "policies": list(policies), **top}


def loop_policy(name: str = "loops", *, prefix: str = "/", mode: str = "enforce", **detector: Any) -> Json:
    """Return a policy with loop detection: `tail` with its defaults, or `detector`."""
    block = detector or {"similarity": "tail"}
    return {"id": name, "spec": {"selector": {"pathPrefix": prefix}, "mode": mode, "loop_detection": block}}


def limit_policy(
    name: str = "limits", *, rate: float = 1, burst: float = 1, keys: Iterable[str] = (), prefix: str = "/"
) -> Json:
    """Return a policy with one token bucket."""
    config = {"tokens_per_second": rate, "burst": burst}
    rule = {"name": "bucket", "limit_keys": list(keys), "algorithm": "token_bucket", "algorithm_config": config}
    return {"id": name, "spec": {"selector": {"pathPrefix": prefix}, "rules": [rule]}}


SYSTEM: Final = "You are a careful engineer. Use the tools, one step at a time, and say when you are done."
TASK: Final = "The nightly build fails. Find out why, and mend it."
_CONVERSATIONS: Final = (
    "openai_chat", "openai_responses", "anthropic_messages", "gemini", "ollama_chat", "cohere_chat",
    "vertex_anthropic", "bedrock_anthropic", "bedrock_converse",
)  # fmt: skip
_ANTHROPIC: Final = ("anthropic_messages", "vertex_anthropic", "bedrock_anthropic")
_FILES: Final = ("build.log", "Makefile", "src/app.py", "src/config.py", "tests/test_app.py", "README.md")


@dataclass(frozen=True, slots=True)
class Turn:
    """A text of the user or the model, or (with the name of a tool) a call and its result."""

    role: str
    text: str = ""
    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    result: str = ""
    failed: bool = False


class Conversation:
    """The conversation of one agent. Methods return the conversation, so that they can be chained."""

    def __init__(
        self, task: str = TASK, *, system: str = SYSTEM, model: str = MODEL, dialect: str = "openai_chat"
    ) -> None:
        if dialect not in _CONVERSATIONS:
            raise ValueError(f"no conversations in {dialect}: one of {', '.join(_CONVERSATIONS)}")
        self.dialect = dialect
        self.system = system
        self.model = model
        self._turns: list[tuple[Turn, str]] = []  # with the id of its call
        self._ids = count(1)
        self.user(task)

    def user(self, text: str) -> Self:
        """Add a message of the user."""
        return self._add(Turn("user", text))

    def assistant(self, text: str) -> Self:
        """Add an answer of the model without a tool call."""
        return self._add(Turn("assistant", text))

    def tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        result: str = "ok",
        *,
        text: str = "",
        failed: bool = False,
    ) -> Self:
        """Add a tool call with its result; `text` is what the model wrote with it."""
        return self._add(Turn("assistant", text, name, dict(arguments or {}), result, failed))

    def work(self, steps: int = 1) -> Self:
        """Continue as a healthy agent does: another file, another finding, each time."""
        for _ in range(steps):
            number = len(self._turns)
            path = _FILES[number % len(_FILES)]
            found = f"{path}, part {number}: " + " ".join(f"line {number * 7 + line}" for line in range(12))
            said = f"Step {number}: I read {path}."
            self.tool("read_file", {"path": path, "from_line": number * 7}, found, text=said)
        return self

    def repeat(self, times: int = 1) -> Self:
        """Repeat the last turn as a looping agent does: equal but for the id of the call."""
        for _ in range(times):
            self._add(self._turns[-1][0])
        return self

    def request(self, **more: Any) -> Json:
        """Return the body of the next request; further fields (`stream=True`) are added to it."""
        items, system = self.items(), self.system
        if self.dialect == "gemini":
            return gemini_request(*items, systemInstruction={"parts": [{"text": system}]}, **more)
        if self.dialect == "bedrock_converse":
            return {"messages": items, "system": [{"text": system}], **more}
        if self.dialect in _ANTHROPIC[1:]:
            body = messages_request(*items, system=system, anthropic_version="x", **more)
            return {name: value for name, value in body.items() if name != "model"}
        more["model"] = self.model
        if self.dialect == "openai_responses":
            return responses_request(*items, instructions=system, **more)
        if self.dialect == "anthropic_messages":
            return messages_request(*items, system=system, **more)
        return chat_request({"role": "system", "content": system}, *items, **more)

    def requests(self, steps: int) -> Iterator[Json]:
        """Return the bodies of a healthy agent's next requests: one now, and one after each step."""
        for _ in range(steps):
            yield self.request()
            self.work()

    def _add(self, turn: Turn) -> Self:
        self._turns.append((turn, f"call_{next(self._ids):06d}" if turn.tool else ""))
        return self

    def items(self) -> list[Json]:
        """Return the messages (items, contents) in the dialect of the conversation, without the system prompt."""
        items: list[Json] = []
        for turn, call_id in self._turns:
            if turn.text and (not turn.tool or self.dialect == "openai_responses"):
                items.append(_said(turn, self.dialect))
            if turn.tool:
                shared: Json = {"call_id": call_id, "dialect": self.dialect}
                items.append(tool_call(turn.tool, turn.arguments, text=turn.text, **shared))
                items.append(tool_result(turn.result, name=turn.tool, failed=turn.failed, **shared))
        return items


def conversation(steps: int = 0, task: str = TASK, *, dialect: str = "openai_chat") -> Conversation:
    """Return a conversation with a number of completed steps."""
    return Conversation(task, dialect=dialect).work(steps)


def _said(turn: Turn, dialect: str) -> Json:
    if dialect == "gemini":
        return {"role": "user" if turn.role == "user" else "model", "parts": [{"text": turn.text}]}
    if dialect == "bedrock_converse":
        return {"role": turn.role, "content": [{"text": turn.text}]}
    return {"role": turn.role, "content": turn.text}
