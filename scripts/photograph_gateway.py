"""Part of `scripts.photograph`: a real server in front of the stand-in LLM, a scripted set of requests over plain
sockets, and everything that came back, that the upstream saw, and that the server left on disk."""

from __future__ import annotations

import gzip
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from breakloop.testing import (
    PATHS,
    Conversation,
    StandInLLM,
    ThreadedLLM,
    call_tool,
    chat_request,
    cut,
    fail,
    gemini_request,
    mcp_call,
    messages_request,
    responses_request,
    say,
)
from scripts.photograph_files import digest, write_lines
from scripts.photograph_surface import shape_lines

Json = dict[str, Any]

DEADLINE_S: Final = 20.0
POLL_S: Final = 0.5
POLLS_SAME: Final = 5
POLLS_MOST: Final = 40
TOKEN: Final = "photograph-admin-token"
SECRET: Final = "photograph-secret-photograph-secret"
DEBUG: Final = "photograph-debug-secret"

_POLICY: Final = """\
bundle_version: 7
policies:
  - id: chat
    spec:
      selector: {pathPrefix: /v1}
      rules:
        - name: requests
          limit_keys: [agent:id]
          match: {header:x-scene: bucket}
          algorithm: token_bucket
          algorithm_config: {tokens_per_second: 0.001, burst: 3}
        - name: prompts
          limit_keys: [agent:id]
          match: {header:x-scene: tokens}
          algorithm: token_bucket_llm
          algorithm_config:
            tokens_per_minute: 500
            max_prompt_tokens: 100
            max_completion_tokens: 8
            default_max_completion: 8
            enforce_mid_stream: true
        - name: money
          limit_keys: [agent:id]
          match: {header:x-scene: money}
          algorithm: cost_based
          algorithm_config:
            budget: 3
            period: 30d
            cost_key: header:x-cost
            staged_actions:
              - {threshold_percent: 30, action: warn}
              - {threshold_percent: 60, action: throttle, delay_ms: 30}
              - {threshold_percent: 100, action: reject}
        - name: team
          limit_keys: [header:x-team]
          match: {header:x-scene: team}
          on_missing: reject
          algorithm: token_bucket
          algorithm_config: {rps: 1, burst: 5}
      loop_detection:
        - {similarity: steps, ladder: {notice: steer, block: reject, stop: kill}}
        - {similarity: tail, max_hits: 3}
  - id: orders
    spec:
      selector: {pathPrefix: /orders}
      deny_status: 503
      loop_detection: {similarity: exact, enabled: true, window_seconds: 600, threshold_identical_requests: 3}
  - id: tools
    spec:
      selector: {pathPrefix: /mcp}
      loop_detection: {similarity: steps}
  - id: watched
    spec:
      selector: {pathPrefix: /v1beta}
      mode: shadow
      loop_detection: {similarity: tail, max_hits: 1}
kill_switches:
  - {scope_key: header:x-org, scope_value: evil, reason: abuse}
agents:
  "off-*": {active: false}
  "short-*": {max_steps_per_run: 2}
"""

# What differs from run to run, and what stands for it.
_MASKS: Final = (
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
    (re.compile(r"(?i)^(date: ).*"), r"\1*"),
    (re.compile(r"(?i)^(retry-after(?:-ms)?: ).*"), r"\1*"),
    (re.compile(r"(?i)^(ratelimit-reset: ).*"), r"\1*"),
    (re.compile(r";t=\d+"), ";t=*"),
    (re.compile(r"(?i)^(x-breakloop-(?:request|result)-id: ).*"), r"\1*"),
    (re.compile(r"(?i)^(content-length: ).*"), r"\1*"),  # bodies are compared as they are
    (re.compile(r"(?i)^(x-breakloop-debug-latency[^:]*: ).*"), r"\1*"),
    (re.compile(r"(?i)(breakloop_debug=)[^;]+"), r"\1*"),
    (re.compile(r"(seconds\"?: ?)\d+(?:\.\d+)?"), r"\1*"),
    (re.compile(r"\d+ seconds?\b"), "* seconds"),
    (re.compile(r"(?i)(x-breakloop-hop\W+)[0-9a-f]{16}"), r"\1*"),
    (re.compile(r"(\"id\":\")[0-9a-f]{8}\b"), r"\1*"),
    (re.compile(r"\b[0-9a-f]{32}\.json"), "*.json"),
    (re.compile(r"(retryDelay\": ?\")\d+"), r"\1*"),
    (re.compile(r"\b1[6-9]\d{8}(?:\.\d+)?\b|\b2\d{9}(?:\.\d+)?\b"), "TIME"),
    (re.compile(r"\b20\d\d-\d\d-\d\dT[0-9:.]+(?:Z|\+00:00)"), "TIME"),
)


def masked(text: str, *ids: str) -> str:
    """Return a line without what differs from run to run."""
    for one in ids:
        if one:
            text = text.replace(one, "REQUEST-ID")
    for pattern, instead in _MASKS:
        text = pattern.sub(instead, text)
    return text


class Received(NamedTuple):
    """One answer, put together."""

    status: str
    fields: list[tuple[str, str]]
    body: bytes

    def field(self, name: str) -> str:
        """Return the value of a field, or ""."""
        return next((value for key, value in self.fields if key.lower() == name), "")

    def lines(self) -> Iterator[str]:
        """The answer as text, in an order that does not depend on chance."""
        request_id = self.field("x-breakloop-request-id")
        yield f"  {self.status}"
        for name, value in sorted(self.fields, key=lambda one: (one[0].lower(), one[1])):
            shown = ", ".join(sorted(value.split(", "))) if name.lower() == "allow" else value
            yield f"  {masked(f'{name}: {shown}', request_id)}"
        body = self.body
        if self.field("content-encoding") == "gzip":
            body = gzip.decompress(body)
        for line in body.decode("utf-8", "backslashreplace").splitlines():
            yield f"  | {masked(line, request_id)}"


def exchange(port: int, raw: bytes) -> Received:
    """Send bytes on a new connection, and read until it ends."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
        connection.sendall(raw)
        pieces = []
        try:
            while piece := connection.recv(65536):
                pieces.append(piece)
        except ConnectionResetError:
            pieces.append(b"")
    return parsed(b"".join(pieces))


def parsed(data: bytes) -> Received:
    """Take an answer apart; several informational ones before it are left out."""
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    if lines[0].split(" ")[1:2] == ["100"]:
        return parsed(body)
    fields = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])]
    if ("chunked") in [value.lower() for name, value in fields if name.lower() == "transfer-encoding"]:
        body = _dechunked(body)
    return Received(lines[0], fields, body)


def _dechunked(data: bytes) -> bytes:
    pieces = []
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size.partition(b";")[0] or b"0", 16)
        if not length:
            break
        pieces.append(data[:length])
        data = data[length + 2 :]
    return b"".join(pieces)


def http(method: str, target: str, body: Any = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """A request as bytes, on a connection that ends with it."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Host": "gateway.example", "Connection": "close", **(headers or {})}
    if content or method in {"POST", "PUT", "PATCH"}:
        # Each request is an agent's of its own, unless it names one; so is its caller, or all would be quarantined.
        agent = fields.setdefault("X-Agent-Id", f"agent-{digest(target.encode() + content)[:8]}")
        length = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        fields = {**length, "Authorization": f"Bearer sk-{agent}", **fields}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + content


# -- the server --------------------------------------------------------------------------------------------------------


class Running(NamedTuple):
    """A server under way."""

    port: int
    admin: int
    llm: ThreadedLLM
    banner: list[str]


@contextmanager
def running(folder: Path) -> Iterator[Running]:
    """Run the server with a policy, all upstreams being the stand-in."""
    (folder / "policy.yaml").write_text(_POLICY, encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("BREAKLOOP_", "XDG_"))}
    clean |= {
        "HOME": str(folder),
        "BREAKLOOP_SECRET": SECRET,
        "BREAKLOOP_ADMIN_TOKEN": TOKEN,
        "BREAKLOOP_DEBUG_SECRET": DEBUG,
    }
    with StandInLLM.in_thread() as llm, (folder / "log").open("wb") as log, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        admin: int = probe.getsockname()[1]
        probe.close()
        names = [part for name in ("openai", "anthropic", "gemini") for part in ("--upstream", f"{name}={llm.url}")]
        options = ["--port", "0", "--admin-port", str(admin), "--policy", "policy.yaml", "--data-dir", "data", *names]
        command = [sys.executable, "-m", "breakloop", "serve", *options]
        process = subprocess.Popen(command, cwd=folder, env=clean, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            banner = _ready(process, folder)
            found = re.search(r"127\.0\.0\.1:(\d+)", banner[-1])
            assert found is not None, banner  # noqa: S101 - the last line names the address
            yield Running(int(found[1]), admin, llm, banner)
            process.terminate()
            process.wait(DEADLINE_S)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None  # noqa: S101 - a pipe was asked for
            process.stdout.close()


def _ready(process: subprocess.Popen[str], folder: Path) -> list[str]:
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    banner = []
    for line in process.stdout:
        banner.append(line.rstrip())
        if "ready on" in line:
            return banner
    raise RuntimeError(f"the server did not start: {(folder / 'log').read_text(encoding='utf-8')}")


# -- the script --------------------------------------------------------------------------------------------------------

_STREAMED: Final = {
    "openai_chat": (PATHS["openai_chat"], chat_request("Stream a word.", stream=True)),
    "openai_responses": (PATHS["openai_responses"], responses_request("Stream a word.", stream=True)),
    "openai_completions": (PATHS["openai_completions"], {"model": "m", "prompt": "Stream it.", "stream": True}),
    "anthropic_messages": (PATHS["anthropic_messages"], messages_request("Stream a word.", stream=True)),
    "gemini": ("/v1beta/models/m:streamGenerateContent?alt=sse", gemini_request("Stream a word.")),
    "gemini array": ("/v1beta/models/m:streamGenerateContent", gemini_request("Stream another word.")),
}
_PLAIN: Final = {
    "openai_chat": (PATHS["openai_chat"], chat_request("Say a word.")),
    "openai_responses": (PATHS["openai_responses"], responses_request("Say a word.")),
    "openai_completions": (PATHS["openai_completions"], {"model": "m", "prompt": "Say a word."}),
    "openai_embeddings": (PATHS["openai_embeddings"], {"model": "m", "input": ["one", "two"]}),
    "anthropic_messages": (PATHS["anthropic_messages"], messages_request("Say a word.")),
    "anthropic count": ("/v1/messages/count_tokens", messages_request("Count this.")),
    "gemini": (PATHS["gemini"], gemini_request("Say a word.")),
    "mcp": (PATHS["mcp"], mcp_call("echo", {"text": "hello"})),
    "mcp list": (PATHS["mcp"], {"jsonrpc": "2.0", "id": 3, "method": "tools/list"}),
    "unknown": ("/v1/unknown", {"a": 1}),
}
_AGENT: Final = "X-Agent-Id"
_CUT: Final = ("upstream repeats itself", "tokens a minute")  # scenes whose streamed answer may be cut

Scene = tuple[str, bytes]


def scenes() -> Iterator[Scene]:
    """Everything that is asked of the traffic port, in order."""
    for name, (path, body) in _PLAIN.items():
        yield f"{name} allowed", http("POST", path, body, {_AGENT: f"plain-{name}", "Authorization": "Bearer sk-photo"})
    for name, (path, body) in _STREAMED.items():
        yield f"{name} streamed", http("POST", path, body, {_AGENT: f"stream-{name}"})
    yield "models", http("GET", "/v1/models")
    yield "agent in the path", http("POST", f"/agents/bot{PATHS['openai_chat']}", chat_request("By path."))
    yield "upstream in the path", http("POST", "/upstreams/anthropic/v1/messages", messages_request("By upstream."))
    yield from _denials()
    yield from _loops()
    yield from _decisions()
    yield from _odd()


def _denials() -> Iterator[Scene]:
    for name, (path, body) in [*_PLAIN.items(), *_STREAMED.items()]:
        yield f"{name} stopped by a kill switch", http("POST", path, body, {"X-Org": "evil", _AGENT: "x"})
    for number in range(5):
        body = {"model": "m", "input": str(number)}
        headers = {"X-Scene": "bucket", _AGENT: "bucket"}
        yield f"token bucket {number}", http("POST", PATHS["openai_embeddings"], body, headers)
    long = chat_request("word " * 400)
    yield "prompt too long", http("POST", PATHS["openai_chat"], long, {"X-Scene": "tokens", _AGENT: "tokens"})
    for number in range(3):
        body = chat_request(f"Question {number}", max_tokens=200, stream=True)
        headers = {"X-Scene": "tokens", _AGENT: "tokens"}
        yield f"tokens a minute {number}", http("POST", PATHS["openai_chat"], body, headers)
    for number in range(5):
        headers = {"X-Scene": "money", "X-Cost": "1", _AGENT: "money"}
        yield f"budget {number}", http("POST", PATHS["anthropic_messages"], messages_request(f"Q {number}"), headers)
    yield "missing descriptor", http("POST", PATHS["openai_chat"], chat_request("Team?"), {"X-Scene": "team"})
    yield "inactive agent", http("POST", PATHS["openai_chat"], chat_request("Off?"), {_AGENT: "off-1"})
    for number in range(4):
        headers = {_AGENT: "short-1", "X-Agent-Session": "short"}
        yield f"run limit {number}", http("POST", PATHS["openai_chat"], chat_request(f"Step {number}"), headers)


def _loops() -> Iterator[Scene]:
    for dialect in ("openai_chat", "openai_responses", "anthropic_messages", "gemini"):
        talk = Conversation(dialect=dialect).work(2)
        for number in range(9):
            headers = {_AGENT: f"loop-{dialect}", "X-Agent-Session": f"s-{dialect}"}
            streamed = {"stream": True} if number % 2 and dialect != "gemini" else {}
            yield f"loop {dialect} {number}", http("POST", PATHS[dialect], talk.request(**streamed), headers)
            talk.tool("run_tests", {"target": "all"}, "1 failed: test_app", failed=True)
    for number in range(7):
        body = mcp_call("search", {"q": "same"}, call_id=number)
        headers = {_AGENT: "loop-mcp", "Mcp-Session-Id": "m-1", "Accept": "application/json, text/event-stream"}
        yield f"loop mcp {number}", http("POST", PATHS["mcp"], body, headers)
    for number in range(4):
        yield f"exact {number}", http("POST", "/orders", {"id": 1}, {_AGENT: "orders"})
        packed = gzip.compress(b'{"id": 2}', mtime=0)
        yield f"exact gzip {number}", http("POST", "/orders", packed, {"Content-Encoding": "gzip", _AGENT: "orders"})


def _decisions() -> Iterator[Scene]:
    body = chat_request("May I?")
    asked = {
        "X-Original-URI": "/v1/chat/completions?a=1",
        "X-Original-Method": "POST",
        "X-Original-Host": "api.example",
    }
    evil = {**asked, "X-Org": "evil"}
    yield "decision allowed", http("POST", "/v1/decision", body, asked)
    yield "decision denied", http("POST", "/v1/decision", body, evil)
    yield "decision problem", http("POST", "/v1/decision", body, {**evil, "Accept": "application/problem+json"})
    yield (
        "decision anthropic",
        http("POST", "/v1/decision", messages_request(), {**evil, "X-Original-URI": "/v1/messages"}),
    )
    yield "decision gemini", http("POST", "/v1/decision", gemini_request(), {**evil, "X-Original-URI": PATHS["gemini"]})
    yield "decision mcp", http("POST", "/v1/decision", mcp_call(), {**evil, "X-Original-URI": "/mcp"})
    yield "decision get", http("GET", "/v1/decision", headers=asked)
    yield "decision head", http("HEAD", "/v1/decision", headers=evil)
    yield (
        "decision forwarded",
        http("GET", "/v1/decision", headers={"X-Forwarded-Uri": "/orders", "X-Forwarded-Method": "PUT"}),
    )
    yield "decision contradiction", http("POST", "/v1/decision", body, {**asked, "X-Forwarded-Uri": "/other"})
    yield "decision nginx allowed", http("GET", "/v1/decision/nginx", headers=asked)
    yield "decision nginx denied", http("GET", "/v1/decision/nginx", headers=evil)
    yield "decision envoy allowed", http("POST", "/v1/decision/envoy/v1/chat/completions", body)
    yield "decision envoy denied", http("POST", "/v1/decision/envoy/orders", {"id": 3}, {"X-Org": "evil"})
    yield "result of nothing", http("POST", "/v1/decision/none/result", {"status": 200})
    yield "result not JSON", http("POST", "/v1/decision/none/result", b"{")
    yield "result by GET", http("GET", "/v1/decision/none/result")
    yield "debug session", http("POST", "/v1/debug/session", headers={"X-Breakloop-Debug-Secret": DEBUG})
    yield "debug session, wrong secret", http("POST", "/v1/debug/session", headers={"X-Breakloop-Debug-Secret": "no"})
    yield "debug logout", http("POST", "/v1/debug/logout")
    yield "live", http("GET", "/livez")
    yield "ready", http("GET", "/readyz")


def _odd() -> Iterator[Scene]:
    chat = PATHS["openai_chat"]
    packed = gzip.compress(json.dumps(chat_request("Packed.")).encode(), mtime=0)
    yield "gzip body", http("POST", chat, packed, {"Content-Encoding": "gzip"})
    yield "gzip body that is none", http("POST", chat, b"not gzip", {"Content-Encoding": "gzip"})
    yield "gzip body, denied", http("POST", chat, packed, {"Content-Encoding": "gzip", "X-Org": "evil"})
    yield "unknown coding", http("POST", chat, b"xyz", {"Content-Encoding": "compress"})
    yield "not JSON", http("POST", chat, b"{nonsense")
    yield "empty body", http("POST", chat, b"")
    yield "not a request", b"nonsense\r\n\r\n"
    yield "bad version", b"GET / HTTP/3.0\r\nHost: x\r\n\r\n"
    yield "no host", b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n"
    yield "two hosts", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n"
    yield "space before the colon", b"GET / HTTP/1.1\r\nHost : a\r\nConnection: close\r\n\r\n"
    yield "two lengths", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"
    smuggled = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    yield "length and chunks", smuggled
    yield "bad chunk", b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n"
    content = json.dumps(chat_request("In chunks.")).encode()
    framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    yield "chunked body", head + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + framed
    yield "http 1.0", b"GET /livez HTTP/1.0\r\n\r\n"
    yield "connect", b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n"
    yield "long target", http("GET", "/" + "a" * 70_000)
    yield "long head", http("GET", "/", headers={"X-Long": "a" * 140_000})
    yield "admin token", http("GET", "/v1/models", headers={"Authorization": f"Bearer {TOKEN}"})


def upstream_scenes(llm: ThreadedLLM) -> Iterator[Scene]:
    """Answers of the upstream that are not plain; each is put in line right before its request."""
    chat, messages = PATHS["openai_chat"], PATHS["anthropic_messages"]
    llm.next(fail(429, retry_after=2))
    yield "upstream busy", http("POST", chat, chat_request("Busy?"))
    llm.next(fail(500))
    yield "upstream fails", http("POST", messages, messages_request("Broken?"))
    llm.next(call_tool("read_file", {"path": "a.txt"}))
    yield "upstream calls a tool", http("POST", chat, chat_request("Call."))
    llm.next(say("Packed answer.").compressed())
    yield "upstream compresses", http("POST", chat, chat_request("Pack."), {"Accept-Encoding": "gzip"})
    llm.next(say("I go on and on. " * 400))
    yield "upstream repeats itself", http("POST", chat, chat_request("Repeat.", stream=True))
    llm.next(say("I go on and on. " * 400))
    yield "upstream repeats itself to Anthropic", http("POST", messages, messages_request("Repeat.", stream=True))
    llm.next(cut())
    yield "upstream cuts", http("POST", chat, chat_request("Cut."))
    llm.next(say("With usage.").with_usage(100, 5, cached=10, reasoning=2))
    yield "upstream tells usage", http("POST", PATHS["openai_responses"], responses_request("Usage."))


def admin_scenes() -> Iterator[Scene]:
    """Everything that is asked of the admin port, in order."""
    token = {"Authorization": f"Bearer {TOKEN}", "Host": "127.0.0.1"}
    local = {"Host": "127.0.0.1"}
    yield "no token", http("GET", "/api/v1/status", headers=local)
    yield "wrong token", http("GET", "/api/v1/status", headers={**local, "Authorization": "Bearer no"})
    yield "wrong host", http("GET", "/api/v1/status", headers={**token, "Host": "evil.example"})
    yield "unknown path", http("GET", "/api/v1/nothing", headers=token)
    yield "wrong method", http("DELETE", "/api/v1/status", headers=token)
    yield "kill", http("POST", "/api/v1/agents/doomed/kill", {"reason": "photograph"}, token)
    yield "kill without a body", http("POST", "/api/v1/agents/doomed/kill", b"", token)
    yield "unknown field", http("POST", "/api/v1/agents/doomed/kill", {"reasons": 1}, token)
    switch = {"scope_key": "agent:id", "scope_value": "switched", "reason": "photograph"}
    yield "switch", http("POST", "/api/v1/kill-switches", switch, token)
    yield "switch, bad", http("POST", "/api/v1/kill-switches", {"scope_key": "nothing"}, token)
    yield "switches", http("GET", "/api/v1/kill-switches", headers=token)
    yield "overrides", http("GET", "/api/v1/overrides", headers=token)
    yield "breakers", http("GET", "/api/v1/breakers", headers=token)
    yield "policies", http("GET", "/api/v1/bundle/policies", headers=token)
    yield (
        "validate",
        http(
            "POST",
            "/api/v1/bundle/validate",
            b"bundle_version: 0\npolicies: {}\n",
            {**token, "Content-Type": "application/yaml"},
        ),
    )
    yield "webhooks", http("GET", "/api/v1/webhooks", headers=token)
    yield "alert rules", http("GET", "/api/v1/alerts/rules", headers=token)
    yield "live", http("GET", "/livez", headers=local)
    yield "dashboard", http("GET", "/", headers=local)


def after_orders() -> Iterator[Scene]:
    """What orders of the admin port do to traffic."""
    for agent in ("doomed", "switched", "free"):
        yield f"agent {agent}", http("POST", PATHS["openai_chat"], chat_request(f"I am {agent}."), {_AGENT: agent})


def photograph_gateway(out: Path) -> None:
    """Write gateway.txt, gateway-upstream.txt, admin.txt, openapi.json, metrics-served.txt and history-schema.txt."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running(folder) as server:
            _traffic(out, server)
            write_lines(out / "metrics-served.txt", _steady(lambda: _metrics(server)))
            _admin(out, server)
        write_lines(out / "history-schema.txt", _left_behind(folder / "data"))


def _traffic(out: Path, server: Running) -> None:
    lines = [masked(line) for line in server.banner]
    seen: list[str] = []
    for group in (scenes(), upstream_scenes(server.llm)):
        for title, raw in group:
            count = len(server.llm.requests)
            received = exchange(server.port, raw)
            answer = received.lines()
            lines += [title, *(_around_the_text(answer) if title.startswith(_CUT) else answer)]
            seen += [title, *_seen(server.llm, count, received.field("x-breakloop-request-id"))]
    write_lines(out / "gateway.txt", lines)
    write_lines(out / "gateway-upstream.txt", seen)


def _around_the_text(lines: Iterable[str]) -> Iterator[str]:
    """Leave out the pieces of a text: where exactly it is cut depends on how the pieces arrive."""
    skipped = ('"delta":{"content":"', '"text_delta"', "event: content_block_delta")
    kept = (line for line in lines if line != "  | " and not any(piece in line for piece in skipped))
    return (re.sub(r'("(?:output|completion|total)_tokens":)\d+', r"\1*", line) for line in kept)


def _seen(llm: ThreadedLLM, count: int, request_id: str) -> Iterator[str]:
    for one in llm.requests[count:]:
        yield f"  {one.method} {one.target} sha256={digest(one.body)}"
        for name, value in sorted(one.headers):
            yield f"    {masked(f'{name.decode()}: {value.decode()}', request_id)}"


def _admin(out: Path, server: Running) -> None:
    lines: list[str] = []
    for title, raw in admin_scenes():
        received = exchange(server.admin, raw)
        if title == "dashboard":
            received = received._replace(body=b"(a page)")
        lines += [title, *received.lines()]
    for title, raw in after_orders():
        lines += [title, *exchange(server.port, raw).lines()]
    write_lines(out / "admin.txt", lines)
    token = {"Authorization": f"Bearer {TOKEN}", "Host": "127.0.0.1"}
    described = json.loads(exchange(server.admin, http("GET", "/api/v1/openapi.json", headers=token)).body)
    text = json.dumps(described, indent=1, ensure_ascii=False, sort_keys=True)
    write_lines(out / "raw" / "openapi.json", text.splitlines())
    write_lines(out / "openapi.json", shape_lines(described))
    paths = [path for path, methods in sorted(described["paths"].items()) if "get" in methods and "{" not in path]
    asked = [path for path in paths if not path.endswith(("/stream", "/counters"))]
    write_lines(out / "admin-shapes.txt", _steady(lambda: _shapes(server, asked)))


def _shapes(server: Running, paths: Sequence[str]) -> list[str]:
    token = {"Authorization": f"Bearer {TOKEN}", "Host": "127.0.0.1"}
    lines: list[str] = []
    for path in paths:
        answer = exchange(server.admin, http("GET", path, headers=token))
        lines += [path, f"  {answer.status}", *_shape_of(answer.body)]
    return lines


def _metrics(server: Running) -> list[str]:
    return _metric_lines(exchange(server.admin, http("GET", "/metrics", headers={"Host": "127.0.0.1"})).body.decode())


def _steady(ask: Callable[[], list[str]]) -> list[str]:
    """Ask until the answer stays the same: events are counted and stored beside the traffic, once a second."""
    same, last = 0, ask()
    for _ in range(POLLS_MOST):
        time.sleep(POLL_S)
        now = ask()
        same, last = (same + 1 if now == last else 0), now
        if same >= POLLS_SAME:
            break
    return last


def _shape_of(body: bytes) -> Iterator[str]:
    """Names and types of an answer: values are times and sums of this run."""
    try:
        value = json.loads(body)
    except ValueError:
        return
    yield from sorted(set(_paths(value, "  $")))


def _paths(value: Any, at: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _paths(one, f"{at}.{masked(str(name))}")
    elif isinstance(value, list):
        for one in value:
            yield from _paths(one, f"{at}[]")
    else:
        kind = "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
        yield f"{at}: {kind}"


def _metric_lines(text: str) -> list[str]:
    """Names, kinds, meanings and labels; of counters that do not depend on time, their values."""
    lines = set()
    for line in text.splitlines():
        if line.startswith("#"):
            lines.add(line)
            continue
        name, _, value = line.rpartition(" ")
        is_steady = name.startswith(("breakloop_decisions_total", "breakloop_loops_total"))
        lines.add(f"{name} {value}" if is_steady else re.sub(r'le="[^"]*"', 'le="*"', name))
    return sorted(lines)


def _left_behind(data: Path) -> Iterator[str]:
    """Files of the data directory; of databases their schema."""
    for path in sorted(data.rglob("*")):
        if path.name.endswith(("-wal", "-shm")):
            continue
        yield masked(f"{path.relative_to(data)}{'/' if path.is_dir() else ''}")
        if path.suffix != ".db":
            continue
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            for pragma in ("application_id", "user_version", "page_size"):
                yield f"  {pragma} {database.execute(f'PRAGMA {pragma}').fetchone()[0]}"
            for kind, name, sql in database.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name"):
                yield f"  {kind} {name}: {' '.join((sql or '').split())}"
        finally:
            database.close()
