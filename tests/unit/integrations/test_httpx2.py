"""The transports for httpx2, and the real SDKs over them."""

from __future__ import annotations

import anthropic
import httpx2
import openai
import pytest

from breakloop import Guard
from breakloop.clock import FakeClock
from breakloop.integrations import httpx2 as transport2
from breakloop.testing import StandInLLM
from tests.unit.sdk.transports import Suite


class TestHttpx2(Suite):
    module = httpx2
    kit = transport2


def test_the_real_sdks_raise_their_own_error(clock: FakeClock) -> None:
    """Plain `openai` and `anthropic`, no server; a healthy question passes beside the loop (P-3, A-3)."""
    with StandInLLM.in_thread() as llm:
        http = httpx2.Client(transport=transport2.GuardTransport(guard=Guard(clock=clock)))
        first = openai.OpenAI(api_key="k", base_url=f"{llm.url}/v1", http_client=http)
        second = anthropic.Anthropic(api_key="k", base_url=llm.url, http_client=http)
        with http:
            for _ in range(5):
                first.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
                second.messages.create(model="n", max_tokens=9, messages=[{"role": "user", "content": "x"}])
            with pytest.raises(openai.RateLimitError, match="recursive_loop_detected"):
                list(first.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True))
            with pytest.raises(anthropic.RateLimitError, match="recursive_loop_detected"):
                second.messages.create(model="n", max_tokens=9, messages=[{"role": "user", "content": "x"}])
            assert first.chat.completions.create(model="m", messages=[{"role": "user", "content": "y"}]).choices
        assert len(llm.requests) == 11
