"""`breakloop run` with real agents: exit codes, and nothing that is left running."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from breakloop.testing import StandInLLM, ThreadedLLM
from tests.deadlines import DEADLINE_S
from tests.e2e import claude
from tests.e2e.served import SRC

pytestmark = pytest.mark.e2e

# Arguments: what to ask in each turn ("same" or "new"), and whether to go on after an error.
AGENT = """
import subprocess, sys, openai
client = openai.OpenAI(api_key="sk-canary-run", max_retries=0)
helper = subprocess.Popen(["sleep", "600"])
print(helper.pid, flush=True)
for turn in range(30):
    text = "Read the file." if sys.argv[1] == "same" else f"Read file {turn}."
    try:
        client.chat.completions.create(model="gpt-5-mini", messages=[{"role": "user", "content": text}])
    except openai.RateLimitError:
        if sys.argv[2] == "give-up":
            raise SystemExit("stopped")
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


def ended(pid: int) -> bool:
    """Tell whether a process has ended; it may still be in the table, until somebody asks how."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_healthy_agent_ends_with_its_own_code() -> None:
    """All of its calls reached the provider that was set, and what it started is gone."""
    with StandInLLM.in_thread() as llm:
        done = agent(llm, "new", "give-up")
        assert (done.returncode, done.stdout.split()[1]) == (0, "done"), done.stderr
        assert len(llm.requests) == 30
    assert "30 calls" in done.stderr
    assert ended(int(done.stdout.split()[0]))


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
    assert ended(int(done.stdout.split()[0]))


def test_the_cost_ends_a_run() -> None:
    with StandInLLM.in_thread() as llm:
        done = agent(llm, "new", "go-on", options=("--max-usd", "0.00005", "--quiet"))
        assert done.returncode == 91, done.stderr
        assert len(llm.requests) < 30
    assert done.stderr.splitlines() == ["breakloop: ending the command (budget): it has spent $0.0001"]


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
        told(run + b" 'echo rea''dy; read typed; echo heard $typed'\n", b"ready")
        told(b"\x1a", b"Stopped")
        told(b"fg\n", b"breakloop run")
        told(b"something\n", b"heard something")
        os.write(terminal, b"exit\n")
        _pid, status = os.waitpid(pid, 0)
    finally:
        os.close(terminal)  # which ends a shell that is still there
    assert os.waitstatus_to_exitcode(status) == 0


def test_the_real_claude_code(tmp_path: Path) -> None:
    """Stuck, it is denied and gives up or is ended; the code says why. Healthy, it is untouched (P-3)."""
    command = [claude.command_line(), "-p", "Please read the file.", "--permission-mode", "bypassPermissions"]
    line = [sys.executable, "-m", "breakloop", "run", "--", *command, "--model", claude.MODEL]
    codes = {}
    for name, model in (("healthy", claude.healthy), ("stuck", claude.stuck)):
        (tmp_path / name).mkdir()
        with StandInLLM.in_thread(respond=claude.agent(model)) as llm:
            env = claude.environment(tmp_path / name, llm.url)
            done = subprocess.run(
                line, cwd=tmp_path / name, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=DEADLINE_S, check=False,
            )  # fmt: skip
            codes[name] = done.returncode
    assert codes == {"healthy": 0, "stuck": 90}
