"""The real command in a process of its own: start, serve, reload, survive, stop."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deadlines import DEADLINE_S
from tests.e2e.forking import start_anew
from tests.e2e.served import Served, eventually

pytestmark = pytest.mark.e2e

CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "again"}]})


def bundle(version: int, *, burst: int = 100, per_second: float = 1, policy: str = "team") -> str:
    return f"""\
bundle_version: {version}
policies:
  - id: {policy}
    spec:
      selector: {{pathPrefix: /v1/}}
      rules:
        - name: per-team
          limit_keys: ["header:x-team"]
          algorithm: token_bucket
          algorithm_config: {{tokens_per_second: {per_second}, burst: {burst}}}
"""


Start = Callable[..., Served]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Served] = []

    def begin(*arguments: str, **environment: str) -> Served:
        started.append(Served(tmp_path, *arguments, **environment))
        return started[-1]

    (tmp_path / "home").mkdir()
    yield begin
    for one in started:
        one.end()


def test_serve_protects_without_any_policy(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty home, no files: it says where it listens, is ready, and stops a loop (T-2, D-5, B-6)."""
    monkeypatch.setattr("tests.e2e.served.start", start_anew)  # the command as a user starts it
    served = start("--port", "0").wait_ready()
    assert served.banner[-1] == f"breakloop ready on http://127.0.0.1:{served.port}"
    assert any("built-in loop protection" in line for line in served.banner)
    assert served.ask("/livez")[0] == 200
    assert served.ready() == {
        "status": "ready",
        "bundle_version": 0,
        "bundle_digest": "builtin",
        "bundle_from": "builtin",
        "state": "memory",
        "state_kept": True,
    }
    statuses = [served.decide("/v1/chat/completions", CHAT)[0] for _ in range(6)]
    assert statuses == [200] * 5 + [429]
    detail = json.loads(served.decide("/v1/chat/completions", CHAT)[2])["detail"]
    assert detail["error"] == "recursive_loop_detected"
    secret = tmp_path / "home/.local/share/breakloop/secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    kept = secret.read_text()
    assert served.stop() == 0
    assert served.log("loop.detected")[0]["kind"] == "tail"
    assert start("--port", "0").wait_ready().stop() == 0
    assert secret.read_text() == kept


def test_bundle_is_replaced_while_serving(start: Start, tmp_path: Path) -> None:
    """A new bundle is put in force; a bad one changes nothing and is told once (B-2, B-3)."""
    file = tmp_path / "bundle.yaml"
    file.write_text(bundle(1, burst=1))
    served = start("--port", "0", "--policy", "bundle.yaml").wait_ready()
    assert [served.decide("/v1/x", X_Team="a")[0] for _ in range(2)] == [200, 429]

    file.write_text(bundle(2, burst=2, policy="next"))
    eventually(lambda: served.ready()["bundle_version"] == 2, "version 2")
    assert [served.decide("/v1/x", X_Team="a")[0] for _ in range(3)] == [200, 200, 429]

    file.write_text(bundle(3).replace("burst", "brust"))
    eventually(lambda: served.ready()["bundle_rejected"] == 1, "rejection")
    os.utime(file)  # the same content again is not news
    file.with_suffix(".other").write_text("x")
    ready = served.ready()
    assert (ready["status"], ready["bundle_version"], ready["bundle_problems"] > 0) == ("ready", 2, True)
    assert served.decide("/v1/x", X_Team="b")[0] == 200

    file.write_text(bundle(1))
    eventually(lambda: served.ready()["bundle_rejected"] == 2, "refusal of a lower version")
    served.process.send_signal(signal.SIGHUP)
    eventually(lambda: served.ready()["bundle_version"] == 1, "version 1, asked for by a signal")
    assert served.ready()["bundle_problems"] == 0
    assert served.stop() == 0
    rejected = served.log("bundle.rejected")
    assert len(rejected) == 2
    assert rejected[0]["problem"].endswith("algorithm_config.burst: is required")
    assert "is lower than 2" in rejected[1]["problem"]


def test_kubernetes_swaps_a_link(start: Start, tmp_path: Path) -> None:
    """A ConfigMap is a directory of links that are swapped; that is a change (B-3)."""
    mount = tmp_path / "mount"
    for version in (1, 2):
        (mount / f"..v{version}").mkdir(parents=True)
        (mount / f"..v{version}" / "bundle.yaml").write_text(bundle(version))
    (mount / "..data").symlink_to("..v1")
    (mount / "bundle.yaml").symlink_to("..data/bundle.yaml")
    served = start("--port", "0", "--policy", "mount").wait_ready()
    assert served.ready()["bundle_version"] == 1
    (mount / "..next").symlink_to("..v2")
    (mount / "..next").replace(mount / "..data")
    eventually(lambda: served.ready()["bundle_version"] == 2, "version 2")


def test_last_good_bundle_survives(start: Start, tmp_path: Path) -> None:
    """After kill -9 and without its source it still enforces; a damaged copy is told and ignored (B-3, E-0)."""
    file = tmp_path / "bundle.yaml"
    file.write_text(bundle(7, burst=1))
    served = start("--port", "0", "--policy", "bundle.yaml").wait_ready()
    digest = served.ready()["bundle_digest"]
    served.process.kill()
    served.process.wait()
    file.unlink()

    served = start("--port", "0", "--policy", "bundle.yaml").wait_ready()
    ready = served.ready()
    assert (ready["bundle_version"], ready["bundle_digest"]) == (7, digest)
    assert ready["bundle_from"] == "last good copy"
    assert [served.decide("/v1/x", X_Team="a")[0] for _ in range(2)] == [200, 429]
    assert served.stop() == 0

    (copy,) = (tmp_path / "home/.local/share/breakloop/last-good").glob("*.json")
    copy.write_text(copy.read_text().replace('"burst": 1', '"burst": 9'))
    served = start("--port", "0", "--policy", "bundle.yaml").wait_listening()
    assert served.ask("/readyz")[0] == 503
    assert served.ready() == {"status": "not_ready", "reason": "no_bundle_loaded"}
    status, headers, _ = served.decide("/v1/x")
    assert (status, headers["x-breakloop-reason"]) == (503, "no_bundle_loaded")
    assert any("checksum" in line["problem"] for line in served.log("bundle.rejected"))

    file.write_text(bundle(8))
    assert served.wait_ready().ask("/readyz")[0] == 200


def test_strict_start_needs_a_bundle(start: Start, tmp_path: Path) -> None:
    """`--strict` exits 1 and prints the problems, located (E-0)."""
    (tmp_path / "bundle.yaml").write_text("bundle_version: 0\npolicies: []\n")
    served = start("--port", "0", "--policy", "bundle.yaml", "--strict")
    assert served.process.wait(DEADLINE_S) == 1
    assert "bundle.yaml:1:17: bundle_version" in (tmp_path / "log.jsonl").read_text()


def test_second_instance_fails(start: Start, tmp_path: Path) -> None:
    """A second instance on the same port fails with "in use", in one line, and the first is not disturbed (S-5)."""
    served = start("--port", "0").wait_ready()
    other = start("--port", str(served.port))
    assert other.process.wait(DEADLINE_S) == 1
    assert f"127.0.0.1:{served.port} is in use" in (tmp_path / "log.jsonl").read_text()
    assert served.ask("/livez")[0] == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_cleanly(start: Start, number: int) -> None:
    """A signal lets it finish and exit 0, with a client connected and idle (S-6)."""
    served = start("--port", "0").wait_ready()
    idle = http.client.HTTPConnection("127.0.0.1", served.port, timeout=DEADLINE_S)
    idle.connect()
    assert served.stop(number) == 0
    idle.close()
    assert served.log("stopped") != []


def test_second_signal_does_not_wait(start: Start) -> None:
    """Whoever cannot wait for a request that never ends sends the signal again (S-6)."""
    served = start("--port", "0").wait_ready()
    stuck = http.client.HTTPConnection("127.0.0.1", served.port, timeout=DEADLINE_S)
    stuck.putrequest("POST", "/v1/decision")
    stuck.putheader("Content-Length", "10")
    stuck.endheaders(b"half")
    served.process.send_signal(signal.SIGTERM)
    eventually(lambda: not listening(served.port), "no new connections")
    assert served.process.poll() is None
    assert served.stop() == 1
    stuck.close()


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_unusable_data_directory_is_no_reason_not_to_start(start: Start, tmp_path: Path) -> None:
    """A home that cannot be written to costs the last good copy, not the service."""
    (tmp_path / "blocked").write_text("a file where a directory should be")
    served = start("--port", "0", "--data-dir", "blocked/data").wait_ready()
    assert served.ready()["status"] == "ready"
    assert served.stop() == 0
    assert any("cannot be used" in line["message"] for line in served.log())
