"""The examples of the library work as they are shipped: each loop is stopped, and what is printed is what their pages
say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from breakloop.testing import ThreadedLLM
from tests.deadlines import DEADLINE_S
from tests.e2e.served import SRC, eventually, serving

pytestmark = pytest.mark.e2e

EXAMPLES = SRC.parent / "examples"


def script(path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("BREAKLOOP_", "OPENAI_"))}
    return subprocess.run(
        [sys.executable, str(EXAMPLES / path)],
        env={**clean, "PYTHONPATH": str(SRC), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


def test_a_guard_in_a_loop_of_ones_own() -> None:
    """Warned at the third step, stopped at the fifth (D-4)."""
    done = script("python-guard/agent.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "[breakloop] You repeat yourself: `search` returned the same 30 bytes 3 times in a row." in done.stdout
    assert done.stdout.splitlines()[-1].startswith("step 5: stopped, kind repeat: Blocked: `search` returned")


def test_a_transport() -> None:
    """Five requests are sent (P-3)."""
    done = script("httpx/agent.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "attempt 6: recursive_loop_detected, 5 requests were sent"


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_drop_in_clients(name: str, llm: ThreadedLLM, tmp_path: Path) -> None:
    """The sixth try is stopped, with the SDK's error that is ours (P-2)."""
    with serving(tmp_path, "--upstream", f"{name}={llm.url}") as served:
        done = script(f"drop-in-clients/{name}_agent.py", BREAKLOOP_URL=served.url)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1].startswith("attempt 6: stopped after 6 alike, for 30 s: ")


def test_the_stand_in_of_the_clients(free_port: Callable[[], int]) -> None:
    """It answers at the port that it is given."""
    port = free_port()
    command = [sys.executable, str(EXAMPLES / "drop-in-clients/stand_in.py"), str(port)]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(SRC)}, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == f"stand-in on http://127.0.0.1:{port}\n"
            asked = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json={"model": "m", "messages": []})
            assert asked.status_code == 200
        finally:
            running.kill()


def test_asgi_middleware_under_a_real_server(free_port: Callable[[], int]) -> None:
    """uvicorn; the sixth call of a tool is answered with why, another one passes (P-3)."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "server:app", "--port", str(port), "--lifespan", "off"]
    folder = EXAMPLES / "asgi"
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    ) as running:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S) as client:
                eventually(lambda: _answers(client), "uvicorn")
                said = [_called(client, "hi") for _ in range(6)]
                assert ["called with" in one for one in said] == [True] * 5 + [False]
                assert "recursive_loop_detected" in said[5]
                assert "called with {'text': 'else'}" in _called(client, "else")
        finally:
            running.kill()


def _answers(client: httpx.Client) -> bool:
    try:
        return bool(_called(client, "warm up"))
    except httpx.TransportError:
        return False


def _called(client: httpx.Client, text: str) -> str:
    params = {"name": "echo", "arguments": {"text": text}}
    sent = client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    return json.dumps(sent.json())
