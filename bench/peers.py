"""2 KB chat calls and SSE streams through breakloop beside the LiteLLM proxy and the Portkey gateway, one process each
on one core, in rounds that take turns. `make bench-peers` installs both in a place of their own and runs this."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import chat, contenders, programs, proxy, streams
from bench.contenders import DIRECT, GUARD
from bench.load import Callers
from bench.measure import LOAD_CORE, SERVER_CORE, need_two_cores, ratios
from bench.plot import Chart
from bench.report import Options, Report, Target

PLACE = Path(__file__).parent.parent / ".cache" / "peers"
LITELLM, PORTKEY = "LiteLLM", "Portkey"
_TIMES_LESS = {PORTKEY: 8.0, LITELLM: 80.0}  # CPU of a 2 KB call, beside breakloop as it comes
_SIZE_KB = 2
_CALLS, _STREAMS = f"{_SIZE_KB} KB call", "SSE chunk"
_START_S = 120
_FIRST_CALLS = 10
_LITELLM_BIN = PLACE / "litellm" / "bin"
_PORTKEY_PACKAGE = PLACE / "portkey" / "node_modules" / "@portkey-ai" / "gateway"

Fields = tuple[tuple[str, str], ...]
Starter = Callable[[Path, programs.Upstream], AbstractContextManager[programs.Program]]


@dataclass(frozen=True, slots=True)
class Subject:
    """A running program, and the header fields that a request to it needs on top."""

    program: programs.Program
    fields: Fields = ()


def run(options: Options) -> Report:
    """Measure everything and return the table."""
    need_two_cores()
    versions = {name: version for name, find in _VERSIONS.items() if (version := find()) is not None}
    if not versions:
        raise SystemExit("bench: neither LiteLLM nor Portkey is installed here; `make bench-peers` installs them")
    calls: dict[str, list[proxy.Taken]] = {}
    chunks: dict[str, list[streams.Taken]] = {}
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        upstream = stack.enter_context(programs.upstream(folder / "upstream", LOAD_CORE))
        subjects = _start(stack, folder, upstream, list(versions))
        loads, holds = proxy.Loads(upstream, Callers), streams.Loads(upstream)
        for subject in subjects.values():  # that it passes a body on; LiteLLM's first call takes seconds
            loads.delay(subject.program.port, chat.call(_SIZE_KB * 1024, chat.PROBE, *subject.fields), _FIRST_CALLS)
        loads.seconds = options.seconds
        for number in range(options.rounds + 1):
            options.progress(f"peers: round {number} of {options.rounds}" if number else "peers: warming up")
            found = _calls(loads, subjects)
            held = _chunks(holds, subjects, options.seconds)
            for name in found if number else ():
                calls.setdefault(name, []).append(found[name])
                chunks.setdefault(name, []).append(held[name])
    return _report(calls, chunks, versions)


def _calls(loads: proxy.Loads, subjects: dict[str, Subject]) -> dict[str, proxy.Taken]:
    found = {DIRECT: loads.direct(_SIZE_KB, delays=True)}
    for name, subject in subjects.items():
        found[name] = loads.through(name, subject.program, _SIZE_KB, *subject.fields, delays=True)
    return found


def _chunks(loads: streams.Loads, subjects: dict[str, Subject], seconds: int) -> dict[str, streams.Taken]:
    found = {DIRECT: loads.direct(chat.FLAT_OUT, seconds)}
    for name, subject in subjects.items():
        found[name] = loads.through(name, subject.program, chat.FLAT_OUT, seconds, *subject.fields)
    return found


def _report(
    calls: dict[str, list[proxy.Taken]], chunks: dict[str, list[streams.Taken]], versions: dict[str, str]
) -> Report:
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    report = proxy.new_report("peers", f"breakloop beside {told}: one process and one core each", "breakloop")
    report.chart = Chart(
        "CPU time through a gateway", "microseconds on one core, every step ten times the one before", True
    )
    proxy.lines(report, _CALLS, calls, GUARD)
    streams.lines(report, _STREAMS, chunks, GUARD, gap=("",))
    proxy.tell_warnings(report, {_CALLS: calls})
    for name, limit in _TIMES_LESS.items():
        if name in calls:
            value = statistics.median(ratios(proxy.samples(calls[name]), proxy.samples(calls[GUARD])))
            report.targets.append(Target(f"{name}: times the CPU of breakloop", value, limit, least=True))
        else:
            report.warnings.append(f"{name} is not installed here, and so not in the table")
    return report


def _start(stack: ExitStack, folder: Path, upstream: programs.Upstream, peers: list[str]) -> dict[str, Subject]:
    ours = contenders.start(stack, folder / "proxies", upstream, buffering=False)
    subjects = {name: Subject(program) for name, program in ours.items()}
    for name in peers:
        program = stack.enter_context(_STARTERS[name](folder / name, upstream))
        subjects[name] = Subject(program, _fields(name, upstream))
    return subjects


def _fields(name: str, upstream: programs.Upstream) -> Fields:
    if name != PORTKEY:
        return ()
    return ("x-portkey-provider", "openai"), ("x-portkey-custom-host", f"http://127.0.0.1:{upstream.port}/v1")


@contextmanager
def litellm(folder: Path, upstream: programs.Upstream) -> Iterator[programs.Program]:
    """One worker, no database, no callbacks, errors logged only. The client's key is the master key: it wants one."""
    folder.mkdir()
    target = {"model": f"openai/{chat.MODEL}", "api_base": f"http://127.0.0.1:{upstream.port}/v1", "api_key": "sk-x"}
    config = {"model_list": [{"model_name": chat.MODEL, "litellm_params": target}]}
    file = folder / "config.yaml"
    file.write_text(json.dumps(config))  # JSON is YAML
    env = {
        "LITELLM_MASTER_KEY": chat.API_KEY,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
    }
    port = programs.free_port()
    flags = ["--config", str(file), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    with _quiet([str(_LITELLM_BIN / "litellm"), *flags], env, port) as program:
        yield program


@contextmanager
def portkey(_folder: Path, _upstream: programs.Upstream) -> Iterator[programs.Program]:
    """The gateway without its pages. Where to send a call stands in the call."""
    port = programs.free_port()
    script = _PORTKEY_PACKAGE / "build" / "start-server.js"
    with _quiet(["node", str(script), f"--port={port}", "--headless"], {"NODE_ENV": "production"}, port) as program:
        yield program


@contextmanager
def _quiet(command: list[str], env: dict[str, str], port: int) -> Iterator[programs.Program]:
    pinned = ["taskset", "-c", str(SERVER_CORE), *command]
    with programs.running(pinned, env, stdout=subprocess.DEVNULL) as process:
        programs.wait_for(port, process, _START_S)
        yield programs.Program(process.pid, port)


def _litellm_version() -> str | None:
    found = list(_LITELLM_BIN.parent.glob("lib/python*/site-packages/litellm-*.dist-info"))
    return found[0].name.removeprefix("litellm-").removesuffix(".dist-info") if found else None


def _portkey_version() -> str | None:
    package = _PORTKEY_PACKAGE / "package.json"
    if not package.exists() or shutil.which("node", path=os.environ.get("PATH")) is None:
        return None
    return str(json.loads(package.read_text(encoding="utf-8"))["version"])


_VERSIONS: dict[str, Callable[[], str | None]] = {PORTKEY: _portkey_version, LITELLM: _litellm_version}
_STARTERS: dict[str, Starter] = {PORTKEY: portkey, LITELLM: litellm}


if __name__ == "__main__":
    from bench.__main__ import main

    main(["peers"])
