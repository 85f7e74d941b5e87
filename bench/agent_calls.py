"""Calls as agents make them, through breakloop with its defaults and through nginx' `proxy_pass`, in rounds that take
turns: conversations that grow, of 2 KB to 3 MB, plain and compressed, in three APIs. Also Envoy that asks breakloop
(`ext_authz`), and how evenly two workers share few agents. `python -m bench agents`.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from time import monotonic, monotonic_ns

from bench import programs
from bench.contenders import GUARD, NGINX
from bench.load import Burst, run_load
from bench.measure import LOAD_CORE, SERVER_CORE, Sample, figures, measure, need_two_cores, ratios, warnings
from bench.report import Options, Report, Target, spread
from bench.runs import CHAT, GZIP, MESSAGES, RESPONSES, STEPS, ZSTD, AgentRuns

ENVOY = "Envoy, ext_authz to breakloop"
WORKERS = "2 workers"
_KB = 1024
_SIZES_KB = (2, 20, 60, 200, 600, 3072)
CASES = {
    **{f"chat, {size} KB": AgentRuns(CHAT, size * _KB) for size in _SIZES_KB},
    **{f"chat, {size} KB, gzip": AgentRuns(CHAT, size * _KB, GZIP) for size in (20, 200, 600)},
    **{f"chat, {size} KB, zstd": AgentRuns(CHAT, size * _KB, ZSTD) for size in (20, 200, 600)},
    **{f"Responses, {size} KB": AgentRuns(RESPONSES, size * _KB) for size in (20, 200)},
    **{f"Messages, {size} KB": AgentRuns(MESSAGES, size * _KB) for size in (20, 200, 600)},
    "chat, 20 KB, streamed": AgentRuns(CHAT, 20 * _KB, streamed=True),
}
_TIMES_MAX = {"chat, 2 KB": 7.0, "chat, 20 KB": 8.0, "chat, 200 KB": 5.0, "chat, 600 KB": 4.0}
_BEHIND_ENVOY = ("chat, 20 KB", "chat, 200 KB")
_FEW_AGENTS = 4
_SHARE_MAX = 0.65  # of the busier of two workers, with few agents
_AGENTS = 8
_BURST_BYTES = 40_000_000
_REQUESTS = (32, 512)  # of a burst, at least and at most
_PATIENCE_S = 60
_OK = b"HTTP/1.1 200"
_END = b"\r\n0\r\n\r\n"
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_ENVOY_FILE = Path(__file__).parent.parent / "examples" / "envoy" / "envoy.yaml"
_ENVOY_PLACE = Path(__file__).parent.parent / ".cache" / "gateways" / "bin"


# -- the client --------------------------------------------------------------------------------------------------------


def send(port: int, case: str, first: int, agents: int, runs: int) -> None:
    """Let so many agents make runs, each one step at a time, and print what came back. Requests are built before."""
    made = [[CASES[case].requests(first + at * agents + agent) for agent in range(agents)] for at in range(runs)]
    taken_us: list[int] = []
    refused = 0
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S))
            for _ in range(agents)
        ]
        began = monotonic()
        for steps in (zip(*of_agents, strict=True) for of_agents in made):
            for requests in steps:
                sent_ns = []
                for connection, request in zip(sockets, requests, strict=True):
                    sent_ns.append(monotonic_ns())
                    connection.sendall(request)
                for connection, at_ns in zip(sockets, sent_ns, strict=True):
                    refused += not _response(connection).startswith(_OK)
                    taken_us.append((monotonic_ns() - at_ns) // 1000)
        elapsed_us = (monotonic() - began) * 1e6
    taken_us.sort()
    p50, p99 = (taken_us[len(taken_us) * share // 100] for share in (50, 99))
    counted = f"requests={len(taken_us)} duration_us={elapsed_us:.0f} refused={refused} broken=0"
    print(f"RESULT {counted} p50_us={p50} p99_us={p99}")


def _response(connection: socket.socket) -> bytes:
    """One whole response."""
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += _received(connection)
    length = _LENGTH.search(data, 0, end + 2)
    while len(data) < end + 4 + int(length[1]) if length else not data.endswith(_END):
        data += _received(connection)
    return data


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(262_144)
    if not data:
        raise SystemExit("bench: a connection was closed without a response")
    return data


# -- the benchmark -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Together(programs.Program):
    """Several programs that serve one request; it costs what all of them do."""

    others: tuple[programs.Program, ...] = ()

    def cpu_each_s(self) -> dict[int, float]:
        found = programs.Program(self.pid, self.port).cpu_each_s()
        for other in self.others:
            found |= other.cpu_each_s()
        return found

    def rss_bytes(self) -> int:
        return programs.Program(self.pid, self.port).rss_bytes() + sum(other.rss_bytes() for other in self.others)


class Load:
    """Starts the client. No run is made twice, whichever program gets it."""

    def __init__(self, upstream: programs.Upstream, most: int) -> None:
        self._upstream = upstream
        self._most = most  # requests of a burst
        self._next = 0

    def measure(self, name: str, case: str, program: programs.Program, agents: int = _AGENTS) -> Sample:
        """One burst of runs."""
        least, most = _REQUESTS
        wanted = min(max(least, min(most, _BURST_BYTES // CASES[case].size_bytes)), self._most)
        runs = max(1, wanted // (agents * STEPS))
        agents = min(agents, max(1, wanted // (runs * STEPS)))

        def burst() -> Burst:
            numbers = [str(number) for number in (self._next, agents, runs)]
            command = ["taskset", "-c", str(LOAD_CORE), sys.executable, "-m", "bench.agent_calls", str(program.port)]
            self._next += agents * runs
            return run_load([*command, case, *numbers])

        return measure(f"{case}, {name}", program, burst, [self._upstream])


def run(options: Options) -> Report:
    """Measure everything and return the table."""
    need_two_cores()
    cases = [case for case in CASES if fnmatch(case, options.cases)]
    taken: dict[str, dict[str, list[Sample]]] = {case: {} for case in cases}
    shares: list[float] = []
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        upstream = stack.enter_context(programs.upstream(folder / "upstream", LOAD_CORE))
        started, workers = _start(stack, folder, upstream)
        load = Load(upstream, options.requests)
        for number in range(options.rounds + 1):
            for case in cases:
                told = f"round {number} of {options.rounds}" if number else "warming up"
                options.progress(f"agents: {told}: {case}")
                for name, program in started.items():
                    if name != ENVOY or case in _BEHIND_ENVOY:
                        sample = load.measure(name, case, program)
                        if number:
                            taken[case].setdefault(name, []).append(sample)
            before_s = workers.cpu_each_s()
            load.measure(WORKERS, "chat, 20 KB", workers, _FEW_AGENTS)
            if number:
                shares.append(_share(before_s, workers.cpu_each_s()))
    return report_of(taken, shares)


def _start(
    stack: ExitStack, folder: Path, upstream: programs.Upstream
) -> tuple[dict[str, programs.Program], programs.Program]:
    """Start the programs that are compared, and two workers on both cores."""
    url = f"http://127.0.0.1:{upstream.port}"
    messages = ["--upstream", f"anthropic={url}"]  # which would go to the provider
    started = {
        NGINX: stack.enter_context(programs.nginx_proxy(folder / "nginx", SERVER_CORE, upstream)),
        GUARD: stack.enter_context(programs.breakloop_proxy(folder / "guard", SERVER_CORE, url, None, {}, messages)),
    }
    envoy = shutil.which("envoy", path=f"{_ENVOY_PLACE}{os.pathsep}{os.environ.get('PATH', '')}")
    if envoy is not None:
        started[ENVOY] = stack.enter_context(_envoy(envoy, folder / "envoy", upstream))
    both = f"{SERVER_CORE},{LOAD_CORE}"
    redis = stack.enter_context(programs.redis(folder / "redis", LOAD_CORE))
    flags = ["--workers", "2", "--state", f"redis://127.0.0.1:{redis.port}/0?time_budget_ms=5000"]
    workers = programs.breakloop_proxy(folder / "workers", both, url, None, {}, flags)
    return started, stack.enter_context(workers)


@contextmanager
def _envoy(binary: str, folder: Path, upstream: programs.Upstream) -> Iterator[programs.Program]:
    """Envoy as in `examples/envoy`, in front of a decision service with the built-in protection."""
    folder.mkdir()
    flags = ["--mode", "decision"]
    with programs.breakloop_proxy(folder / "service", SERVER_CORE, "http://127.0.0.1:9", None, {}, flags) as service:
        port = programs.free_port()
        ports = {"8080": port, "8787": service.port, "9000": upstream.port}
        text = _ENVOY_FILE.read_text(encoding="utf-8")
        for written, real in ports.items():
            text = text.replace(f"port_value: {written}", f"port_value: {real}")
        file = folder / "envoy.yaml"
        file.write_text(text, encoding="utf-8")
        command = ["taskset", "-c", str(SERVER_CORE), binary, "-c", str(file), "--concurrency", "1", "-l", "error"]
        with programs.running([*command, "--disable-hot-restart"], {}) as process:
            programs.wait_for(port, process, 20)
            yield Together(process.pid, port, (service,))


def _share(before_s: Mapping[int, float], after_s: Mapping[int, float]) -> float:
    """The part of the busier of two workers. Other processes of the tree do next to nothing."""
    used = sorted((now - before_s.get(pid, 0.0) for pid, now in after_s.items()), reverse=True)[:2]
    return used[0] / sum(used)


def report_of(taken: Mapping[str, Mapping[str, list[Sample]]], shares: list[float]) -> Report:
    """Return the table of what was measured."""
    title = "Calls of agents, CPU time of the proxy per call on one core"
    report = Report("agents", title, ("", "nginx us", "breakloop us", "times nginx", "p50 ms", "p99 ms", "MB"))
    for case, samples in taken.items():
        nginx = samples[NGINX]
        for name, mine in samples.items():
            if name == NGINX:
                continue
            line = case if name == GUARD else f"{case}: {name}"
            found, base = figures(mine, nginx), figures(nginx, nginx)
            middle = sorted(mine, key=lambda one: one.burst.p99_us)[len(mine) // 2].burst
            found |= {"nginx_us": base["cpu_us"], "p50_us": middle.p50_us, "p99_us": middle.p99_us}
            cells = (f"{base['cpu_us']:.0f}", f"{found['cpu_us']:.0f}", spread(ratios(mine, nginx)))
            report.add(
                line,
                found,
                (*cells, f"{middle.p50_us / 1000:.1f}", f"{middle.p99_us / 1000:.1f}", f"{found['rss_mb']:.0f}"),
            )
            if name == GUARD and case in _TIMES_MAX:
                report.targets.append(Target(f"{case}: times nginx", found["ratio"], _TIMES_MAX[case]))
    if shares:
        middle_share = sorted(shares)[len(shares) // 2]
        told = f"share of the busier of {WORKERS}, {_FEW_AGENTS} agents"
        report.add(told, {"share": middle_share}, ("", "", spread(shares), "", "", ""))
        report.targets.append(Target(told, middle_share, _SHARE_MAX))
    if not any(ENVOY in samples for samples in taken.values()):
        report.warnings.append("Envoy is not installed: `make tools` installs it")
    report.warnings += warnings({f"{case}: {name}": one for case, of in taken.items() for name, one in of.items()})
    return report


if __name__ == "__main__":
    send(int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6]))
