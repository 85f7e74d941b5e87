"""The drop-in OpenAI clients, as far as no gateway is needed (`tests/e2e/test_dropin.py` has one)."""

from __future__ import annotations

import httpx2
import openai
import pytest

from breakloop import agent, exceptions
from breakloop.openai import AsyncOpenAI, DeniedError, LoopDetectedError, OpenAI


def test_errors_are_of_both_kinds() -> None:
    """By class, so `except` of either name catches (P-1, P-2)."""
    assert issubclass(LoopDetectedError, exceptions.LoopDetectedError)
    assert issubclass(LoopDetectedError, openai.RateLimitError)
    assert issubclass(DeniedError, openai.RateLimitError)
    assert not issubclass(DeniedError, exceptions.LoopDetectedError)


@pytest.mark.parametrize("kind", [OpenAI, AsyncOpenAI])
def test_a_client_is_the_real_one_at_the_gateway(
    kind: type[OpenAI | AsyncOpenAI], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options as they were, names in header fields, in copies too (P-2)."""
    monkeypatch.setenv("BREAKLOOP_URL", "http://127.0.0.1:1")
    client = kind(api_key="k", agent="a", max_retries=7)
    assert isinstance(client, openai.OpenAI | openai.AsyncOpenAI)
    assert (str(client.base_url), client.max_retries) == ("http://127.0.0.1:1/v1/", 7)
    copy = client.with_options(timeout=1)
    assert type(copy) is kind
    with agent("other", session="s"):
        assert copy.default_headers["X-Agent-Id"] == "a"
        assert copy.default_headers["X-Agent-Session"] == "s"


@pytest.mark.parametrize("kind", [OpenAI, AsyncOpenAI])
def test_which_error_is_made(kind: type[OpenAI | AsyncOpenAI]) -> None:
    """Ours for ours, the SDK's for the rest; a denial that is no 429 stays what the SDK calls it (P-2)."""
    client = kind(api_key="k")

    def made(status: int, reason: str) -> type[Exception]:
        headers = {"X-Breakloop-Reason": reason} if reason else {}
        request = httpx2.Request("POST", "http://x/")
        answer = httpx2.Response(status, headers=headers, json={"detail": {"message": "m"}}, request=request)
        return type(client._make_status_error_from_response(answer))

    assert made(429, "loop_detected") is LoopDetectedError
    assert made(429, "budget_exceeded") is DeniedError
    assert made(429, "") is openai.RateLimitError
    assert made(403, "loop_detected") is openai.PermissionDeniedError
