"""What both transports share, where it is not seen through them (`transports`)."""

from __future__ import annotations

import httpx
import pytest

from breakloop.model.decision import Decision
from breakloop.sdk.http import httpx_call, steered_body, with_body
from breakloop.sdk.requests import DecisionHandle, request_call


@pytest.mark.parametrize(
    ("content", "unseen"),
    [(None, False), (b"", False), (b"x", True), (iter([b"x"]), True)],
    ids=["none", "0", "x", "?"],
)
def test_a_body_that_was_not_read_is_not_none(content: object, *, unseen: bool) -> None:
    """Two uploads are not the same request because nobody looked (LD-1)."""
    request = httpx.Request("POST", "https://API.example.com:8443/a%20b?q=1", content=content)  # type: ignore[arg-type]
    call = httpx_call(request, b"")
    assert (call.host, call.path, call.query, call.body_unseen) == ("api.example.com", "/a%20b", "q=1", unseen)


def test_a_changed_request_is_plain_and_sized() -> None:
    """The note goes in unpacked (LD-5)."""
    headers = {"Content-Encoding": "gzip", "X-Own": "1"}
    request = with_body(
        httpx.Request("POST", "https://x/", headers=headers, content=b"zzz", extensions={"a": 1}), b"{}"
    )
    assert isinstance(request, httpx.Request)
    assert (request.content, request.headers["content-length"], request.headers["x-own"]) == (b"{}", "2", "1")
    assert "content-encoding" not in request.headers
    assert request.extensions == {"a": 1}


def test_a_note_without_a_place() -> None:
    """Plain HTTP has none, nor has a decision without a request (LD-5)."""
    assert steered_body(Decision(note="x")) is None
    assert steered_body(Decision(note="x", _handle=DecisionHandle(request_call("POST", "/x", (), b"{}")))) is None
    assert (
        steered_body(Decision(_handle=DecisionHandle(request_call("POST", "/v1/chat/completions", (), b"{}")))) is None
    )
