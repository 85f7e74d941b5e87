"""The parts put together: what is ready when, what a start needs, and that no content leaks out of any of them."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from breakloop.app.runtime import Runtime, serve
from breakloop.clock import FakeClock
from breakloop.config.settings import Settings
from breakloop.errors import BundleError, SettingsError
from breakloop.gateway.http_request import Reply, Request
from breakloop.gateway.server import Server
from breakloop.observe.log import Logging
from breakloop.observe.metrics import collect as collect_metrics
from breakloop.policy.load import BundleBytes, LoadedBundle, load_text
from breakloop.policy.watch import BundleSource, LastGood
from tests.builders import chat, user
from tests.deadlines import DEADLINE_S

BUNDLE = """\
bundle_version: 4
policies:
  - id: keys
    spec:
      selector: {pathPrefix: /v1/}
      rules:
        - name: per-key
          limit_keys: ["caller:key"]
          algorithm: token_bucket
          algorithm_config: {tokens_per_second: 1, burst: 3}
        - name: per-nothing
          limit_keys: ["header:x-missing"]
          algorithm: token_bucket
          algorithm_config: {tokens_per_second: 1, burst: 3}
      loop_detection: {enabled: true, window_seconds: 60, threshold_identical_requests: 2, action: warn}
"""


def settings(tmp_path: Path, **values: object) -> Settings:
    return Settings.model_validate({"data_dir": str(tmp_path / "data"), "port": 0, "admin_port": 0, **values})


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Running as a process of its own tunes the interpreter; the next test gets it back untuned."""
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    made = Logging(stream, "debug", "json")
    made.start()
    yield stream
    made.stop()


def collect(stream: io.StringIO) -> str:
    for handler in logging.getLogger("breakloop").handlers:
        handler.queue.join() if hasattr(handler, "queue") else None
    return stream.getvalue()


def decision(target: bytes, body: bytes = b"", **headers: bytes) -> Request:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    fields |= {"x-original-uri": target, "x-original-method": b"POST", "host": b"gateway"}
    return Request("POST", b"/v1/decision", fields, body=body, peer="127.0.0.1")


def ask(runtime: Runtime, request: Request) -> Reply:
    reply = runtime.handler(request)
    assert isinstance(reply, Reply)
    return reply


def test_a_bundle_that_is_in_force_is_saved_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop right after a reload waits for the last good copy, which takes a while for a large bundle (B-3)."""
    file = tmp_path / "b.yaml"
    file.write_text(BUNDLE)
    write, finish, stopped = LastGood.write, BundleSource.finish, threading.Event()

    def write_late(copy: LastGood, loaded: LoadedBundle, fetched: BundleBytes | None = None) -> str:
        if loaded.bundle.bundle_version == 5:
            os.kill(os.getpid(), signal.SIGTERM)
            stopped.wait(DEADLINE_S)
        return write(copy, loaded, fetched)

    def finish_meanwhile(source: BundleSource) -> None:
        stopped.set()
        finish(source)

    def ready(runtime: Runtime) -> None:
        file.write_text(BUNDLE.replace("bundle_version: 4", "bundle_version: 5"))
        runtime.reload()

    monkeypatch.setattr(LastGood, "write", write_late)
    monkeypatch.setattr(BundleSource, "finish", finish_meanwhile)
    assert serve(settings(tmp_path, policy=str(file)), ready, Logging(io.StringIO())) == 0
    kept = LastGood(tmp_path / "data", file).read()
    assert kept is not None
    assert kept.bundle.bundle_version == 5


def test_without_policy_the_builtin_protection_is_ready(tmp_path: Path) -> None:
    """Nothing configured is a working state (B-6, D-5)."""
    runtime = Runtime(settings(tmp_path))
    assert runtime.readiness() == (503, {"status": "not_ready", "reason": "no_bundle_loaded"})
    runtime.load()
    status, content = runtime.readiness()
    assert (status, content["bundle_from"], content["bundle_version"]) == (200, "builtin", 0)


def test_loop_guard_settings_reach_the_engine(tmp_path: Path) -> None:
    """LOOP_GUARD_* are the built-in block's numbers (LD-2)."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()
    request = decision(b"/v1/chat/completions", body)
    runtime = Runtime(settings(tmp_path, loop_guard={"max_hits": 1}))
    runtime.load()
    assert [ask(runtime, request).status for _ in range(2)] == [200, 429]
    runtime = Runtime(settings(tmp_path, loop_guard={"max_hits": 0}))
    runtime.load()
    assert {ask(runtime, request).status for _ in range(20)} == {200}


def test_checking_a_bundle_leaves_the_one_in_force_alone(tmp_path: Path) -> None:
    """Validating is for a bundle that may never be in force; requests are read as before (X-1, Q-1)."""
    wide = "bundle_version: 1\npolicies: []\ndefaults: {loop_detection: {similarity: tail, tail_messages: 20}}\n"
    runtime = Runtime(settings(tmp_path))
    runtime.load()
    bundle = runtime.engine.bundle
    runtime.compiled(load_text(wide.encode(), "b.yaml"))
    asked = chat(*[user(f"m{number}") for number in range(30)])
    assert runtime.engine.decide(asked).allowed
    assert asked.parsed.chat
    assert len(asked.parsed.chat.tail) == 4
    assert runtime.engine.bundle is bundle


def test_configured_source_without_bundle_answers_503(tmp_path: Path) -> None:
    """Nothing is let through unjudged; `strict` does not even start (E-0)."""
    file = tmp_path / "bundle.yaml"
    runtime = Runtime(settings(tmp_path, policy=str(file)))
    runtime.load()
    reply = ask(runtime, decision(b"/v1/x"))
    assert (reply.status, json.loads(reply.body)["detail"]["error"]) == (503, "no_bundle_loaded")
    assert runtime.readiness()[0] == 503
    with pytest.raises(BundleError, match="No such file"):
        Runtime(settings(tmp_path, policy=str(file), strict=True)).load()


def test_bundle_is_in_force_and_shown(tmp_path: Path) -> None:
    """Version and digest of what is enforced (D-5)."""
    file = tmp_path / "bundle.yaml"
    file.write_text(BUNDLE)
    runtime = Runtime(settings(tmp_path, policy=str(file)))
    runtime.load()
    status, content = runtime.readiness()
    assert (status, content["bundle_version"], content["bundle_from"]) == (200, 4, "source")
    assert runtime.source is not None
    assert runtime.source.current is not None
    assert content["bundle_digest"] == runtime.source.current.digest
    assert (content["bundle_rejected"], content["bundle_problems"]) == (0, 0)


def test_same_secret_same_fingerprints(tmp_path: Path) -> None:
    """A fleet that shares the secret agrees, one that does not, does not."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()

    def fingerprint(name: str, secret: str) -> str:
        runtime = Runtime(settings(tmp_path / name, secret=secret, loop_guard={"max_hits": 1}))
        runtime.load()
        replies = [ask(runtime, decision(b"/v1/chat/completions", body)) for _ in range(2)]
        found: str = json.loads(replies[1].body)["detail"]["fingerprint"]
        return found

    assert fingerprint("a", "one") == fingerprint("b", "one") != fingerprint("c", "two")


def test_debug_sessions_exist_only_with_a_secret(tmp_path: Path) -> None:
    """Without a configured secret the endpoint does not exist (A-6)."""
    request = Request("POST", b"/v1/debug/session", {"x-breakloop-debug-secret": b"open sesame"})
    assert ask(Runtime(settings(tmp_path)), request).status == 404
    assert ask(Runtime(settings(tmp_path, debug_secret="open sesame")), request).status == 204


def contents(root: object) -> list[object]:
    """Every text that can be reached from an object, however it keeps it."""
    found: list[object] = []
    seen: set[int] = set()
    left = [root]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType):
            continue
        seen.add(id(one))
        if isinstance(one, str | bytes):
            found.append(one)
        left += gc.get_referents(one)
    return found


def test_nothing_of_a_request_leaks(tmp_path: Path, log: io.StringIO) -> None:
    """Prompt, keys and tokens are in no log line, no state and no answer, denied or allowed (Y-1)."""
    file = tmp_path / "bundle.yaml"
    file.write_text(BUNDLE)
    runtime = Runtime(settings(tmp_path, policy=str(file)))
    runtime.load()
    canaries = [f"canary{name}7c1" for name in ("prompt", "tool", "apikey", "claim", "query", "cookie", "bearer")]
    prompt, tool, api_key, claim, query, cookie, bearer = canaries
    messages = [{"role": "user", "content": prompt}, {"role": "tool", "tool_call_id": "1", "content": tool}]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    payload = base64.urlsafe_b64encode(json.dumps({"sub": claim}).encode()).rstrip(b"=")
    token = b"Bearer e30." + payload + b"." + bearer.encode()
    statuses = set()
    for authorization in (token, b"Bearer " + bearer.encode()):
        for _ in range(9):
            target = f"/v1/chat/completions?key={query}&q={query}".encode()
            request = decision(
                target, body, authorization=authorization, x_api_key=api_key.encode(), cookie=cookie.encode()
            )
            reply = ask(runtime, request)
            statuses.add(reply.status)
            assert not [one for one in canaries if one.encode() in reply.head + reply.body]
    assert statuses == {200, 429}
    runtime.events.flush(0.0, everything=True)
    state = repr(contents(runtime.state.store))
    assert len(runtime.state.store) > 0
    assert "tb:default:keys:per-key:" in state
    written = collect(log)
    assert {"limit.exceeded", "loop.detected", "descriptor.missing"} <= {
        json.loads(line)["message"] for line in written.splitlines()
    }
    assert not [one for one in [*canaries, payload.decode()] if one in state or one in written]


def on_ready(act: Callable[[str], Awaitable[Any]]) -> Callable[[str], None]:
    """Make a `ready` that does something and then ends the process politely."""

    async def then_stop(url: str) -> None:
        try:
            await act(url)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    tasks = []
    return lambda url: tasks.append(asyncio.get_running_loop().create_task(then_stop(url)))


async def get(url: str, path: str) -> tuple[int, dict[str, Any]]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), json.loads(body)


def test_run_serves_until_a_signal(tmp_path: Path, log: io.StringIO) -> None:
    """Ready means it answers; a signal ends it with 0 (S-6)."""
    seen: list[tuple[int, dict[str, Any]]] = []

    async def act(url: str) -> None:
        seen.append(await get(url, "/readyz"))

    assert asyncio.run(Runtime(settings(tmp_path)).run(on_ready(act))) == 0
    assert seen[0][0] == 200
    assert '"stopped"' in collect(log)


def test_an_upstream_that_fails_is_in_the_log(tmp_path: Path, log: io.StringIO, free_port: Callable[[], int]) -> None:
    """A line with its name and the cause, and no address (G-2, D-1)."""
    port, seen = free_port(), []

    async def act(url: str) -> None:
        seen.append((await get(url, "/v1/models"))[0])

    gone = settings(tmp_path, upstream=[f"gone=http://127.0.0.1:{port}"])
    assert asyncio.run(Runtime(gone).run(on_ready(act))) == 0
    assert seen == [502]
    told = [json.loads(line) for line in collect(log).splitlines() if "upstream.failed" in line]
    assert [(one["level"], one["upstream"], one["cause"], one["status"]) for one in told] == [
        ("warning", "gone", "refused the connection", 502)
    ]
    assert str(port) not in str(told)


def test_reload_by_signal(tmp_path: Path, log: io.StringIO) -> None:
    """SIGHUP loads now (B-3)."""
    file = tmp_path / "bundle.yaml"
    file.write_text(BUNDLE)
    versions: list[int] = []

    async def act(url: str) -> None:
        file.write_text(BUNDLE.replace("bundle_version: 4", "bundle_version: 2"))
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(DEADLINE_S):
            while not versions or versions[-1] != 2:
                versions.append((await get(url, "/readyz"))[1]["bundle_version"])

    assert asyncio.run(Runtime(settings(tmp_path, policy=str(file))).run(on_ready(act))) == 0
    assert versions[-1] == 2


def test_token_keys_are_read_before_it_is_ready(tmp_path: Path, log: io.StringIO) -> None:
    """Keys are there with the first request; what cannot be read is said and does not stop a start (C-3)."""
    keys = tmp_path / "jwks.json"

    async def nothing(_url: str) -> None:
        pass

    assert asyncio.run(Runtime(settings(tmp_path, jwt={"jwks_file": str(keys)})).run(on_ready(nothing))) == 0
    assert "jwt.keys_not_read" in collect(log)


def test_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    """The error is "in use", and what to do (S-5)."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"127.0.0.1:{port} is in use \(stop the other program"):
            asyncio.run(Runtime(settings(tmp_path, port=port)).run(lambda _url: None))
    with pytest.raises(SettingsError, match=r"192\.0\.2\.1:\d+ cannot be used: this machine has no such address"):
        asyncio.run(Runtime(settings(tmp_path, host="192.0.2.1")).run(lambda _url: None))


def test_a_second_start_leaves_the_first_alone(tmp_path: Path) -> None:
    """With its ports taken it ends before state, history and bundle are opened, and says nothing else (S-5)."""
    stream = io.StringIO()
    (tmp_path / "b.yaml").write_text("nonsense")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        values = {"admin_port": taken.getsockname()[1], "policy": str(tmp_path / "b.yaml")}
        with pytest.raises(SettingsError, match="is in use"):
            serve(settings(tmp_path, **values), lambda _runtime: None, Logging(stream))
    assert stream.getvalue() == ""
    assert not (tmp_path / "data").exists()


def test_shutting_down_is_not_ready(tmp_path: Path) -> None:
    """Whoever asks meanwhile is sent elsewhere (D-5, S-6)."""
    runtime = Runtime(settings(tmp_path))
    runtime.load()
    runtime._draining = True
    assert runtime.readiness() == (503, {"status": "not_ready", "reason": "shutting_down"})


@pytest.mark.slow
@pytest.mark.parametrize("made_by", ["uvloop", "asyncio"])
def test_serve_runs_on_uvloop_or_asyncio_and_logs(
    made_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command's way in: a loop of its own, also where uvloop is not installed; a log that is written to the end."""
    if made_by == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    stream = io.StringIO()
    seen: list[str] = []

    def ready(runtime: Runtime) -> None:
        seen.append(f"{type(asyncio.get_running_loop()).__module__} {runtime.url}")
        os.kill(os.getpid(), signal.SIGTERM)

    assert serve(settings(tmp_path), ready, Logging(stream, "info", "json")) == 0
    assert seen[0].startswith(made_by)
    assert " http://127.0.0.1:" in seen[0]
    assert json.loads(stream.getvalue().splitlines()[-1])["message"] == "stopped"


@pytest.mark.slow
def test_a_bundle_that_comes_later_is_announced(tmp_path: Path) -> None:
    """Once, when it is in force: until then, it listens and is not ready (T-2, E-0)."""
    file, seen = tmp_path / "bundle.yaml", []

    def ready(runtime: Runtime) -> None:
        seen.append((runtime.url, runtime.readiness()[0]))
        if len(seen) == 1:
            file.write_text(BUNDLE)
            runtime.reload()
        else:
            runtime.stop()

    assert serve(settings(tmp_path, policy=str(file)), ready, Logging(io.StringIO())) == 0
    assert seen == [(seen[0][0], 503), (seen[0][0], 200)]


@pytest.mark.slow
def test_second_signal_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second signal does not wait for what never ends, and the exit code says so (S-6)."""

    stop = Server.stop

    async def patient(server: Server, grace_s: float) -> int:
        if grace_s:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        return await stop(server, grace_s)

    monkeypatch.setattr(Server, "stop", patient)
    code = serve(settings(tmp_path), lambda runtime: runtime.stop(), Logging(io.StringIO()))
    assert code == 1


def test_a_step_of_the_clock_is_told(tmp_path: Path, log: io.StringIO) -> None:
    """One line for each, also if a cluster whose clocks differ makes many of one size; and a metric (S-2)."""
    clock = FakeClock()
    runtime = Runtime(settings(tmp_path), clock=clock)
    clock.advance(5.0)
    clock.step(-3600.0)
    for step_s in (86_400.0, -86_400.0) * 3:
        clock.step(step_s)
    lines = [json.loads(line) for line in collect(log).splitlines() if "clock.stepped" in line]
    assert [(line["level"], line["seconds"], line["clock"]) for line in lines] == [
        ("warning", seconds, "system") for seconds in (-3600.0, 86_400.0, -86_400.0)
    ]
    counted = collect_metrics(runtime.metric_sources()).values["breakloop_clock_step_seconds_total"]
    assert counted == {(): 3600.0 + 6 * 86_400.0}
    assert clock.now() - runtime.started_at == 5.0
