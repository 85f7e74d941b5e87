"""Plain data for tests: request bodies of each dialect, messages with tool calls and results, bundles and policies.

Whole conversations that grow are `conversation`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

Json = dict[str, Any]

MODEL: Final = "stand-in"
PATHS: Final = {  # where each dialect's requests go
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "openai_completions": "/v1/completions",
    "openai_embeddings": "/v1/embeddings",
    "anthropic_messages": "/v1/messages",
    "gemini": f"/v1beta/models/{MODEL}:generateContent",
    "mcp": "/mcp",
}

# -- requests


def chat_request(*messages: Json | str, model: str = MODEL, **more: Any) -> Json:
    """Return a body for Chat Completions; a text is a message of the user."""
    return {"model": model, "messages": [_message(message) for message in messages or ("Hello.",)], **more}


def messages_request(*messages: Json | str, model: str = MODEL, max_tokens: int = 1024, **more: Any) -> Json:
    """Return a body for Anthropic's Messages."""
    listed = [_message(message) for message in messages or ("Hello.",)]
    return {"model": model, "max_tokens": max_tokens, "messages": listed, **more}


def responses_request(*items: Json | str, model: str = MODEL, **more: Any) -> Json:
    """Return a body for Responses; a text is a message of the user, one text alone is the whole input."""
    if len(items) <= 1 and not isinstance(items[0] if items else "", dict):
        return {"model": model, "input": items[0] if items else "Hello.", **more}
    return {"model": model, "input": [_message(item) for item in items], **more}


def gemini_request(*contents: Json | str, **more: Any) -> Json:
    """Return a body for `generateContent`; a text is a turn of the user. The model stands in the path."""
    listed = [
        {"role": "user", "parts": [{"text": content}]} if isinstance(content, str) else content
        for content in contents or ("Hello.",)
    ]
    return {"contents": listed, **more}


def mcp_call(name: str = "echo", arguments: Mapping[str, Any] | None = None, *, call_id: int | str = 1) -> Json:
    """Return the body of an MCP tool call."""
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
    """Return the model's wish to call a tool: a message, or for Responses an item (which carries no text)."""
    given = dict(arguments or {})
    if dialect == "openai_responses":
        return {"type": "function_call", "call_id": call_id, "name": name, "arguments": json.dumps(given)}
    if dialect == "anthropic_messages":
        said = [{"type": "text", "text": text}] if text else []
        use = {"type": "tool_use", "id": call_id, "name": name, "input": given}
        return {"role": "assistant", "content": [*said, use]}
    if dialect == "gemini":
        parts: list[Json] = [{"text": text}] if text else []
        return {"role": "model", "parts": [*parts, {"functionCall": {"name": name, "args": given}}]}
    function = {"name": name, "arguments": json.dumps(given)}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": "assistant", "content": text or None, "tool_calls": calls}


def tool_result(
    text: str,
    *,
    call_id: str = "call_1",
    name: str = "tool",
    failed: bool = False,
    dialect: str = "openai_chat",
) -> Json:
    """Return what the tool gave back. Gemini goes by the tool's name, the others by the id of the call."""
    if dialect == "openai_responses":
        return {"type": "function_call_output", "call_id": call_id, "output": text}
    if dialect == "anthropic_messages":
        result: Json = {"type": "tool_result", "tool_use_id": call_id, "content": text}
        return {"role": "user", "content": [result | ({"is_error": True} if failed else {})]}
    if dialect == "gemini":
        response = {"error" if failed else "output": text}
        return {"role": "user", "parts": [{"functionResponse": {"name": name, "response": response}}]}
    return {"role": "tool", "tool_call_id": call_id, "content": text}


# -- bundles


def bundle(*policies: Json, version: int = 1, **top: Any) -> Json:
    """Return a bundle."""
    return {"bundle_version": version, "policies": list(policies), **top}


def loop_policy(name: str = "loops", *, prefix: str = "/", mode: str = "enforce", **detector: Any) -> Json:
    """Return a policy that looks for loops: `tail` with its defaults, unless `detector` says otherwise."""
    block = detector or {"similarity": "tail"}
    return {"id": name, "spec": {"selector": {"pathPrefix": prefix}, "mode": mode, "loop_detection": block}}


def limit_policy(
    name: str = "limits", *, rate: float = 1, burst: float = 1, keys: Iterable[str] = (), prefix: str = "/"
) -> Json:
    """Return a policy with one token bucket."""
    config = {"tokens_per_second": rate, "burst": burst}
    rule = {"name": "bucket", "limit_keys": list(keys), "algorithm": "token_bucket", "algorithm_config": config}
    return {"id": name, "spec": {"selector": {"pathPrefix": prefix}, "rules": [rule]}}
