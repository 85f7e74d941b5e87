"""Several real processes on one port, on a real Redis: they serve, are replaced, follow the bundle, and end in order."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from breakloop.testing import StandInLLM, ThreadedLLM, say
from tests.deadlines import DEADLINE_S
from tests.e2e.fleet import Fleet, Traffic, fleet, is_alive
from tests.e2e.proxied import chat
from tests.e2e.raw_client import RawClient
from tests.e2e.served import Served, eventually, serving
from tests.e2e.test_serve import bundle
from tests.redis_servers import Server, free_port
from tests.redis_servers import running as redis
from tests.unit.observe.test_metrics_prometheus import samples

pytestmark = pytest.mark.e2e


@contextmanager
def watched(folder: Path, redis: Server) -> Iterator[Fleet]:
    (folder / "bundle.yaml").write_text(bundle(1, burst=6, per_second=0.0001))  # nothing comes back meanwhile
    state = f"{redis.url}?time_budget_ms=5000"  # a busy machine is not a Redis that is gone
    with fleet(folder, state, "--policy", "bundle.yaml") as started:
        started.wait_ready()
        yield started
        faults = {line["message"] for line in started.log() if line["level"] in {"error", "critical"}}
        assert not faults - {"bundle.rejected"}, faults


@pytest.fixture
def running(tmp_path: Path, redis_server: Server) -> Iterator[Fleet]:
    """One of a test's own, which it may end."""
    with watched(tmp_path, redis_server) as started:
        yield started


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One for all tests that leave a supervisor, a control process and two workers behind. Its Redis is its own, because
    other tests empty theirs."""
    with redis() as server, watched(tmp_path_factory.mktemp("fleet"), server) as started:
        yield started
        assert started.stop() == 0


class New:
    """The lines of a log that are new since this was made."""

    def __init__(self, started: Fleet) -> None:
        self._started, self._before = started, len(started.log())

    def log(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self._started.log()[self._before :] if line["message"] == message]


def spread(started: Fleet, count: int) -> list[int]:
    """How many of so many connections each worker got."""
    return sorted(Counter(answer["worker"] for answer in started.answers(count)).values())


def test_two_workers_serve_as_one(running: Fleet, tmp_path: Path) -> None:
    """One address, said once; connections are shared evenly; a limit holds for both together; events are told once
    (S-5)."""
    assert running.banner[-1] == f"breakloop ready on http://127.0.0.1:{running.port}"
    assert "  workers   2" in running.banner
    assert set(running.children()) == {"control 0", "worker 1", "worker 2"}
    # A busy machine may keep one of them from accepting for a while.
    eventually(lambda: spread(running, 16)[0] in range(5, 9), "connections of both")
    answers = running.each()
    assert {(answer["workers"], answer["bundle_version"], answer["state"]) for answer in answers} == {(2, 1, "redis")}
    assert len({answer["bundle_digest"] for answer in answers}) == 1

    with Traffic(running.port, 2):  # so that both workers get some of what follows
        statuses = [running.decide("/v1/x", X_Team="a")[0] for _ in range(40)]
    assert statuses.count(200) == 6
    assert running.stop() == 0
    assert len(running.log("bundle.loaded")) == 1
    told = running.log("limit.exceeded")
    assert len(told) <= 2, "one line, and one for those that were left out"
    assert sum(line.get("left_out", 0) + 1 for line in told) == statuses.count(429)


def test_dead_worker_is_replaced(shared: Fleet) -> None:
    """kill -9 under load: replaced without a delay; clients of the other worker see nothing of it (S-5)."""
    new = New(shared)
    with Traffic(shared.port, 8) as traffic:
        eventually(lambda: all(counts for counts in traffic.seen), "traffic on all connections")
        survivors = [counts for counts in traffic.seen if "2" in counts]
        assert survivors
        died = shared.kill("worker 1")
        eventually(lambda: bool(new.log("worker.replaced")), "a new worker")
        again = shared.children()["worker 1"]
        assert again != died
        before = [sum(counts.values()) for counts in survivors]
        eventually(lambda: all(sum(c.values()) > b for c, b in zip(survivors, before, strict=True)), "more traffic")
        eventually(lambda: any(a["worker"] == 1 for a in shared.answers(8)), "answers of the new one")
    assert not any("error" in counts or "1" in counts for counts in survivors)
    assert sum(counts["error"] for counts in traffic.seen) <= 8 - len(survivors)
    (told,) = new.log("worker.died")
    assert (told["process"], told["pid"], told["ended"]) == ("worker 1", died, "killed by SIGKILL")
    assert told["restart_in_seconds"] == 0


def test_hanging_worker_holds_up_nobody_else(shared: Fleet) -> None:
    """New connections go to the other (S-5)."""
    hung = shared.kill("worker 1", signal.SIGSTOP)
    assert {shared.ready()["worker"] for _ in range(40)} == {2}
    assert {answer["worker"] for answer in shared.answers(20)} == {2}
    os.kill(hung, signal.SIGCONT)
    eventually(lambda: any(answer["worker"] == 1 for answer in shared.answers(4)), "answers of both")


def test_dead_control_is_replaced(shared: Fleet) -> None:
    """Without it workers go on; the new one watches the bundle and hears events (S-5)."""
    new, version = New(shared), shared.ready()["bundle_version"]
    with Traffic(shared.port, 4) as traffic:
        shared.kill("control 0")
        eventually(lambda: bool(new.log("worker.replaced")), "a new control process")
        (shared.folder / "bundle.yaml").write_text(bundle(version + 1))
        eventually(lambda: {a["bundle_version"] for a in shared.each()} == {version + 1}, "the next version")
    assert not any("error" in counts for counts in traffic.seen)
    eventually(lambda: [line["version"] for line in new.log("bundle.loaded")] == [version, version + 1], "events of it")


def test_bundle_reaches_all(shared: Fleet) -> None:
    """A change is in force in every worker, a bad one in none; SIGHUP takes a lower one (S-5, B-3)."""
    new, file, version = New(shared), shared.folder / "bundle.yaml", shared.ready()["bundle_version"]

    def versions() -> set[int]:
        return {answer["bundle_version"] for answer in shared.each()}

    file.write_text(bundle(version + 4))
    eventually(lambda: versions() == {version + 4}, "a higher version")
    file.write_text(bundle(version + 5).replace("burst", "brust"))
    eventually(lambda: {a["bundle_rejected"] for a in shared.each()} == {1}, "rejection")
    assert versions() == {version + 4}
    assert {a["bundle_problems"] > 0 for a in shared.each()} == {True}
    file.write_text(bundle(version + 2))
    shared.process.send_signal(signal.SIGHUP)
    eventually(lambda: versions() == {version + 2}, "a lower version")
    shared.kill("worker 2")
    eventually(lambda: bool(new.log("worker.replaced")), "a new worker")
    assert versions() == {version + 2}
    assert len(new.log("bundle.rejected")) == 1


def test_second_instance_fails(shared: Fleet, tmp_path: Path, redis_server: Server) -> None:
    """The error is "in use", as with one process, whichever of the two has workers; the first goes on (S-5)."""
    for workers in ("2", "1"):
        folder = tmp_path / workers
        (folder / "home").mkdir(parents=True)
        state = ("--state", redis_server.url, "--workers", workers)
        other = Served(folder, "--port", str(shared.port), *state)
        try:
            assert other.process.wait(DEADLINE_S) == 1
            text = f"breakloop: 127.0.0.1:{shared.port} is in use (stop the other program"
            assert text in (folder / "log.jsonl").read_text()
        finally:
            other.end()
    assert len(shared.answers(4)) == 4


def shown(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What `/metrics` of an admin port says."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as answer:
        return samples(answer.read())


def asked(started: Served, count: int) -> int:
    """Ask over connections that are open at the same time, so that every worker gets some; returns how many."""
    with Traffic(started.port, 4):
        statuses = [started.decide("/v1/other", X_Team="m")[0] for _ in range(count)]
    return len(statuses)


def test_metrics_are_those_of_all(tmp_path: Path, redis_server: Server) -> None:
    """The names that one process has; counts and times of all workers, of a killed one too, each once (G-5, S-5)."""
    (tmp_path / "bundle.yaml").write_text(bundle(1))
    arguments, port = ("--policy", str(tmp_path / "bundle.yaml")), free_port()
    with fleet(tmp_path, redis_server.url, *arguments, "--admin-port", str(port)) as started:
        started.wait_ready()

        def found(name: str, *labels: tuple[str, str]) -> float:
            return shown(port).get((name, labels), 0)

        def timed() -> float:
            return found("breakloop_overhead_seconds_count", ("door", "decision"))

        sent = asked(started, 30)
        eventually(lambda: timed() == sent, "the times of all requests")
        assert found("breakloop_overhead_seconds_bucket", ("door", "decision"), ("le", "+Inf")) == sent
        assert found("breakloop_overhead_seconds_sum", ("door", "decision")) > 0
        assert found("breakloop_processes") == 2
        started.kill("worker 1")
        eventually(lambda: bool(started.log("worker.replaced")), "a new worker")
        assert timed() == sent, "what it counted stays"
        sent += asked(started, 30)
        eventually(lambda: timed() == sent, "the times of the new one, too")
        eventually(lambda: found("breakloop_processes") == 2, "both workers are counted")
        decided = [value for (name, _), value in shown(port).items() if name == "breakloop_decisions_total"]
        assert sum(decided) == sent
        of_fleet = {name for name, _ in shown(port)}
        assert started.stop() == 0
    alone, port = tmp_path / "alone", free_port()
    alone.mkdir()
    with serving(alone, "--state", redis_server.url, *arguments, "--admin-port", str(port)) as one:
        asked(one, 3)
        eventually(lambda: of_fleet == {name for name, _ in shown(port)}, "the same names")


def test_no_orphans(running: Fleet) -> None:
    """kill -9 of the supervisor leaves no process behind, and the port is free (S-5)."""
    children = running.children()
    assert len(children) == 3
    running.process.kill()
    running.process.wait()
    eventually(lambda: not any(map(is_alive, children.values())), "all processes gone")


def test_memory_is_not_shared(tmp_path: Path) -> None:
    """With memory:// it does not start, and says what to do (S-5)."""
    (tmp_path / "home").mkdir()
    served = Served(tmp_path, "--port", "0", "--workers", "2")
    try:
        assert served.process.wait(DEADLINE_S) == 1
        text = (tmp_path / "log.jsonl").read_text()
        assert "2 processes cannot share the state of memory://" in text
        assert "set state to the URL of a Redis, or workers to 1" in text
    finally:
        served.end()


def test_strict_start_needs_a_bundle(tmp_path: Path, redis_server: Server) -> None:
    """`--strict` exits 1 with the problems; without it every worker answers 503 until there is one (E-0)."""
    (tmp_path / "bundle.yaml").write_text("bundle_version: 0\npolicies: []\n")
    with fleet(tmp_path, redis_server.url, "--policy", "bundle.yaml", "--strict") as started:
        assert started.process.wait(DEADLINE_S) == 1
        assert "breakloop: bundle.yaml:1:17: bundle_version" in (tmp_path / "log.jsonl").read_text()
    (tmp_path / "log.jsonl").unlink()
    with fleet(tmp_path, redis_server.url, "--policy", "bundle.yaml") as started:
        started.wait_listening()
        assert any("NO VALID BUNDLE" in line for line in started.banner)
        status, headers, _ = started.decide("/v1/x")
        assert (status, headers["x-breakloop-reason"]) == (503, "no_bundle_loaded")
        (tmp_path / "bundle.yaml").write_text(bundle(8))
        started.wait_ready()
        assert {answer.get("bundle_version") for answer in started.each()} == {8}


def test_what_cannot_start_is_said(tmp_path: Path, redis_server: Server) -> None:
    """A worker that cannot start ends the whole start with its message (S-5)."""
    (tmp_path / "bad.pem").write_text("no certificate")
    tls = {"BREAKLOOP_TLS_CERT_FILE": "bad.pem", "BREAKLOOP_TLS_KEY_FILE": "bad.pem"}
    with fleet(tmp_path, redis_server.url, **tls) as started:
        assert started.process.wait(DEADLINE_S) == 1
        text = (tmp_path / "log.jsonl").read_text()
        assert text.count("breakloop: tls: cert_file and key_file are not a certificate") == 1


@pytest.fixture
def proxy(tmp_path: Path, redis_server: Server) -> Iterator[tuple[Fleet, ThreadedLLM]]:
    with StandInLLM.in_thread() as llm:
        grace = {"BREAKLOOP_SHUTDOWN_GRACE_SECONDS": "8"}
        with fleet(tmp_path, redis_server.url, "--upstream", f"openai={llm.url}", **grace) as started:
            started.wait_ready()
            yield started, llm


def streaming(started: Fleet, llm: ThreadedLLM, stack: ExitStack, count: int = 4) -> list[RawClient]:
    """Clients whose answers have begun and wait for `llm.resume`."""
    clients = [stack.enter_context(RawClient(started.port)) for _ in range(count)]
    for client in clients:
        llm.next(say("one two three four").stall(2))
        client.send(chat(stream=True))
        client.until(b"one")
    return clients


def refuses(port: int) -> bool:
    try:
        with RawClient(port, timeout_s=1):
            return False
    except OSError:
        return True


def test_streams_are_finished(proxy: tuple[Fleet, ThreadedLLM]) -> None:
    """After SIGTERM nobody is let in, running streams end whole, and then everything exits 0 (S-6)."""
    started, llm = proxy
    with ExitStack() as stack:
        clients = streaming(started, llm, stack)
        started.process.send_signal(signal.SIGTERM)
        eventually(lambda: refuses(started.port), "no new connections")
        assert started.process.poll() is None  # a worker without a stream has ended: on a busy machine there may be one
        llm.resume()
        for client in clients:
            assert b"four" in client.until(b"\r\n0\r\n\r\n")
        assert started.process.wait(DEADLINE_S) == 0
    assert [line["cut_off"] for line in started.log("stopped")] == [0, 0]
    assert not started.log("worker.died")


def test_signals_to_everybody_are_one(proxy: tuple[Fleet, ThreadedLLM]) -> None:
    """A service manager's SIGTERM to all processes, or a terminal's SIGINT, is no second signal (S-6)."""
    started, llm = proxy
    with ExitStack() as stack:
        clients = streaming(started, llm, stack)
        for number in (signal.SIGINT, signal.SIGTERM):
            for pid in started.children().values():
                os.kill(pid, number)
        started.process.send_signal(signal.SIGINT)
        eventually(lambda: refuses(started.port), "no new connections")
        llm.resume()
        for client in clients:
            assert b"four" in client.until(b"\r\n0\r\n\r\n")
        assert started.process.wait(DEADLINE_S) == 0


def test_a_second_signal_hurries(proxy: tuple[Fleet, ThreadedLLM]) -> None:
    """The second signal ends what is under way, with 1 (S-6)."""
    started, llm = proxy
    with ExitStack() as stack:
        streaming(started, llm, stack)
        children = list(started.children().values())
        started.process.send_signal(signal.SIGTERM)
        eventually(lambda: refuses(started.port), "no new connections")
        started.process.send_signal(signal.SIGTERM)
        assert started.process.wait(DEADLINE_S) == 1
        assert not any(map(is_alive, children))


def test_a_worker_alone_is_told_to_end(proxy: tuple[Fleet, ThreadedLLM]) -> None:
    """SIGTERM to one worker: its streams end whole, another takes its place (S-5, S-6)."""
    started, llm = proxy
    with ExitStack() as stack:
        clients = streaming(started, llm, stack)
        ended = started.kill("worker 2", signal.SIGTERM)
        llm.resume()
        for client in clients:
            assert b"four" in client.until(b"\r\n0\r\n\r\n")
            client.close()
        eventually(lambda: not is_alive(ended), "its end")
        eventually(lambda: bool(started.log("worker.replaced")), "a new worker")
    assert started.log("worker.died")[0]["ended"] == "exit code 0"
    assert started.stop() == 0
