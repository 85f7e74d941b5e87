"""What one client can do to another by what it writes into its requests, and what names can make webhooks reach."""

from __future__ import annotations

import hashlib
import http.server
import json
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.e2e.forking import SRC
from tests.e2e.raw_client import RawClient, request
from tests.e2e.served import KEY
from tests.torture.gateway import CHAT, JSON, Gateway, Rig, chat, expect_alive, gateway, post, send, started, told
from tests.torture.table import Row
from tests.torture.upstream import upstream

BUDGET: Final = 5
_BUDGET: Final = f"""
bundle_version: 1
policies:
  - id: spend
    spec:
      selector: {{pathPrefix: %s}}
      rules:
        - name: budget
          limit_keys: ["%s"]
          algorithm: cost_based
          algorithm_config:
            {{budget: {BUDGET}, period: 1d, cost_key: fixed, fixed_cost: 1,
              staged_actions: [{{threshold_percent: 100, action: reject}}]}}
"""


_HELD: Final = {"BREAKLOOP_UPSTREAM_KEYS": "openai=env:HELD_KEY", "HELD_KEY": "sk-held"}


def _caller(name: str) -> str:
    return f"{name}={hashlib.sha256(f'{KEY}{name}'.encode()).hexdigest()}"


def _ask(text: str, *lines: str) -> bytes:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    return request("POST", CHAT, body, JSON, *lines)


def second_credential(rig: Rig, row: Row) -> None:
    row.done = f"alice has a budget of {BUDGET}; she sends her key in `X-Breakloop-Key` and a new one in `Authorization` each time"
    settings = {"BREAKLOOP_CALLERS": f"{_caller('alice')},{_caller('bob')}", **_HELD}
    with upstream() as url, gateway(url, policy=_BUDGET % ("/v1", "caller:key"), env=settings) as running:
        alone = Counter(send(running.port, _ask(f"a {n}", f"X-Breakloop-Key: {KEY}alice")) for n in range(12))
        fields = ("Authorization: Bearer", "x-api-key:")
        rotated = Counter(
            send(running.port, _ask(f"b {n}", f"X-Breakloop-Key: {KEY}alice", f"{fields[n % 2]} rnd-{n}"))
            for n in range(12)
        )
        bob = send(running.port, _ask("a 1", f"X-Breakloop-Key: {KEY}bob"))
        row.expect(
            f"no more than {BUDGET} pass", alone[200] + rotated[200] == BUDGET, f"{told(alone)}; then {told(rotated)}"
        )
        row.expect("bob is not charged for it", bob == 200, bob)
        expect_alive(row, running)


def shared_key(rig: Rig, row: Row) -> None:
    row.done = "12 users of one product, who share its key, each send the same first message in a session of their own"
    with upstream() as url, gateway(url) as running:
        requests = [chat("hello", f"X-Agent-Session: user-{n}", key="product") for n in range(12)]
        statuses = Counter(send(running.port, one) for one in requests)
        row.expect("nobody is blocked", statuses == {200: 12}, told(statuses))
        again = Counter(send(running.port, requests[0]) for _ in range(12))
        row.expect("one who repeats it is blocked", again[429] > 0, told(again))
        expect_alive(row, running)


def changing_names(_rig: Rig, row: Row) -> None:
    row.done = "an agent that is stuck sends the same conversation 80 times, each time under another name"
    call = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Find the bug."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "There is nothing."},
    ]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    with upstream() as url, gateway(url) as running:
        statuses = Counter(send(running.port, post(body, f"X-Agent-Id: name-{n}", key="stuck")) for n in range(80))
        row.expect("it is blocked", statuses[429] > 0, told(statuses))
        other = send(running.port, post(body, "X-Agent-Id: name-1", key="other"))
        row.expect("a client with another key is not", other == 200, other)
        expect_alive(row, running)


def forwarded(rig: Rig, row: Row) -> None:
    row.done = "12 identical requests without a key, each with another address in `X-Forwarded-For`"
    with upstream() as url, gateway(url) as running:
        statuses = Counter(send(running.port, _ask("again", f"X-Forwarded-For: 203.0.113.{n}")) for n in range(12))
        row.expect("the loop is blocked", statuses[429] > 0, told(statuses))
        expect_alive(row, running)


def results(rig: Rig, row: Row) -> None:
    count = rig.size(50, 2000)
    row.done = f"somebody without a key reports the results of {count} guessed requests, with 18 million tokens each"
    limit = """
bundle_version: 1
policies:
  - id: tokens
    spec:
      selector: {pathPrefix: /v1}
      rules:
        - name: tpm
          limit_keys: ["caller:key"]
          algorithm: token_bucket_llm
          algorithm_config: {tokens_per_minute: 100000}
"""
    usage = json.dumps({"status": 200, "usage": {"prompt_tokens": 9_000_000, "completion_tokens": 9_000_000}})
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "first"}]})
    with upstream() as url, gateway(url, policy=limit) as running:

        def decide(key: str) -> tuple[int, str]:
            given = {"Authorization": f"Bearer {KEY}{key}", "Content_Type": "application/json"}
            status, fields, _ = running.decide(CHAT, body, **given)
            return status, fields.get("x-breakloop-request-id", "")

        decide("victim")
        mine = decide("attacker")[1]
        head, _, last = mine.rpartition("-")
        guessed = [f"{head}-{int(last) + step}" for step in range(-count // 2, count // 2)] if last.isdigit() else []
        guessed += [f"{mine[:-4]}{step:04x}" for step in range(count - len(guessed))]
        statuses = Counter(
            running.ask(f"/v1/decision/{one}/result", "POST", usage)[0] for one in guessed if one != mine
        )
        row.expect("no guess is right", set(statuses) == {404}, told(statuses))
        victim = decide("victim")[0]
        row.expect("the victim can go on", victim == 200, victim)
        expect_alive(row, running)


def invented(rig: Rig, row: Row) -> None:
    entries = 1000
    count = rig.size(1100, 5000)
    row.done = f"a budget of {BUDGET} is used up; then {count} invented clients fill a memory of {entries} entries"
    policy = _BUDGET % ("/spend", "header:x-team")
    with upstream() as url, gateway(url, policy=policy, env={"BREAKLOOP_MEMORY_MAX_ENTRIES": str(entries)}) as running:
        before = Counter(running.decide("/spend", X_Team="a")[0] for _ in range(BUDGET + 2))
        _decide_many(running, count)
        after = Counter(running.decide("/spend", X_Team="a")[0] for _ in range(BUDGET))
        row.expect(
            f"no more than {BUDGET} pass", before[200] == BUDGET and not after[200], f"{before[200]}, then {after[200]}"
        )
        expect_alive(row, running)


def _decide_many(running: Gateway, count: int) -> None:
    """Requests of so many clients, on one connection."""
    with RawClient(running.port) as client:
        for number in range(count):
            client.ask(
                "POST", "/v1/decision", b"", "X-Original-URI: /spend", f"X-Team: invented-{number}", "Content-Length: 0"
            )
            client.answer()


def trace(rig: Rig, row: Row) -> None:
    row.done = "TRACE and CONNECT, with a provider key that the gateway holds"
    with upstream() as url, gateway(url, env=_HELD) as running:
        statuses = Counter(send(running.port, request(method, CHAT, b"")) for method in ("TRACE", "CONNECT"))
        row.expect("both are refused", set(statuses) <= {400, 405, 501}, told(statuses))
        expect_alive(row, running)


# -- webhooks

_PUBLIC: Final = "93.184.215.14"  # any address of the internet; the stand-in below connects to the receiver instead
# In place of the resolver of the system and of the internet, in the process of the gateway.
_RESOLVER: Final = """
import json, socket, uvloop
FOLDER = %(folder)r
_getaddrinfo, _connect = socket.getaddrinfo, uvloop.Loop.create_connection

def note(line):
    with open(FOLDER + "/seen", "a") as file:
        file.write(line + "\\n")

def getaddrinfo(host, port, *args, **kwargs):
    if host != "hooks.example.com":
        return _getaddrinfo(host, port, *args, **kwargs)
    with open(FOLDER + "/answers") as file:
        answers = json.load(file)
    with open(FOLDER + "/answers", "w") as file:
        json.dump(answers[1:] or answers, file)
    note("resolved")
    return [entry for one in answers[0] for entry in _getaddrinfo(one, port, *args, **kwargs)]

async def create_connection(self, factory, host=None, port=None, **options):
    if port == %(port)d:
        note("connected to " + host)
        host = "127.0.0.1"
    return await _connect(self, factory, host, port, **options)

socket.getaddrinfo, uvloop.Loop.create_connection = getaddrinfo, create_connection
"""


@contextmanager
def _receiver() -> Iterator[int]:
    """A server on loopback that accepts everything; returns its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def webhooks(rig: Rig, row: Row) -> None:
    row.done = (
        "the name in a webhook resolves to another address each time: public, loopback, both, metadata service, private"
    )
    deliveries: list[tuple[list[list[str]], bool]] = [
        ([[_PUBLIC]], True),
        ([[_PUBLIC], ["127.0.0.1"]], True),  # it changes between the check and the connection
        ([["127.0.0.1"]], False),
        ([[_PUBLIC, "127.0.0.1"]], False),
        ([["169.254.169.254"]], False),
        ([["10.0.0.1"]], False),
        ([["::ffff:127.0.0.1"]], False),
    ]
    with upstream() as url, _receiver() as port, tempfile.TemporaryDirectory(prefix="torture-") as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(_RESOLVER % {"folder": name, "port": port})
        with started(folder, url, env={"PYTHONPATH": f"{name}:{SRC}"}) as running:
            hook = {"url": f"http://hooks.example.com:{port}/", "events": ["loop.detected"]}
            (folder / "answers").write_text(json.dumps([[_PUBLIC]]))
            status, made = running.api("/api/v1/webhooks", hook)
            assert status == 201, made
            delivered, once = [], []
            for answers, _ in deliveries:
                (folder / "answers").write_text(json.dumps(answers))
                before = _seen(folder).count("resolved")
                found = running.api(f"/api/v1/webhooks/{made['id']}/test", {})[1]
                delivered.append(bool(found["delivered"]))
                once.append(_seen(folder).count("resolved") - before)
            connected = Counter(line for line in _seen(folder) if line.startswith("connected"))
            expected = [wanted for _, wanted in deliveries]
            row.expect(
                "only public addresses are delivered to",
                delivered == expected,
                f"{sum(delivered)} of {len(expected)} delivered",
            )
            row.expect("a name is resolved once for each", set(once) == {1}, f"{sum(once)} times for {len(once)}")
            row.expect(
                "connections go to the address that was checked",
                connected == {f"connected to {_PUBLIC}": 2},
                ", ".join(f"{count} x {line}" for line, count in connected.items()),
            )
            expect_alive(row, running)


def _seen(folder: Path) -> list[str]:
    file = folder / "seen"
    return file.read_text().splitlines() if file.exists() else []


SCENARIOS: Final[dict[str, Callable[[Rig, Row], None]]] = {
    "second-credential": second_credential,
    "shared-key": shared_key,
    "changing-names": changing_names,
    "forwarded-addresses": forwarded,
    "guessed-results": results,
    "invented-clients": invented,
    "trace": trace,
    "webhook-names-that-change": webhooks,
}
