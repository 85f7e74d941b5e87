"""The demonstration's two agents and their little project: they speak to the gateway as an SDK does (Chat Completions
over HTTP), do what the model says, and add it to their conversation. One gets stuck, the other does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

LOOPING: Final = "looping"
HEALTHY: Final = "healthy"
MISSING: Final = "config.yml"
MODEL: Final = "demo-model"
TASKS: Final = {
    LOOPING: f"Find out from {MISSING} which database this project uses.",
    HEALTHY: "Read every module of this project and tell me what it does.",
}
_PATH: Final = "/v1/chat/completions"
_AREAS: Final = (
    "admin", "audit", "books", "cache", "cart", "coupon", "events", "export", "forms", "images", "login", "mail",
    "menus", "orders", "pages", "prices", "queue", "refund", "report", "search", "ship", "stock", "taxes", "urls",
    "users", "views",
)  # fmt: skip

Json = dict[str, Any]


def _module(number: int, area: str) -> str:
    return "\n".join(f"{area}_{line:02d} = rule({number}, {line})" for line in range(20 + number * 7 % 17))


FILES: Final[Mapping[str, str]] = {f"{area}.py": _module(number, area) for number, area in enumerate(_AREAS)}
# Coding agents send a map of the project with every request; it makes most of what a call costs.
SYSTEM: Final = "You maintain a web shop. Use the tools, one step at a time. The project:\n" + "\n".join(
    f"{area}.py: {area}_{line:02d}(order, region)" for area in _AREAS for line in range(48)
)
TOOLS: Final = [
    {"type": "function", "function": {"name": "list", "parameters": {"type": "object", "properties": {}}}},
    {
        "type": "function",
        "function": {
            "name": "read",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    },
]


@dataclass(frozen=True, slots=True)
class Answered:
    """One request of one agent: what the gateway answered, and what the agent did then."""

    agent: str
    at_s: int
    status: int
    did: str = ""  # `read(config.yml) -> error`
    finished: bool = False
    tokens_in: int = 0
    tokens_out: int = 0
    reason: str = ""  # X-Breakloop-Reason
    retry_after_s: int = 0
    code: str = ""  # of the error object that SDKs read
    message: str = ""

    @property
    def passed(self) -> bool:
        """Tell whether the model has answered."""
        return self.status == 200

    @property
    def blocked(self) -> bool:
        """Tell whether the gateway has answered in the model's stead, and said why."""
        return bool(self.reason)

    @property
    def outcome(self) -> str:
        """What came of it, in a few words."""
        if self.blocked:
            return f"{self.reason}, wait {self.retry_after_s} s"
        return self.did or "failed"


class Agent:
    """Asks, does what it is told, asks again. When it is refused it knows no better than to ask the same once more."""

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self.finished = False
        self._client = client
        self._messages: list[Json] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": TASKS[name]},
        ]

    async def turn(self, at_s: int) -> Answered:
        """Make one request and act on its answer."""
        request = {"model": MODEL, "messages": self._messages, "tools": TOOLS}
        status, headers, content = await self._client.post(_PATH, request)
        if status != 200:
            return _refused(self.name, at_s, status, headers, content.get("error") or {})
        used = content["usage"]
        did = self._act(content["choices"][0]["message"])
        tokens = used["prompt_tokens"], used["completion_tokens"]
        return Answered(self.name, at_s, status, did, self.finished, *tokens)

    def _act(self, said: Json) -> str:
        self._messages.append({"role": "assistant", "content": said["content"], "tool_calls": said.get("tool_calls")})
        if not said.get("tool_calls"):
            self.finished = True
            return "answers: done"
        call = said["tool_calls"][0]
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        result, short = _TOOLS[name](**arguments)
        self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return f"{name}({', '.join(arguments.values())}) -> {short}"


def _refused(agent: str, at_s: int, status: int, headers: Mapping[str, str], error: Json) -> Answered:
    return Answered(
        agent,
        at_s,
        status,
        reason=headers.get("x-breakloop-reason", ""),
        retry_after_s=int(headers.get("retry-after", "0")),
        code=str(error.get("code", "")),
        message=str(error.get("message", "")),
    )


def _list() -> tuple[str, str]:
    return "\n".join(FILES), f"{len(FILES)} files"


def _read(path: str) -> tuple[str, str]:
    text = FILES.get(path)
    if text is None:
        return f"Error: there is no file {path}", "error"
    return text, f"{text.count(chr(10)) + 1} lines"


_TOOLS: Final[Mapping[str, Callable[..., tuple[str, str]]]] = {"list": _list, "read": _read}


class Client:
    """Just enough HTTP for one keep-alive connection to our own server."""

    def __init__(self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._host = host
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        """Connect to a port of this machine."""
        return cls(f"127.0.0.1:{port}", *await asyncio.open_connection("127.0.0.1", port))

    async def post(self, path: str, content: Json) -> tuple[int, dict[str, str], Json]:
        """Send a JSON object; return status, header fields (names in lower case) and the object that came back."""
        body = json.dumps(content).encode()
        # Both agents use one key: what they do tells them apart.
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer demo\r\nAccept: application/json\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        answered = await self._reader.readexactly(int(headers["content-length"]))
        return int(first.split(" ")[1]), headers, json.loads(answered)

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        await self._writer.wait_closed()
