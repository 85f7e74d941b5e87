"""A gateway process in front of a stand-in, as the tests of the proxy use it, and a request of each dialect."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from breakloop.testing import (
    PATHS,
    StandInLLM,
    ThreadedLLM,
    chat_request,
    gemini_request,
    mcp_call,
    messages_request,
    responses_request,
)
from tests.e2e.raw_client import RawClient, request
from tests.e2e.served import Served, serving

MIB = 1024 * 1024
CHAT = PATHS["openai_chat"]
JSON = "Content-Type: application/json"
OCTETS = "Content-Type: application/octet-stream"
_FRESH = itertools.count(1)

Json = dict[str, Any]


class Proxied:
    """The two, and clients of the first."""

    def __init__(self, served: Served, llm: ThreadedLLM) -> None:
        self.served = served
        self.llm = llm

    def client(self, **options: Any) -> RawClient:
        return RawClient(self.served.port, **options)

    def seen_since(self, count: int) -> list[str]:
        """What has come to the stand-in since it had seen so many requests."""
        return [f"{seen.method} {seen.target}" for seen in self.llm.requests if seen.number > count]

    def memory_mib(self, what: str = "VmRSS") -> float:
        """Resident memory of the gateway: now, or its peak (`VmHWM`)."""
        status = Path(f"/proc/{self.served.process.pid}/status").read_text()
        found = re.search(rf"{what}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024


@contextmanager
def proxied(folder: Path, *arguments: str, **environment: str) -> Iterator[Proxied]:
    """Run both; the stand-in is every built-in upstream."""
    with StandInLLM.in_thread() as llm:
        names = [part for name in UPSTREAMS for part in ("--upstream", f"{name}={llm.url}")]
        with serving(folder, *names, *arguments, **environment) as served:
            yield Proxied(served, llm)


@contextmanager
def one_test(both: Proxied) -> Iterator[Proxied]:
    """Answers that one test queued and did not use must not reach the next."""
    try:
        yield both
        assert both.llm.llm.left == 0
        assert both.llm.malformed == []
    finally:
        both.llm.llm._queue.clear()
        both.llm.malformed.clear()
        both.llm.resume()


def fresh(text: str = "Tell me") -> str:
    """A text that was not used before: repeating one is what loops do."""
    return f"{text} {next(_FRESH)}"


UPSTREAMS = ("openai", "anthropic", "gemini", "ollama", "cohere", "bedrock", "mistral", "vertex")


def streaming(dialect: str) -> tuple[str, Json, list[str]]:
    """Path, body and further header lines of a request of that dialect that wants a stream."""
    text = fresh()
    made: dict[str, tuple[str, Json, list[str]]] = {
        "openai_chat": (CHAT, chat_request(text, stream=True), []),
        "openai_responses": (PATHS["openai_responses"], responses_request(text, stream=True), []),
        "openai_completions": (PATHS["openai_completions"], {"model": "m", "prompt": text, "stream": True}, []),
        "anthropic_messages": (PATHS["anthropic_messages"], messages_request(text, stream=True), []),
        "gemini": ("/v1beta/models/m:streamGenerateContent?alt=sse", gemini_request(text), []),
        "gemini_array": ("/v1beta/models/m:streamGenerateContent", gemini_request(text), []),
        "mcp": ("/mcp", _with_progress(text), ["Accept: application/json, text/event-stream"]),
    }
    return made[dialect]


STREAMING = (
    "openai_chat",
    "openai_responses",
    "openai_completions",
    "anthropic_messages",
    "gemini",
    "gemini_array",
    "mcp",
)


def _with_progress(text: str) -> Json:
    made = mcp_call("echo", {"text": text})
    made["params"]["_meta"] = {"progressToken": text}
    return made


def stream_request(dialect: str, *lines: str, version: str = "1.1") -> bytes:
    """The same as bytes."""
    path, body, more = streaming(dialect)
    return request("POST", path, json.dumps(body).encode(), JSON, *more, *lines, version=version)


def chat(text: str = "", *lines: str, version: str = "1.1", **more: Any) -> bytes:
    """A chat request as bytes, with a text that is new unless given."""
    body = json.dumps(chat_request(text or fresh(), **more)).encode()
    return request("POST", CHAT, body, JSON, *lines, version=version)
