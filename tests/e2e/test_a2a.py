"""Agents that ask each other over A2A with the real SDK, through the real gateway: one that asks the same again and again is
stopped, and thirty different messages pass."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.environments import program_of, variables
from tests.e2e.served import serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


class _Agent(BaseHTTPRequestHandler):
    """Answers `loop` always alike, and `work` with something new."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # the name that the base class looks for
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = asked.get("params", asked)["message"]
        (part,) = message["parts"]
        loops = "refund" in part["text"]
        said = (
            "I found nothing." if loops else f"Done with it: {part['text']} " + "and so on " * len(message["messageId"])
        )
        reply: Any = {
            "message": {
                "role": "ROLE_AGENT",
                "messageId": "r",
                "contextId": message["contextId"],
                "parts": [{"text": said}],
            }
        }
        body = json.dumps(
            {"jsonrpc": "2.0", "id": asked["id"], "result": reply} if "params" in asked else reply
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an agent behind the gateway."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Agent) as agent:
        threading.Thread(target=agent.serve_forever, daemon=True).start()
        upstream = f"research=http://127.0.0.1:{agent.server_address[1]}"
        with serving(tmp_path_factory.mktemp("a2a"), "--upstream", upstream) as served:
            yield f"{served.url}/research"
        agent.shutdown()


@pytest.mark.parametrize("task", ["loop", "work"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
def test_agents_that_ask_each_other(gateway: str, tmp_path: Path, binding: str, task: str) -> None:
    """In both bindings; the SDK raises an error (LD-2, A-2)."""
    program = Path(__file__).with_name("a2a_agent.py")
    command = [program_of("clients"), str(program), gateway, binding, task]
    done = subprocess.run(command, env=variables(tmp_path / "home"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout.splitlines()[-1])
    if task == "work":
        assert ended == {"passed": 30, "error": "", "message": ""}
    else:
        assert 3 <= ended["passed"] <= 8
        # Of an error over plain HTTP, the SDK shows the status alone.
        assert ("Blocked: " if binding == "JSONRPC" else "HTTP Error 429") in ended["message"], ended
