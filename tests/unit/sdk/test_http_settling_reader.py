"""Answers that are read along."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest

from breakloop.model.call import CLIENT_LEFT, Answer, Call
from breakloop.model.decision import Decision
from breakloop.sdk.http import SettlingReader
from breakloop.sdk.requests import DecisionHandle, request_call
from breakloop.sdk.toolkit import Toolkit

BODY = json.dumps({"choices": [{"message": {"content": "hi"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})
STREAM = b'data: {"choices":[{"delta":{"content":"h"}}]}\n\ndata: {"choices":[{"delta":{"content":"i"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


class Settled:
    """A backend that records how calls were settled."""

    blocking = False

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def decide(self, call: Call) -> Decision:
        return Decision(_handle=DecisionHandle(call), request_id="r")

    def settle(self, decision: Decision, answer: Answer) -> None:
        self.answers.append(answer)

    def close(self) -> None:
        pass


@pytest.fixture
def backend() -> Settled:
    return Settled()


def begin(
    backend: Settled, *, stream: bool = False, kind: bytes = b"application/json", encoding: bytes = b""
) -> SettlingReader:
    sent = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": stream}).encode()
    toolkit = Toolkit(backend)
    return SettlingReader(
        toolkit, toolkit.decide(request_call("POST", "/v1/chat/completions", (), sent)), 200, kind, encoding
    )


@pytest.mark.parametrize("encoding", [b"", b"identity", b"gzip"])
def test_a_whole_answer(backend: Settled, encoding: bytes) -> None:
    """Text and tokens, packed or plain, settled once (D-6)."""
    reading = begin(backend, encoding=encoding)
    reading.feed(gzip.compress(BODY.encode()) if encoding == b"gzip" else BODY.encode())
    reading.end(complete=True)
    reading.end(complete=True)
    asyncio.run(reading.aend(complete=True))
    (answer,) = backend.answers
    assert (answer.status, answer.text, answer.complete) == (200, "hi", True)
    assert answer.usage is not None
    assert answer.usage.input_tokens == 3


def test_a_stream_in_pieces(backend: Settled) -> None:
    """A stream in pieces (D-6)."""
    reading = begin(backend, stream=True, kind=b"text/event-stream")
    for at in range(0, len(STREAM), 7):
        reading.feed(STREAM[at : at + 7])
    asyncio.run(reading.aend(complete=True))
    assert (backend.answers[0].text, backend.answers[0].complete) == ("hi", True)


def test_an_answer_that_nobody_read_to_its_end(backend: Settled) -> None:
    """The client left; a stream that was through is whole all the same (LD-6)."""
    reading = begin(backend, stream=True, kind=b"text/event-stream")
    reading.feed(STREAM[:50])
    reading.end(complete=False)
    through = begin(backend, stream=True, kind=b"text/event-stream")
    through.feed(STREAM)
    through.end(complete=False)
    assert (backend.answers[0].status, backend.answers[0].complete) == (CLIENT_LEFT, False)
    assert (backend.answers[1].status, backend.answers[1].complete) == (200, True)


@pytest.mark.parametrize("encoding", [b"gzip", b"odd"])
def test_what_cannot_be_read_is_still_an_answer(backend: Settled, encoding: bytes) -> None:
    """That it came is known (D-6)."""
    reading = begin(backend, encoding=encoding)
    reading.feed(b"no such thing")
    reading.end(complete=True)
    assert not backend.answers[0].failed
    assert backend.answers[0].status == 200


def test_plain_http_is_settled_by_its_status(backend: Settled) -> None:
    """A failure counts for nothing (LD-6)."""
    toolkit = Toolkit(backend)
    SettlingReader(toolkit, toolkit.decide(request_call("GET", "/x")), 503, b"", b"").end(complete=True)
    assert backend.answers[0].failed
    SettlingReader(toolkit, Decision(request_id="r"), 200, b"", b"").end(complete=True)
    assert len(backend.answers) == 2
