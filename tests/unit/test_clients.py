"""The drop-in clients, as far as no gateway is needed (`tests/e2e/test_dropin.py` has one)."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import httpx2
import openai
import pytest

import breakloop.anthropic
import breakloop.openai
from breakloop import agent, exceptions

KINDS = [
    breakloop.openai.OpenAI,
    breakloop.openai.AsyncOpenAI,
    breakloop.anthropic.Anthropic,
    breakloop.anthropic.AsyncAnthropic,
]
MODULES = [(breakloop.openai, openai), (breakloop.anthropic, anthropic)]
Kind = Any  # one of `KINDS`


def sdk_of(kind: Kind) -> Any:
    return openai if issubclass(kind, openai.OpenAI | openai.AsyncOpenAI) else anthropic


def ours_of(kind: Kind) -> Any:
    return breakloop.openai if sdk_of(kind) is openai else breakloop.anthropic


def error_of(client: Any, answer: httpx2.Response) -> Exception:
    made = client._make_status_error_from_response(answer)
    assert isinstance(made, Exception)
    return made


def response(status: int, reason: str, **detail: Any) -> httpx2.Response:
    headers = {"X-Breakloop-Reason": reason} if reason else {}
    request = httpx2.Request("POST", "http://x/")
    return httpx2.Response(status, headers=headers, json={"detail": {"message": "m", **detail}}, request=request)


@pytest.mark.parametrize(("ours", "sdk"), MODULES)
def test_errors_are_of_both_kinds(ours: Any, sdk: Any) -> None:
    """By class, so `except` of either name catches (P-1, P-2)."""
    assert issubclass(ours.LoopDetectedError, exceptions.LoopDetectedError)
    assert issubclass(ours.LoopDetectedError, sdk.RateLimitError)
    assert issubclass(ours.DeniedError, sdk.RateLimitError)
    assert not issubclass(ours.DeniedError, exceptions.LoopDetectedError)


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_is_the_real_one_at_the_gateway(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options as they were, names in header fields, in copies too (P-2)."""
    monkeypatch.setenv("BREAKLOOP_URL", "http://127.0.0.1:1/")
    client = kind(api_key="k", agent="a", max_retries=7)
    assert isinstance(client, openai.OpenAI | openai.AsyncOpenAI | anthropic.Anthropic | anthropic.AsyncAnthropic)
    path = "/v1/" if sdk_of(kind) is openai else ""
    assert (str(client.base_url), client.max_retries) == (f"http://127.0.0.1:1{path}", 7)
    copy = client.with_options(timeout=1)
    assert type(copy) is kind
    with agent("other", session="s"):
        assert copy.default_headers["X-Agent-Id"] == "a"
        assert copy.default_headers["X-Agent-Session"] == "s"
    assert "X-Agent-Session" not in copy.default_headers


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_program_gives_takes_precedence(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base URL, and header fields before names (P-2)."""
    monkeypatch.setenv("BREAKLOOP_URL", "http://gate:1/")
    assert str(kind(api_key="k", base_url="http://own/x/").base_url) == "http://own/x/"
    client = kind(api_key="k", agent="a", session="s", default_headers={"X-Agent-Id": "mine", "X": "y"})
    sent = {name: client.default_headers[name] for name in ("X-Agent-Id", "X-Agent-Session", "X")}
    assert sent == {"X-Agent-Id": "mine", "X-Agent-Session": "s", "X": "y"}
    assert "X-Agent-Id" not in kind(api_key="k").default_headers


@pytest.mark.parametrize("kind", KINDS)
def test_which_error_is_made(kind: Kind) -> None:
    """Ours for ours, whatever the status; the SDK's for the rest (P-2, A-7)."""
    client, ours, sdk = kind(api_key="k"), ours_of(kind), sdk_of(kind)

    def made(status: int, reason: str) -> type[Exception]:
        return type(error_of(client, response(status, reason)))

    assert made(429, "loop_detected") is ours.LoopDetectedError
    assert made(429, "budget_exceeded") is ours.DeniedError
    assert made(429, "") is sdk.RateLimitError
    assert made(400, "loop_detected") is ours.LoopDetectedError
    assert made(403, "loop_detected") is ours.LoopDetectedError
    assert made(403, "") is sdk.PermissionDeniedError


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_has_the_fields_of_both(kind: Kind) -> None:
    """The decision, and what the SDK reads from a response (P-2)."""
    client = kind(api_key="k")
    answer = response(429, "loop_detected", hit_count=6)
    error: Any = error_of(client, answer)
    plain: Any = error_of(client, response(429, ""))
    assert (error.decision.is_loop, error.hit_count, error.message, error.reason) == (True, 6, "m", "loop_detected")
    assert (error.response, error.request, error.status_code) == (answer, answer.request, 429)
    assert error.body == answer.json()
    assert vars(error).keys() >= vars(plain).keys()
    assert str(error) == "Error code: 429 - m (recursive_loop_detected)"  # once, and not as a dict


@pytest.mark.parametrize("kind", KINDS)
def test_a_response_that_cannot_be_read_any_more_is_the_sdks(kind: Kind) -> None:
    """It was closed before its body came (P-2)."""
    request = httpx2.Request("POST", "http://x/")

    async def pieces() -> Any:
        yield b"x"

    headers = {"X-Breakloop-Reason": "x"}
    closed = httpx2.Response(429, headers=headers, content=pieces(), request=request)
    asyncio.run(closed.aclose())
    assert type(error_of(kind(api_key="k"), closed)) is sdk_of(kind).RateLimitError
