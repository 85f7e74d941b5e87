"""`breakloop run` with real agents: exit codes, and nothing that is left running."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from breakloop.cli.run import EXIT_CODES
from breakloop.testing import StandInLLM, ThreadedLLM
from tests.deadlines import DEADLINE_S
from tests.e2e import claude
from tests.e2e.served import SRC

pytestmark = pytest.mark.e2e

# Arguments: what to ask in each turn ("same" or "new"), and whether to go on after an error.
AGENT = """
import subprocess, sys, openai
client = openai.OpenAI(api_key="sk-canary-run", max_retries=0, default_headers={"X-Agent-Id": "nightly"})
helpers = [subprocess.Popen(["sleep", "600"], start_new_session=apart) for apart in (False, True)]
print(*[helper.pid for helper in helpers], flush=True)
for turn in range(30):
    text = "Read the file." if sys.argv[1] == "same" else f"Read file {turn}."
    try:
        client.chat.completions.create(model="gpt-5-mini", messages=[{"role": "user", "content": text}])
    except openai.RateLimitError:
        if sys.argv[2] == "give-up":
            raise SystemExit("stopped")
if sys.argv[2] == "wait":
    input()
print("done", flush=True)
"""


def run(*command: str, url: str = "", options: tuple[str, ...] = (), **more: Any) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(SRC), "OPENAI_BASE_URL": f"{url}/v1" if url else ""}
    line = [sys.executable, "-m", "breakloop", "run", *options, "--", *command]
    return subprocess.run(
        line, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False, stdin=subprocess.DEVNULL, **more
    )


def agent(llm: ThreadedLLM, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-c", AGENT, *arguments, url=llm.url, options=options)


def ended(done: subprocess.CompletedProcess[str]) -> bool:
    """Tell whether what an agent has started has ended, in its own session or not. It may still be in the table of
    processes, until somebody asks how."""
    return all(map(is_over, done.stdout.split()[:2]))


def is_over(pid: str) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_healthy_agent_ends_with_its_own_code() -> None:
    """All of its calls reached the provider that was set, and what it started is gone."""
    with StandInLLM.in_thread() as llm:
        done = agent(llm, "new", "give-up")
        assert (done.returncode, done.stdout.split()[2]) == (0, "done"), done.stderr
        assert len(llm.requests) == 30
    assert "30 calls" in done.stderr
    assert ended(done)


def test_an_agent_that_gives_up_after_a_loop() -> None:
    """It ended by itself, with 1; the exit code still says why."""
    with StandInLLM.in_thread() as llm:
        done = agent(llm, "same", "give-up")
        assert (done.returncode, len(llm.requests)) == (90, 5), done.stderr
    assert "the command failed with 1 after a denial (loop): Blocked: identical request" in done.stderr


def test_an_agent_that_goes_on_is_ended() -> None:
    """With everything it has started."""
    with StandInLLM.in_thread() as llm:
        done = agent(llm, "same", "go-on")
        assert (done.returncode, len(llm.requests)) == (90, 5), done.stderr
    assert "done" not in done.stdout
    assert "ending the command (loop): Blocked: identical request sent 10 times" in done.stderr
    assert ended(done)


def test_the_cost_ends_a_run() -> None:
    with StandInLLM.in_thread() as llm:
        done = agent(llm, "new", "go-on", options=("--max-usd", "0.00005", "--quiet"))
        assert done.returncode == 91, done.stderr
        assert len(llm.requests) < 30
    assert done.stderr.splitlines() == ["breakloop: ending the command (budget): it has spent $0.0001"]


POLICIES = {
    "switch": "kill_switches: [{scope_key: 'agent:id', scope_value: nightly, reason: enough}]",
    "action": "defaults: {loop_detection: [{similarity: tail, action: kill}]}",
    "pause": "defaults: {loop_detection: [{similarity: tail, action: pause}]}",
    "steps": "agents: {nightly: {max_usd_per_run: 0.00001}}",
}
LIMIT = """
bundle_version: 1
policies:
  - id: calls
    spec:
      selector: {pathPrefix: /}
      rules:
        - {name: all, limit_keys: [], algorithm: token_bucket, algorithm_config: {tokens_per_second: 0.001, burst: 3}}
"""
# By policy: what the agent asks, what it does with an error, the exit code, and whether it was ended.
CODES = [
    ("switch", "new", "go-on", 92, True),  # at the first denial
    ("action", "same", "go-on", 92, True),
    ("limit", "new", "give-up", 93, False),
    ("limit", "new", "go-on", 0, False),  # waiting would have helped, and it has ended well
    ("pause", "same", "give-up", 94, False),
    ("steps", "new", "go-on", 91, True),
]


@pytest.mark.parametrize(("policy", "asks", "does", "code", "stopped"), CODES)
def test_exit_codes_by_policy(tmp_path: Path, policy: str, asks: str, does: str, code: int, *, stopped: bool) -> None:
    """As documented, and nothing is left running."""
    more = POLICIES.get(policy)
    (tmp_path / "policy.yaml").write_text(f"bundle_version: 1\npolicies: []\n{more}\n" if more else LIMIT)
    with StandInLLM.in_thread() as llm:
        done = agent(llm, asks, does, options=("--policy", str(tmp_path / "policy.yaml")))
    assert (done.returncode, "ending the command" in done.stderr) == (code, stopped), done.stderr
    assert ("done" in done.stdout) == (code == 0)
    assert ended(done)


def test_the_exit_codes_of_the_page() -> None:
    page = Path("docs/how-to/run-an-agent.md").read_text()
    for stop_reason, code in EXIT_CODES.items():
        assert f"| {code} | {stop_reason}" in page


def test_the_cost_is_shown_while_it_runs() -> None:
    """In the title of the terminal."""
    with StandInLLM.in_thread() as llm:
        line = [sys.executable, "-m", "breakloop", "run", "--", sys.executable, "-c", AGENT, "new", "wait"]
        pid, terminal = pty.fork()
        if pid == 0:
            env = {**os.environ, "PYTHONPATH": str(SRC), "OPENAI_BASE_URL": f"{llm.url}/v1"}
            os.execve(sys.executable, line, env)
        try:
            seen = b""
            while not re.search(rb"\x1b\]0;breakloop \$0\.00\d+, 30 calls, [\d,]+ tokens\x07", seen):
                seen += os.read(terminal, 4096)
            os.write(terminal, b"\n")
            while b"breakloop: $" not in seen:
                seen += os.read(terminal, 4096)
        finally:
            _pid, status = os.waitpid(pid, 0)
            os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize(("command", "code"), [(("sh", "-c", "exit 7"), 7), (("no-such-agent",), 127), (("/",), 126)])
def test_exit_codes_of_the_command(command: tuple[str, ...], code: int) -> None:
    assert run(*command).returncode == code


def test_a_policy_that_is_not_valid_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("policies: 3\n")
    done = run("touch", str(tmp_path / "started"), options=("--policy", str(tmp_path / "policy.yaml")))
    assert done.returncode != 0
    assert not (tmp_path / "started").exists()


def test_signals_reach_the_command() -> None:
    """As a shell reports it; the gateway ends after it."""
    line = [sys.executable, "-m", "breakloop", "run", "--", "sh", "-c", "echo ready; sleep 600 & wait"]
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    with subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        started.send_signal(signal.SIGTERM)
        assert started.wait(DEADLINE_S) == 128 + signal.SIGTERM


def test_the_command_has_the_terminal() -> None:
    """It can read what a person types, as coding agents do."""
    line = [sys.executable, "-m", "breakloop", "run", "--", "sh", "-c", "read typed; echo heard $typed"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, line, {**os.environ, "PYTHONPATH": str(SRC)})
    try:
        os.write(terminal, b"something\n")
        seen = b""
        while b"heard something" not in seen:
            seen += os.read(terminal, 4096)
    finally:
        _pid, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0


def test_job_control() -> None:
    """In the background, it leaves the terminal to the shell; Ctrl-Z stops it with the command, and `fg` continues
    both."""
    pid, terminal = pty.fork()
    if pid == 0:
        env = {"PATH": os.environ["PATH"], "HOME": "/", "TERM": "dumb", "PS1": "$ ", "PYTHONPATH": str(SRC)}
        os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], env)

    def told(typed: bytes, answer: bytes) -> None:
        os.write(terminal, typed)
        seen = b""
        while answer not in seen:
            seen += os.read(terminal, 4096)

    run = f"{sys.executable} -m breakloop run --quiet -- sh -c".encode()
    try:
        told(run + b" 'echo star''ted; sleep 600' &\n", b"started")
        told(b"echo the shell $((40 + 2))\n", b"the shell 42")
        told(b"kill %1; wait; echo over $((40 + 3))\n", b"over 43")
        # It has the terminal once it has read a line. A Ctrl-Z while it is stopped for want of the terminal would be lost.
        told(run + b" 'read typed; echo rea''dy $typed; read typed; echo heard $typed'\nfirst\n", b"ready first")
        told(b"\x1a", b"Stopped")
        told(b"fg\n", b"breakloop run")
        told(b"something\n", b"heard something")
        os.write(terminal, b"exit\n")
        _pid, status = os.waitpid(pid, 0)
    finally:
        os.close(terminal)  # which ends a shell that is still there
    assert os.waitstatus_to_exitcode(status) == 0


# Runs a command whose terminal is handed over late: after the command was stopped, as a busy machine may do it.
LATE = """
import asyncio, os, signal, sys
from breakloop.cli.run import AgentProcess

hand_over = AgentProcess._hand_over

def late(self, owner, group):
    if number := int(sys.argv[1]):  # somebody presses Ctrl-Z as soon as the command has the terminal
        hand_over(self, owner, group)
        os.killpg(group, signal.SIGCONT)  # it may have read before: a process that is stopped cannot be stopped again
        os.killpg(group, number)
    os.waitid(os.P_PID, group, os.WSTOPPED | os.WNOWAIT)
    hand_over(self, owner, group)
    AgentProcess._hand_over = hand_over

AgentProcess._hand_over = late
command = AgentProcess(["sh", "-c", "echo rea''dy; read typed; echo heard $typed"])
command.start(os.environ)
print("started", flush=True)
sys.exit(asyncio.run(command.wait()))
"""


@pytest.mark.parametrize("number", [0, signal.SIGTSTP])
def test_the_terminal_is_handed_over_late(number: int) -> None:
    """A command that has read from it before is continued, and Ctrl-Z is not lost."""
    parent, terminal = pty.fork()
    if parent == 0:
        os.execve(
            sys.executable, [sys.executable, "-c", LATE, str(int(number))], {**os.environ, "PYTHONPATH": str(SRC)}
        )
    seen = b""
    while b"started" not in seen:
        seen += os.read(terminal, 4096)
    if number:
        _pid, status = os.waitpid(parent, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        os.kill(parent, signal.SIGCONT)
    os.write(terminal, b"something\n")
    while b"heard something" not in seen:
        seen += os.read(terminal, 4096)
    _pid, status = os.waitpid(parent, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0


def leaving(turn: int) -> dict[str, str]:
    """The same again and again, and each time a process that goes on."""
    started = "sleep 600 >/dev/null 2>&1 & echo $! >>started; setsid sleep 600 >/dev/null 2>&1 & echo $! >>started"
    return {"command": f"{{ {started}; }}; {claude.COMMAND}", "description": "Look at the file"}


CLAUDE: list[tuple[str, Callable[[int], dict[str, str] | None], tuple[str, ...], int]] = [
    ("healthy", claude.healthy, (), 0),
    ("loop", leaving, (), 90),
    ("budget", claude.healthy, ("--max-usd", "0.00001"), 91),
    ("killed", claude.healthy, ("--policy", "killed.yaml"), 92),
    ("limit", claude.healthy, ("--policy", "limit.yaml"), 93),
]


@pytest.mark.parametrize(("name", "model", "options", "code"), CLAUDE)
def test_the_real_claude_code(
    tmp_path: Path, name: str, model: Callable[[int], dict[str, str] | None], options: tuple[str, ...], code: int
) -> None:
    """Denied, it gives up or is ended, and the code says why. What the commands of its model have started is ended,
    although Claude Code gives each a session of its own. Healthy, it is untouched (P-3)."""
    switch = "kill_switches: [{scope_key: 'llm:provider', scope_value: anthropic, reason: enough}]"
    (tmp_path / "killed.yaml").write_text(f"bundle_version: 1\npolicies: []\n{switch}\n")
    (tmp_path / "limit.yaml").write_text(LIMIT)
    command = [claude.command_line(), "-p", "Please read the file.", "--permission-mode", "bypassPermissions"]
    line = [sys.executable, "-m", "breakloop", "run", *options, "--", *command, "--model", claude.MODEL]
    with StandInLLM.in_thread(respond=claude.agent(model)) as llm:
        env = claude.environment(tmp_path, llm.url)
        done = subprocess.run(
            line, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip
    assert done.returncode == code, done.stderr
    if name == "loop":
        started = (tmp_path / "started").read_text().split()
        assert len(started) == 10
        assert all(map(is_over, started))
