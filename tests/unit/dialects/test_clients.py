"""Which client sent a call, and the status of a denial that must not be retried (A-7). tests/e2e/test_clients_stop.py,
test_clients.py and test_frameworks.py run the real ones."""

from __future__ import annotations

import pytest

from breakloop.dialects.clients import CLIENTS, client_of, end_run, final_status
from breakloop.model.verdict import Verdict
from tests.builders import call

OPENAI = {"user-agent": "OpenAI/Python 2.54.0", "x-stainless-read-timeout": "600"}
TEXT_LAST = '{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}'
TEXT_FIRST = '{"messages":[{"role":"user","content":[{"text":"x","type":"text"}]}]}'
LITELLM = {"user-agent": "AsyncOpenAI/Python 3.49.0", "x-stainless-raw-response": "true"}
# As the real ones sent them.
SENT: dict[str, tuple[dict[str, str], str, int]] = {
    "Claude Code": ({"user-agent": "claude-cli/2.1.325 (external, cli)"}, TEXT_LAST, 429),
    "Codex": ({"user-agent": "codex_exec/0.169.0 (Debian 12.0.0; x86_64) xterm"}, "", 400),
    "OpenCode": ({"user-agent": "opencode/1.18.33 ai-sdk/provider-utils/4.0.46 runtime/bun/1.3"}, "", 400),
    "Vercel AI SDK": ({"user-agent": "ai/7.0.170 ai-sdk-provider-utils/5.0.79 node.js/24"}, "", 400),
    "LangChain.js": ({"user-agent": "langchainjs-openai/1.0.0 ((node/v24.19.0; linux; x64))"}, "", 400),
    "LiteLLM": ({"user-agent": "litellm/1.108.4"}, "", 400),
    "LiteLLM with the OpenAI SDK": (LITELLM | {"x-stainless-read-timeout": "6000.0"}, TEXT_LAST, 400),
    "Cohere's SDK": ({"user-agent": "cohere/7.3.1"}, "", 400),
    "AWS SDKs": ({"user-agent": "Boto3/1.44.3 md/Botocore#1.44.3 ua/2.1"}, "", 400),
    "DSPy": ({"user-agent": "lm15/stdlib"}, TEXT_LAST, 400),
    "smolagents": (OPENAI, '{"stop":["Observation:","Calling tools:"]}', 400),
    "Strands Agents": ({"user-agent": "AsyncAnthropic/Python 2.9.0"}, TEXT_FIRST, 400),
    "OpenAI and Anthropic SDKs, and frameworks that leave retries to them": (OPENAI, TEXT_LAST, 429),
}


def test_every_row_has_a_case() -> None:
    assert list(SENT) == [client.name for client in CLIENTS]


@pytest.mark.parametrize("name", SENT)
def test_a_client_is_recognised(name: str) -> None:
    """And gets the status that ends its run (A-7)."""
    headers, body, status = SENT[name]
    sent = call(headers=headers, body=body.encode())
    found = client_of(sent)
    assert found is not None
    assert found.name == name
    assert final_status(sent) == status


def test_an_unknown_client_gets_429() -> None:
    """As the contract says, also if it repeats itself (A-7)."""
    for agent in ("", "curl/8.5.0", "python-httpx/0.28.1", "airflow/3"):
        sent = call(headers={"user-agent": agent} if agent else {})
        assert client_of(sent) is None
        assert final_status(sent, repeated=True) == 429


def test_langchain_for_python_leaves_retries_to_the_sdk() -> None:
    """It asks for raw responses as LiteLLM does, with the SDK's own timeout (A-7)."""
    assert final_status(call(headers=LITELLM | {"x-stainless-read-timeout": "600"})) == 429
    plain = OPENAI | {"x-stainless-raw-response": "true"}
    assert final_status(call(headers=plain | {"x-stainless-read-timeout": "30.0"})) == 429
    for timeout in ("600.0", "6000.0"):  # of `litellm.completion` and of a router
        assert final_status(call(headers=plain | {"x-stainless-read-timeout": timeout})) == 400


def test_a_retry_by_whatever_uses_the_sdk() -> None:
    """The SDK obeys `x-should-retry`, so something above it retries: it is ended. Claude Code is not wrapped (A-7)."""
    assert final_status(call(headers=OPENAI), repeated=True) == 400
    assert final_status(call(headers={"user-agent": "claude-cli/2.1"}), repeated=True) == 429


def test_retry_after_goes_with_a_429() -> None:
    """A client that is ended is not told when to come back (A-2, A-7)."""

    def waits(agent: str) -> tuple[int, int | None]:
        verdict = Verdict(allowed=False, reason="kill_switch", status=429)
        verdict.retry_after_s = 3600
        ended = end_run(call(headers={"user-agent": agent}), verdict)
        return ended.status, ended.retry_after_s

    assert waits("OpenAI/Python 2.54.0") == (429, 3600)
    assert waits("ai/7.0.170") == (400, None)
