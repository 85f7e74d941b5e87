"""The ASGI middleware, driven by hand and by a real server (`tests/e2e/test_sdk_examples.py`)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from breakloop import Guard
from breakloop.clock import FakeClock
from breakloop.integrations.asgi import App, GuardASGIMiddleware, Receive, Scope, Send
from breakloop.model.call import Answer
from breakloop.sdk.toolkit import toolkit_of
from tests.builders import bundle, chat_body, exact, policy, user

BODY = chat_body(user("again"))
JSON = [(b"content-type", b"application/json")]
USED = {"prompt_tokens": 3, "completion_tokens": 2}
SAID = json.dumps({"choices": [{"message": {"content": "hi"}}], "usage": USED}).encode()


class Called:
    """An application, and all that it was called with."""

    def __init__(self, *, fails: bool = False) -> None:
        self.bodies: list[bytes] = []
        self.scopes: list[Scope] = []
        self.fails = fails

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies.append(body)
        if self.fails:
            raise RuntimeError("broken")
        await send({"type": "http.response.start", "status": 200, "headers": JSON})
        await send({"type": "http.response.body", "body": SAID[:9], "more_body": True})
        await send({"type": "http.response.body", "body": SAID[9:]})


def settled(guard: Guard) -> list[Answer]:
    answers: list[Answer] = []
    backend = toolkit_of(guard).backend
    settle = backend.settle

    def heard(decision: Any, answer: Answer) -> None:
        answers.append(answer)
        settle(decision, answer)

    backend.settle = heard  # type: ignore[method-assign]
    return answers


def ask(
    app: App, *pieces: bytes, headers: list[tuple[bytes, bytes]] | None = None, path: str = "/v1/chat/completions"
) -> Any:
    """Send one request and return what was sent back."""
    length = str(sum(map(len, pieces))).encode()
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"a=1",
        "headers": [*(JSON if headers is None else headers), (b"content-length", length)],
        "client": ("127.0.0.1", 5),
    }
    left = list(pieces)
    sent: list[Any] = []

    async def receive() -> Any:
        if not left:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    return sent


def test_a_loop_is_denied_and_the_rest_passes(clock: FakeClock) -> None:
    """Five reach the application, in one piece or many; the sixth does not. What was said is known (D-6) (P-3)."""
    guard, app = Guard(clock=clock), Called()
    answers = settled(guard)
    wrapped = GuardASGIMiddleware(app, guard)
    for _ in range(5):
        sent = ask(wrapped, BODY[:5], BODY[5:])
        assert [message.get("body") for message in sent] == [None, SAID[:9], SAID[9:]]
    start, body = ask(wrapped, BODY)
    assert start["status"] == 429
    assert dict(start["headers"])[b"x-breakloop-reason"] == b"loop_detected"
    assert json.loads(body["body"])["detail"]["hit_count"] == 6
    assert ask(wrapped, chat_body(user("else")))[0]["status"] == 200
    assert app.bodies == [BODY] * 5 + [chat_body(user("else"))]
    assert [answer.text for answer in answers] == ["hi"] * 6


def test_other_scopes_are_not_touched(clock: FakeClock) -> None:
    """Web sockets and lifespan go by, with the very functions that the server gave (P-3)."""
    seen: list[Any] = []

    async def app(*arguments: Any) -> None:
        seen.append(arguments)

    async def nothing(*_: Any) -> Any:
        return {}

    for kind in ("websocket", "lifespan"):
        scope: Scope = {"type": kind}
        asyncio.run(GuardASGIMiddleware(app, Guard(clock=clock))(scope, nothing, nothing))
        assert seen.pop() == (scope, nothing, nothing)


def test_uploads_pass_in_pieces(clock: FakeClock) -> None:
    """What is no JSON is not gathered (Y-2)."""
    pieces: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        pieces.append(message["body"])
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    ask(GuardASGIMiddleware(app, Guard(clock=clock)), b"one", b"two", headers=[], path="/up")
    assert pieces == [b"one"]


def test_a_client_that_leaves_while_it_sends(clock: FakeClock) -> None:
    """The application is told so, and nobody hangs (D-1)."""
    app = Called()
    sent = ask(GuardASGIMiddleware(app, Guard(clock=clock)), headers=[*JSON, (b"content-length", b"9")])
    assert app.bodies == [b""]
    assert sent[0]["status"] == 200


def test_an_application_that_fails_did_not_answer(clock: FakeClock) -> None:
    """Its error goes on, and the try does not count (LD-6)."""
    guard = Guard(clock=clock)
    answers = settled(guard)
    app = GuardASGIMiddleware(Called(fails=True), guard)
    for _ in range(8):
        with pytest.raises(RuntimeError, match="broken"):
            ask(app, BODY)
    assert all(answer.failed for answer in answers)
    assert len(answers) == 8


def test_a_note_for_the_model(clock: FakeClock) -> None:
    """In the body, with its length in the scope; the server's own scope stays as it is (LD-5)."""
    app = Called()
    wrapped = GuardASGIMiddleware(app, Guard(bundle(policy("p", loop=exact(2, action="steer"))), clock=clock))
    ask(wrapped, BODY)
    ask(wrapped, BODY)
    assert b"[breakloop] You have sent" in app.bodies[1]
    assert dict(app.scopes[1]["headers"])[b"content-length"] == str(len(app.bodies[1])).encode()


def test_a_landed_request_has_its_tools_switched_off(clock: FakeClock) -> None:
    """As at the gateway (LD-10)."""
    app = Called()
    wrapped = GuardASGIMiddleware(app, Guard(bundle(policy("p", loop=exact(2, action="land"))), clock=clock))
    asked = {**json.loads(BODY), "tools": [{"type": "function", "function": {"name": "search"}}]}
    for _ in range(2):
        ask(wrapped, json.dumps(asked).encode())
    assert [json.loads(body).get("tool_choice") for body in app.bodies] == [None, "none"]


def test_what_an_answer_uses_is_counted(clock: FakeClock) -> None:
    """It passes in the pieces that it came in, and is read along (D-6)."""
    guard = Guard(bundle(policy("p", loop=exact(9))), clock=clock)
    answers = settled(guard)
    sent = ask(GuardASGIMiddleware(Called(), guard), BODY)
    assert [message.get("body") for message in sent] == [None, SAID[:9], SAID[9:]]
    (answer,) = answers
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (3, 2)


def test_a_throttle_waits(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the application is called (LD-5)."""
    slept: list[float] = []

    async def asleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", asleep)
    wrapped = GuardASGIMiddleware(Called(), Guard(bundle(policy("p", loop=exact(2, action="throttle"))), clock=clock))
    for _ in range(2):
        assert ask(wrapped, BODY)[0]["status"] == 200
    assert slept == [0.2]


def test_a_guard_of_its_own() -> None:
    """`app.add_middleware(GuardASGIMiddleware)` (P-3)."""
    assert isinstance(GuardASGIMiddleware(Called()).guard, Guard)
