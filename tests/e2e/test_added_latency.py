"""What the proxy adds to a call, one call at a time."""

from __future__ import annotations

import http.client
import json
import os
from pathlib import Path
from secrets import token_hex

import pytest

from breakloop.testing import chat_request, say
from tests.deadlines import DEADLINE_S
from tests.e2e.proxied import CHAT, Proxied, proxied

pytestmark = pytest.mark.e2e

CALLS = 300
BODY_BYTES = 20_000
MOST_S = 0.002  # 0.45 ms alone; twice that and more while other tests have the other core


def cpu_s(running: Proxied) -> float:
    """How long the gateway has run on a core, its threads included."""
    tasks = Path(f"/proc/{running.served.process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def words(count: int) -> str:
    """So many words that mean nothing, other ones each time."""
    letters = token_hex(3 * count).translate(str.maketrans("0123456789", "ghijklmnop"))
    return " ".join(letters[at : at + 6] for at in range(0, 6 * count, 6))


def calls(running: Proxied, count: int) -> None:
    """An agent that comes to its next question again and again, with all that was said before it."""
    connection = http.client.HTTPConnection("127.0.0.1", running.served.port, timeout=DEADLINE_S)
    said = [{"role": ("user", "assistant")[at % 2], "content": words(80)} for at in range(40)]
    for _ in range(count):
        running.llm.next(say(words(12)))
        body = json.dumps(chat_request(*said, words(12)))
        assert len(body) > BODY_BYTES
        connection.request("POST", CHAT, body, {"Content-Type": "application/json", "Authorization": "Bearer k"})
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
    connection.close()


def test_a_call_of_20_kb_takes_little_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the proxy itself does for a call, under the built-in protection, with a history. Counted is its CPU time:
    how long it waits for a core is not its doing. Latency is for `make bench`, on a machine that does nothing else
    (Q-4)."""
    for name in [name for name in os.environ if name.startswith(("COV_", "COVERAGE_"))]:
        monkeypatch.delenv(name)  # coverage would measure itself
    with proxied(tmp_path) as running:
        calls(running, 50)
        before = cpu_s(running)
        calls(running, CALLS)
        assert (cpu_s(running) - before) / CALLS < MOST_S
