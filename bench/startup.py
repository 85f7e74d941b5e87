"""Short programs: what a start costs, compared with the start of the interpreter alone. `python -m bench startup`.

The hook of Claude Code runs once for each tool call, and the agent waits for it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.report import Options, Report, Target, spread

INTERPRETER = "interpreter alone"
IMPORT = "import breakloop"
HOOK = "breakloop hook claude-code"
_TIMES_MAX = {IMPORT: 4.0, HOOK: 8.0}
_COMMANDS = {
    INTERPRETER: ("-c", "pass"),
    IMPORT: ("-c", "import breakloop"),
    HOOK: ("-m", "breakloop", "hook", "claude-code"),
}
_EVENT = {"session_id": "s", "hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "ls"}}
_STARTS = 5  # of each command in a round; the cheapest counts


def run(options: Options) -> Report:
    """Measure everything and return the table."""
    report = Report("startup", "A start, in CPU time", ("", "CPU ms", "times the interpreter"))
    costs: dict[str, list[float]] = {name: [] for name in _COMMANDS}
    with tempfile.TemporaryDirectory() as home:
        for number in range(options.rounds):
            options.progress(f"startup: round {number + 1} of {options.rounds}")
            for name, arguments in _COMMANDS.items():
                costs[name].append(min(_cpu_s(arguments, Path(home)) for _ in range(_STARTS)))
    for name, seconds in costs.items():
        times = [one / bare for one, bare in zip(seconds, costs[INTERPRETER], strict=True)]
        figures = {"cpu_ms": statistics.median(seconds) * 1000, "times": statistics.median(times)}
        report.add(name, figures, (spread([one * 1000 for one in seconds]), spread(times)))
        if name in _TIMES_MAX:
            report.targets.append(Target(f"{name}: times the interpreter", figures["times"], _TIMES_MAX[name]))
    return report


def _cpu_s(arguments: tuple[str, ...], home: Path) -> float:
    """Run a program to its end and return its user and system time."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    event = home / "event.json"
    event.write_text(json.dumps(_EVENT), encoding="utf-8")
    with event.open("rb") as given:
        process = subprocess.Popen(
            (sys.executable, *arguments), env=environment, stdin=given, stdout=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)}: exit code {process.returncode}")
    return used.ru_utime + used.ru_stime
