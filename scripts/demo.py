"""`make demo`: starts the decision service on a free port with a small policy, and lets two clients talk to it: one
that repeats itself and one that does not. Shows what each gets. No keys, no network beyond this machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REQUESTS = 6
BUNDLE = {
    "bundle_version": 1,
    "policies": [
        {
            "id": "stop-loops",
            "spec": {
                "selector": {"pathPrefix": "/"},
                "loop_detection": {
                    "enabled": True,
                    "window_seconds": 60,
                    "threshold_identical_requests": 4,
                    "action": "reject",
                },
            },
        }
    ],
}


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Run the real command until the block ends; yields its address."""
    policy = folder / "bundle.json"
    policy.write_text(json.dumps(BUNDLE), encoding="utf-8")
    command = [sys.executable, "-m", "breakloop", "serve", "--mode", "decision", "--port", "0", "--admin-port", "0"]
    command += ["--policy", str(policy), "--data-dir", str(folder / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield _ready(process)
        finally:
            process.terminate()


def _ready(process: subprocess.Popen[str]) -> str:
    said = []
    for line in process.stdout or ():
        said.append(line)
        match = re.search(r"ready on (http://\S+)", line)
        if match:
            return match[1]
    raise SystemExit("demo: the server did not start:\n" + "".join(said))


def ask(address: str, agent: str, question: str) -> tuple[int, str]:
    """Ask for a decision on one chat call; return its status and reason."""
    body = {"model": "demo", "messages": [{"role": "user", "content": question}]}
    headers = {"X-Original-Method": "POST", "X-Original-URI": "/v1/chat/completions", "X-Agent-Id": agent}
    headers["Content-Type"] = "application/json"
    request = urllib.request.Request(address + "/v1/decision", json.dumps(body).encode(), headers)  # noqa: S310  # ours
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  # ours, as above
            return answer.status, ""
    except urllib.error.HTTPError as denial:
        with denial:
            return denial.code, denial.headers.get("X-Breakloop-Reason", "")


def main() -> int:
    """Play both clients and print what happens; 1 if the loop was not stopped, or the other client was."""
    loop, steady = [], []
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as address:
        print(f"decision service on {address}; the 4th identical request is a loop\n")
        print(f"{'':>3}  {'agent that repeats itself':<28}agent that gets on")
        for number in range(1, REQUESTS + 1):
            loop.append(ask(address, "stuck", "list the files"))
            steady.append(ask(address, "steady", f"read file {number}"))
            print(f"{number:>3}  {' '.join(map(str, loop[-1])):<28}{' '.join(map(str, steady[-1]))}")
    stopped = [status for status, _ in loop].count(429)
    print(f"\nstopped {stopped} of {REQUESTS} calls of the one, {[s for s, _ in steady].count(429)} of the other")
    return 0 if stopped == REQUESTS - 3 and all(status == 200 for status, _ in steady) else 1


if __name__ == "__main__":
    sys.exit(main())
