"""Lines between an MCP client and its server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop import Guard
from breakloop.clock import FakeClock
from breakloop.integrations.mcp import StdioGuard
from breakloop.sdk.requests import BODY_MAX_BYTES, STEPS_ONLY
from breakloop.sdk.toolkit import Run
from tests.unit.sdk.backends import DENIED, WARNED, ScriptedBackend


def call(number: Any = 1, name: str = "find", **arguments: Any) -> bytes:
    params = {"name": name, "arguments": arguments}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode() + b"\n"


def result(number: Any = 1, text: str = "nothing") -> bytes:
    content = [{"type": "text", "text": text}]
    return json.dumps({"result": {"content": content}, "id": number, "jsonrpc": "2.0"}).encode() + b"\r\n"


def between(*decisions: Any) -> tuple[StdioGuard, ScriptedBackend]:
    backend = ScriptedBackend(*decisions)
    run = Guard(_backend=backend).run("a")
    return StdioGuard(lambda: run), backend


def test_a_loop_is_warned_then_refused(clock: FakeClock) -> None:
    """A note behind the result; then the server hears nothing of the call, and the client gets its answer
    (P-3, A-3)."""
    run = Guard(STEPS_ONLY, clock=clock).run()
    talk = StdioGuard(lambda: run)
    said: list[dict[str, Any]] = []
    for number in range(5):
        assert talk.from_client(call(number, q="x")) == b""
        said.append(json.loads(talk.from_server(result(number))))
    assert [len(one["result"]["content"]) for one in said] == [1, 1, 2, 2, 2]
    refused = talk.from_client(call("six", q="x"))
    answer = json.loads(refused)
    assert (answer["jsonrpc"], answer["id"], answer["result"]["isError"]) == ("2.0", "six", True)
    assert "recursive_loop_detected" in answer["result"]["content"][0]["text"]
    assert refused.endswith(b"\n")
    assert refused.count(b"\n") == 1
    assert talk.from_client(call(7, q="y")) == b""


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n',
        b'{"jsonrpc": "2.0", "id": 0, "method": "tools/list"}\r\n',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}\n',
        b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"no id"}}\n',
        b'{"jsonrpc":"2.0","id":true,"method":"tools/call","params":{"name":"x"}}\n',
        b'[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}]\n',
        b"tools call, but no JSON\n",
        b"\n",
        b'{"tools/call":' + b"[" * 100_000 + b"\n",
    ],
)
def test_what_is_no_call_passes(line: bytes) -> None:
    """Byte for byte, unjudged (P-3)."""
    talk, backend = between(DENIED)
    assert talk.from_client(line) == b""
    assert backend.calls == []


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}\n',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}\n',
        b'{"jsonrpc":"2.0","id":2,"result":{"content":[]}}\n',
        b'{"jsonrpc":"2.0","id":"1","result":{"content":[]}}\n',
        b'{"jsonrpc":"2.0","id":true,"result":{"content":[]}}\n',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}\n',
        b'a line of a log with an "id"\n',
    ],
)
def test_what_is_no_answer_to_a_call_passes(line: bytes) -> None:
    """Requests of the server's, which count their own ids, and notifications; the call waits on (P-3)."""
    talk, backend = between(WARNED)
    talk.from_client(call())
    assert talk.from_server(line) == line
    assert backend.calls == []
    assert talk.from_server(result()) != result()


def test_a_healthy_result_is_the_same_bytes() -> None:
    """Blanks, order and line end included (P-3)."""
    talk, backend = between()
    talk.from_client(call(q="ü"))
    assert talk.from_server(result(text="ü")) == result(text="ü")
    assert len(backend.calls) == 1
    assert talk.from_server(result()) == result()


def test_an_escaped_slash_is_the_same_method() -> None:
    """Some languages write it so (P-3)."""
    talk, _ = between(WARNED)
    talk.from_client(call().replace(b"tools/call", b"tools\\/call"))
    assert talk.from_server(result()) != result()


def test_errors_of_the_protocol() -> None:
    """A result that failed; it passes as it is (LD-4)."""
    talk, backend = between(WARNED)
    talk.from_client(call())
    line = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no such tool"}}\n'
    assert talk.from_server(line) == line
    assert backend.bodies[0]["messages"][-1]["content"] == "Error: ToolFailedError: -32602: no such tool"


def test_a_question_on_the_way_is_no_result() -> None:
    """Nothing is judged until the result is there (P-3)."""
    talk, backend = between(WARNED)
    talk.from_client(call())
    line = b'{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{}}}\n'
    assert talk.from_server(line) == line
    assert backend.calls == []


def test_a_cancelled_call_is_no_step() -> None:
    """Its result, should one come, is nobody's (P-3)."""
    talk, backend = between(WARNED)
    talk.from_client(call(4))
    cancel = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4}}\n'
    assert talk.from_client(cancel) == b""
    assert talk.from_server(result(4)) == result(4)
    assert backend.calls == []
    odd = cancel.replace(b'{"requestId":4}', b"[]")
    talk.from_client(call(5))
    assert talk.from_client(odd) == b""


def test_what_is_too_large_is_not_read() -> None:
    """A call or a result of more than ten megabytes passes (P-3)."""
    talk, backend = between(WARNED)
    large = call(q="x" * BODY_MAX_BYTES)
    assert talk.from_client(large) == b""
    talk.from_client(call(2))
    answer = result(2, "x" * BODY_MAX_BYTES)
    assert talk.from_server(answer) is answer
    assert backend.calls == []


def test_calls_that_are_never_answered_are_forgotten() -> None:
    """At most a thousand are waited for (S-4)."""
    talk, _ = between()
    for number in range(1100):
        talk.from_client(call(number))
    assert len(talk._open) == 1000


def test_in_shadow_nothing_changes(clock: FakeClock) -> None:
    """What would have been said is told elsewhere (E-6)."""
    told: list[str] = []
    run: Run = Guard(STEPS_ONLY, clock=clock).run()
    talk = StdioGuard(lambda: run, shadow=told.append)
    for number in range(8):
        assert talk.from_client(call(number)) == b""
        assert talk.from_server(result(number)) == result(number)
    assert told[0].startswith("You repeat yourself")
    assert told[-1].startswith("Blocked")


def test_the_engine_is_made_when_a_tool_is_called() -> None:
    """A client that starts many servers does not wait for it (P-3)."""
    made: list[Run] = []

    def run() -> Run:
        made.append(Guard(_backend=ScriptedBackend()).run())
        return made[-1]

    talk = StdioGuard(run)
    talk.from_client(b'{"jsonrpc":"2.0","id":0,"method":"initialize"}\n')
    talk.from_server(b'{"jsonrpc":"2.0","id":0,"result":{}}\n')
    assert made == []


def test_a_result_with_a_note_says_the_same() -> None:
    """Half a character stays what it is; what cannot be written again passes without a note (P-3)."""
    talk, _ = between(WARNED, WARNED)
    talk.from_client(call())
    line = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"\\ud800 \xc3\xbc"}],"n":1.50}}\n'
    noted = talk.from_server(line)
    noted.decode("ascii")
    before, after = json.loads(line), json.loads(noted)
    assert after["result"]["content"].pop()["text"].startswith("[breakloop]")
    assert after == before
    talk.from_client(call())
    huge = line.replace(b"1.50", b"1e999")
    assert talk.from_server(huge) == huge
