"""Asking a decision service: what is sent to it, what its answers mean, what becomes of its faults."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator

import pytest

from breakloop.errors import SettingsError
from breakloop.sdk.remote_backend import RemoteBackend, UnreadableAnswerError
from breakloop.sdk.requests import make_answer, request_call
from breakloop.testing import Answer, SeenRequest, StandInLLM, ThreadedLLM, body, cut, raw

ALLOWED = body(b"").with_headers(("X-Breakloop-Request-Id", "r-1"), ("X-Breakloop-Result-Id", "r-1.secret"))


@pytest.fixture
def service() -> Iterator[ThreadedLLM]:
    with StandInLLM.in_thread() as running:
        yield running


@pytest.fixture
def backend(service: ThreadedLLM) -> Iterator[RemoteBackend]:
    made = RemoteBackend(service.url + "/base/", "sk-own", timeout_s=5)
    yield made
    made.close()


def asked(backend: RemoteBackend, service: ThreadedLLM, answer: Answer = ALLOWED, **headers: str) -> SeenRequest:
    service.next(answer)
    call = request_call(
        "POST",
        "/agents/n/v1/x?a=1",
        {name.replace("_", "-"): value for name, value in headers.items()},
        b"{}",
        host="api.example.com",
    )
    decision = backend.decide(call)
    assert decision.allowed
    seen = service.requests[-1]
    assert (seen.method, seen.path, seen.body) == ("POST", "/base/v1/decision", b"{}")
    assert seen.query == "wait=client"
    return seen


def test_the_original_request_is_told(backend: RemoteBackend, service: ThreadedLLM) -> None:
    """By the header fields that the service reads; the client's own go along, but for the connection's (D-3)."""
    sent = asked(backend, service, x_team="red", connection="close", host="evil", authorization="Bearer sk-client")
    assert (sent.header("x-original-method"), sent.header("x-original-uri")) == ("POST", "/v1/x?a=1")
    assert (sent.header("x-original-host"), sent.header("x-agent-id"), sent.header("x-team")) == (
        "api.example.com",
        "n",
        "red",
    )
    assert sent.header("host") == f"127.0.0.1:{service.port}"
    assert sent.header("connection") is None
    assert (sent.header("x-breakloop-key"), sent.header("authorization")) == ("sk-own", "Bearer sk-client")


def test_the_token_stands_for_a_caller_without_a_key(backend: RemoteBackend, service: ThreadedLLM) -> None:
    """So that guards of one machine are told apart (C-7)."""
    assert asked(backend, service).header("authorization") == "Bearer sk-own"
    assert asked(backend, service, x_api_key="k").header("authorization") is None


def test_one_connection_is_used_again(backend: RemoteBackend, service: ThreadedLLM) -> None:
    """And one that was closed meanwhile is replaced without a fault (D-4)."""
    for _ in range(3):
        asked(backend, service)
    assert service.llm.opened == 1
    asked(backend, service, ALLOWED.sent(close=True))
    asked(backend, service)
    assert service.llm.opened == 2


def test_results_are_reported(backend: RemoteBackend, service: ThreadedLLM) -> None:
    """Status, text, calls and tokens; that nobody waits for it is no fault (D-6)."""
    service.next(ALLOWED)
    decision = backend.decide(request_call("POST", "/v1/x"))
    service.next(body(b"", status=204), body(b"{}", status=404), body(b"{}", status=400))
    backend.settle(decision, make_answer(200, "hi", [("f", {"a": 1})], {"input_tokens": 7}))
    seen = service.requests[-1]
    told = json.loads(seen.body)
    assert seen.path == "/base/v1/decision/r-1.secret/result"
    assert (told["status"], told["text"], told["usage"]["input_tokens"]) == (200, "hi", 7)
    assert told["tool_calls"] == [{"name": "f", "arguments": '{"a":1}'}]
    backend.settle(decision, make_answer(503))
    with pytest.raises(UnreadableAnswerError):
        backend.settle(decision, make_answer(200))


def test_a_result_that_is_not_awaited_is_not_reported(backend: RemoteBackend, service: ThreadedLLM) -> None:
    """Nothing depends on it: that saves a request (D-6)."""
    service.next(body(b"").with_headers(("X-Breakloop-Request-Id", "r-1")))
    decision = backend.decide(request_call("POST", "/v1/x"))
    backend.settle(decision, make_answer(200))
    assert [seen.path for seen in service.requests] == ["/base/v1/decision"]


def test_the_message_of_a_denial_for_sdks(backend: RemoteBackend, service: ThreadedLLM) -> None:
    """SDKs that show the whole body get the sentence in the error object only (A-3)."""
    denied = {"error": {"message": "Blocked: f (x). (loop)"}, "detail": {"error": "loop"}}
    fields = (("X-Breakloop-Reason", "loop_detected"), ("X-Breakloop-Request-Id", "r-1"))
    for content, message in ((denied, "Blocked: f (x)."), ({"error": {"message": 7}}, "Denied."), ([], "Denied.")):
        service.next(body(json.dumps(content).encode(), status=429).with_headers(*fields))
        assert backend.decide(request_call("POST", "/v1/x")).message == message


@pytest.mark.parametrize("answer", [body(b"hello"), cut("start"), raw(b"nonsense\r\n\r\n")])
def test_faults_are_raised(backend: RemoteBackend, service: ThreadedLLM, answer: Answer) -> None:
    """That they allow is the guard's rule (D-4)."""
    service.next(answer, answer)
    with pytest.raises((UnreadableAnswerError, OSError, http.client.HTTPException)):
        backend.decide(request_call("POST", "/v1/x"))


@pytest.mark.parametrize("url", ["", "foo", "127.0.0.1:8787", "ftp://x", "http://", "http://x:99999", "http://x:0"])
def test_a_wrong_url_is_said_at_once(url: str) -> None:
    """The author's mistake does not fail open (T-1)."""
    with pytest.raises(SettingsError, match="url"):
        RemoteBackend(url)
