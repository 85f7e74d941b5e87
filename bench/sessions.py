"""What a session takes in Redis: agents that get on go their steps through the proxy, then Redis is asked."""

from __future__ import annotations

import hashlib
import http.client
import json
from dataclasses import dataclass
from typing import Any

import redis

from bench import chat, programs

SESSIONS, STEPS = 20, 30
_PATTERN = "bl:*"
_WINDOWS = b":win:"
_COUNTS = (b":cnt:", b":ld:", b":cool:")


@dataclass(frozen=True, slots=True)
class SessionBytes:
    """Per session, after its last step."""

    packed: float  # keys and values of what is remembered of it
    windows: float  # the same as Redis counts it, with what it needs around them
    counters: float  # of the requests of the last minute, as Redis counts them


def measure_sessions(program: programs.Program, redis_port: int) -> SessionBytes:
    """Let sessions go their steps through a proxy whose Redis has nothing else, which is emptied then."""
    connection = http.client.HTTPConnection("127.0.0.1", program.port)
    for session in range(SESSIONS):
        for step in range(STEPS):
            _go(connection, session, step)
    connection.close()
    with redis.Redis(port=redis_port) as client:
        packed = windows = counters = 0
        for key in client.scan_iter(_PATTERN):
            if _WINDOWS in key:
                packed += len(key) + int(client.strlen(key))
                windows += int(client.memory_usage(key) or 0)
            elif any(kind in key for kind in _COUNTS):
                counters += int(client.memory_usage(key) or 0)
        client.flushdb()
    return SessionBytes(packed / SESSIONS, windows / SESSIONS, counters / SESSIONS)


def _go(connection: http.client.HTTPConnection, session: int, step: int) -> None:
    headers = {"Authorization": f"Bearer {chat.API_KEY}{session}", "Content-Type": "application/json"}
    connection.request("POST", chat.PATH, json.dumps(_request(session, step)), headers)
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise SystemExit(f"bench: step {step} of session {session} got {answer.status}")


def _request(session: int, step: int) -> dict[str, Any]:
    """Each tool call is another one, and what it finds is new."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Find out how harbour {session} opens."}]
    for number in range(step):
        arguments = json.dumps({"path": f"harbour-{session}/file-{number}.txt"})
        calls = [
            {"id": f"call_{number}", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
        ]
        found = " ".join(hashlib.sha256(b"%d %d %d" % (session, number, word)).hexdigest()[:7] for word in range(40))
        messages += [{"role": "assistant", "content": None, "tool_calls": calls}]
        messages += [{"role": "tool", "tool_call_id": f"call_{number}", "content": found}]
    return {"model": chat.MODEL, "messages": messages}
