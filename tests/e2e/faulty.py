"""What tests of failing upstreams share: requests of every dialect, and how an error of ours looks in each."""

from __future__ import annotations

import json
import socket
from typing import Any

from breakloop.testing import PATHS, chat_request, gemini_request, mcp_call, messages_request, responses_request
from tests.e2e.proxied import JSON, Proxied, fresh
from tests.e2e.raw_client import RawClient, Received, request

DIALECTS = (*PATHS, "")


class FullUp:
    """The URL of a port where connecting takes for ever: its queue is full, and nobody takes from it."""

    def __enter__(self) -> str:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self._waiting = [socket.socket() for _ in range(4)]
        for one in self._waiting:
            one.setblocking(False)
            one.connect_ex(self._listener.getsockname())
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        for one in (*self._waiting, self._listener):
            one.close()


def bodies(dialect: str) -> dict[str, Any]:
    """A request's body."""
    text = fresh()
    made: dict[str, dict[str, Any]] = {
        "openai_chat": chat_request(text),
        "openai_responses": responses_request(text),
        "openai_completions": {"model": "m", "prompt": text},
        "openai_embeddings": {"model": "m", "input": text},
        "anthropic_messages": messages_request(text),
        "gemini": gemini_request(text),
        "mcp": mcp_call("echo", {"text": text}, call_id="call-7"),
        "ollama_chat": chat_request(text),
        "ollama_generate": {"model": "m", "prompt": text},
        "cohere_chat": chat_request(text),
        "vertex_anthropic": messages_request(text, anthropic_version="vertex-2023-10-16"),
        "bedrock_anthropic": messages_request(text, anthropic_version="bedrock-2023-05-31"),
        "bedrock_chat": chat_request(text),
        "bedrock_converse": {"messages": [{"role": "user", "content": [{"text": text}]}]},
        "mistral_conversations": {"model": "m", "inputs": text},
        "": {"text": text},
    }
    return made[dialect]


def ask(client: RawClient, dialect: str, prefix: str = "") -> None:
    """Send a request of a dialect, perhaps to a named upstream."""
    path = prefix + (PATHS[dialect] if dialect else "/things")
    client.send(request("POST", path, json.dumps(bodies(dialect)).encode(), JSON))


def check_error(found: Received, dialect: str, status: int, said: str) -> None:
    """The status, our own account of it, and the dialect's error beside it."""
    assert found.status == status, found.body
    content = found.json()
    code = {502: "upstream_failed", 504: "upstream_timeout"}[status]
    assert content["detail"]["error"] == code
    assert said in content["detail"]["message"]
    assert found["x-breakloop-request-id"]
    assert found["content-type"] == "application/json"
    if dialect.startswith("openai"):
        assert (content["error"]["type"], content["error"]["code"]) == ("server_error", code)
    elif dialect in {"anthropic_messages", "vertex_anthropic", "bedrock_anthropic"}:
        kind = "timeout_error" if status == 504 else "api_error"
        assert (content["type"], content["error"]["type"]) == ("error", kind)
        assert content["request_id"] == found["x-breakloop-request-id"]
    elif dialect == "gemini":
        kind = "DEADLINE_EXCEEDED" if status == 504 else "INTERNAL"
        assert (content["error"]["code"], content["error"]["status"]) == (status, kind)
    elif dialect == "mcp":
        assert (content["jsonrpc"], content["id"]) == ("2.0", "call-7")
        assert content["error"]["code"] == -32000
    elif dialect.startswith("ollama"):
        assert said in content["error"]
        return
    elif dialect.startswith("bedrock"):
        assert content["__type"].endswith("Exception")
    elif dialect == "mistral_conversations":
        assert (content["object"], content["code"]) == ("error", code)
    elif dialect == "cohere_chat":
        assert content["id"] == found["x-breakloop-request-id"]
    else:
        assert set(content) == {"detail"}
    if dialect:
        assert said in content.get("error", content)["message"]


def drop_idle(proxy: Proxied) -> None:
    """Let the upstream close every connection that is kept, so that the next request gets a new one."""

    def drop() -> None:
        for connection in tuple(proxy.llm.llm._live.values()):
            if connection.seen is None:
                connection.abort()

    proxy.llm._thread.call(drop)
    proxy.llm.wait_until(lambda: all(one.seen is not None for one in proxy.llm.llm._live.values()))
    with proxy.client() as client:  # by the time that this is answered, the gateway has seen the end of the others
        client.ask("GET", "/livez")
        assert client.answer().status == 200
