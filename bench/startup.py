"""Short programs: what a start costs, compared with the start of the interpreter alone. `python -m bench startup`.

The hook of Claude Code runs twice for each tool call, and the agent waits for it: before the call it looks up what was
decided, after it the hook decides. `serve` is measured until it is ready.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import programs
from bench.report import Options, Report, Target, spread

INTERPRETER = "interpreter alone"
IMPORT = "import breakloop"
GUARD = "Guard()"
HOOK = "breakloop hook claude-code, before a tool"
DECIDING_HOOK = "breakloop hook claude-code, after a tool"
SERVE = "breakloop serve, until it is ready"
_TIMES_MAX = {IMPORT: 4.0, GUARD: 30.0, HOOK: 7.0, DECIDING_HOOK: 9.0, SERVE: 42.0}
_COMMANDS = {
    INTERPRETER: ("-c", "pass"),
    IMPORT: ("-c", "import breakloop"),
    GUARD: ("-c", "from breakloop import Guard; Guard()"),
    HOOK: ("-m", "breakloop", "hook", "claude-code"),
    DECIDING_HOOK: ("-m", "breakloop", "hook", "claude-code"),
}
_BEFORE = {"session_id": "s", "hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "ls"}}
_AFTER = {**_BEFORE, "hook_event_name": "PostToolUse", "tool_response": {"stdout": "a.txt\nb.txt"}}
_EVENTS = {HOOK: _BEFORE, DECIDING_HOOK: _AFTER}
_STARTS = 5  # of each command in a round; the cheapest counts


def run(options: Options) -> Report:
    """Measure everything and return the table."""
    report = Report("startup", "A start, in CPU time", ("", "CPU ms", "times the interpreter"))
    costs: dict[str, list[float]] = {name: [] for name in (*_COMMANDS, SERVE)}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for number in range(options.rounds):
            options.progress(f"startup: round {number + 1} of {options.rounds}")
            for name in _COMMANDS:
                costs[name].append(min(_cpu_s(name, home) for _ in range(_STARTS)))
            costs[SERVE].append(min(_ready_cpu_s(home / f"{number}-{start}") for start in range(_STARTS)))
    for name, seconds in costs.items():
        times = [one / bare for one, bare in zip(seconds, costs[INTERPRETER], strict=True)]
        figures = {"cpu_ms": statistics.median(seconds) * 1000, "times": statistics.median(times)}
        report.add(name, figures, (spread([one * 1000 for one in seconds]), spread(times)))
        if name in _TIMES_MAX:
            report.targets.append(Target(f"{name}: times the interpreter", figures["times"], _TIMES_MAX[name]))
    return report


def _cpu_s(name: str, home: Path) -> float:
    """Run a program to its end and return its user and system time."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    event = home / "event.json"
    event.write_text(json.dumps(_EVENTS.get(name)), encoding="utf-8")
    arguments = _COMMANDS[name]
    with event.open("rb") as given:
        process = subprocess.Popen(
            (sys.executable, *arguments), env=environment, stdin=given, stdout=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)}: exit code {process.returncode}")
    return used.ru_utime + used.ru_stime


def _ready_cpu_s(folder: Path) -> float:
    """Start a gateway without a policy and return what it has used when it says that it is ready."""
    with programs.breakloop_proxy(folder, "0-1", "http://127.0.0.1:9", None, {}) as program:
        return program.cpu_s()
