"""What clients do with a denial that must not be retried, and the status that ends the run in each of them.

A denial says `x-should-retry: false`. The OpenAI and Anthropic SDKs obey that and raise the error of a 429. Clients
that do not know the field take a 429 for an invitation to wait and retry, and a router takes it for an overloaded
deployment: they get a 400. `CLIENTS` has one row for each; `docs/reference/clients.md` is generated from it, and
`tests/e2e/test_clients_stop.py` runs them, except Codex and OpenCode, which are too large and were run by hand.

Only denials use this module, so a request that is allowed does not pay for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from breakloop.model.call import Call
from breakloop.model.verdict import Verdict

TOO_MANY: Final = 429
ENDS_RUN: Final = 400  # no client retries it, and no router blames the deployment for it
AUTO: Final = 0  # instead of a status: the one that ends the run in the client at hand
_WAITING_HELPS: Final = frozenset((TOO_MANY, 503))  # statuses whose clients read `Retry-After`

_LITELLM_TIMEOUTS: Final = frozenset((b"600.0", b"6000.0"))  # of a completion and of a router; the SDK's own is 600

_SDKS: Final = (
    b"OpenAI/", b"AsyncOpenAI/", b"AzureOpenAI/", b"AsyncAzureOpenAI/", b"Anthropic/", b"AsyncAnthropic/",
    b"AnthropicBedrock/", b"AsyncAnthropicBedrock/", b"AnthropicVertex/", b"AsyncAnthropicVertex/",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Client:
    """How one client is recognised, and what it does. All conditions that are set have to hold."""

    name: str
    sign: str  # how it is recognised, for the reference page
    agents: tuple[bytes, ...] = ()  # how its User-Agent begins
    body: bytes = b""  # what its requests contain
    check: Callable[[Call], bool] | None = None
    obeys: bool = False  # it does not retry a 429 with `x-should-retry: false`
    wrapped: bool = False  # frameworks that retry on their own send requests with it, too
    otherwise: str = ""  # what it does with a 429, for the reference page

    def is_sender(self, call: Call, agent: bytes) -> bool:
        """Return whether a call comes from this client."""
        if self.agents and not agent.startswith(self.agents):
            return False
        return (not self.body or self.body in call.body) and (self.check is None or self.check(call))


def _is_litellm(call: Call) -> bool:
    """Return whether LiteLLM sends a request with the OpenAI SDK: it asks for the raw response, and its timeout is
    600.0 or 6000.0 if none is set. Its proxy is asynchronous and always gives the timeout as a decimal number. So may
    others that want raw responses: for them a 400 is an error of another name, for LiteLLM a 429 is an outage."""
    get = call.headers.get
    if get("x-stainless-raw-response") != b"true":
        return False
    timeout = get("x-stainless-read-timeout", b"")
    return timeout in _LITELLM_TIMEOUTS or (b"." in timeout and get("user-agent", b"").startswith(b"Async"))


# The first row that matches decides. What is in none of them gets a 429.
CLIENTS: Final = (
    Client(
        "Claude Code",
        "`User-Agent: claude-cli/`",
        (b"claude-cli/",),
        obeys=True,
        otherwise="shows the message and stops",
    ),
    Client(
        "Codex",
        "`User-Agent: codex_` or `codex-`",
        (b"codex_", b"codex-"),
        otherwise="waits and reconnects, five times",
    ),
    Client(
        "OpenCode", "`User-Agent: opencode/`", (b"opencode/",), otherwise="waits for `Retry-After`, again and again"
    ),
    Client(
        "Vercel AI SDK",
        "`User-Agent: ai/` or `ai-sdk/`",
        (b"ai/", b"ai-sdk/"),
        otherwise="waits for `Retry-After`, twice",
    ),
    Client(
        "LangChain.js",
        "`User-Agent: langchainjs`",
        (b"langchainjs",),
        otherwise="retries six times, with growing pauses",
    ),
    Client(
        "LiteLLM", "`User-Agent: litellm/`", (b"litellm/",), otherwise="retries, and puts the deployment into cooldown"
    ),
    Client(
        "LiteLLM with the OpenAI SDK",
        "`x-stainless-raw-response: true`; `x-stainless-read-timeout` is 600.0 or 6000.0, or decimal in an "
        "asynchronous client",
        _SDKS,
        check=_is_litellm,
        otherwise="retries, and puts the deployment into cooldown",
    ),
    Client("Cohere's SDK", "`User-Agent: cohere/`", (b"cohere/",), otherwise="waits for `Retry-After`, twice"),
    Client(
        "AWS SDKs",
        "`User-Agent: Boto3/`, `Botocore/` or `aws-sdk-`",
        (b"Boto3/", b"Botocore/", b"aws-sdk-"),
        otherwise="retry up to four times, with growing pauses",
    ),
    Client(
        "DSPy",
        "`User-Agent: lm15/`",
        (b"lm15/",),
        otherwise="waits for `Retry-After`, three times",
    ),
    Client(
        "smolagents",
        "`Calling tools:` in the body",
        body=b"Calling tools:",
        otherwise="waits for two minutes and more, twice",
    ),
    Client(
        "Strands Agents",
        '`"content":[{"text":` in the body: the text stands before the type',
        _SDKS,
        b'"content":[{"text":',
        otherwise="retries five times, after 4, 8, 16, 32 and 64 seconds",
    ),
    Client(
        "OpenAI and Anthropic SDKs, and frameworks that leave retries to them",
        "`User-Agent: OpenAI/`, `AsyncOpenAI/`, `Anthropic/`, `AsyncAnthropic/` and so on",
        _SDKS,
        obeys=True,
        wrapped=True,
        otherwise="raise their `RateLimitError` and do not retry",
    ),
)


_AGENTS: Final = tuple([agent for client in CLIENTS for agent in client.agents])
_WITHOUT_AGENT: Final = tuple([client for client in CLIENTS if not client.agents])


def client_of(call: Call) -> Client | None:
    """Return the row of the client that sent a call."""
    agent = call.headers.get("user-agent", b"")
    for client in CLIENTS if agent.startswith(_AGENTS) else _WITHOUT_AGENT:
        if client.is_sender(call, agent):
            return client
    return None


# SDKs whose errors are the whole body as text. Version 3 of openai for Python, and what uses it, shows the message.
_shows_body: Final = re.compile(
    rb"(?:Async)?(?:Azure)?OpenAI/Python [0-2]\.|(?:Async)?Anthropic|google-genai-sdk/|mistral-client-|litellm/"
    rb"|claude-cli/|codex[_-]"
).match


def shows_body(call: Call) -> bool:
    """Return whether the client's errors print all of a denial's body, so that a sentence should be in it once."""
    return _shows_body(call.headers.get("user-agent", b"")) is not None


def final_status(call: Call, *, repeated: bool = False) -> int:
    """Return the status of a denial that must not be retried. `repeated`: the same step was denied shortly before, so
    that whatever uses the SDK retries on its own.
    """
    client = client_of(call)
    if client is None or (client.obeys and not (client.wrapped and repeated)):
        return TOO_MANY
    return ENDS_RUN


def end_run(call: Call, verdict: Verdict) -> Verdict:
    """Return a denial that must not be retried with the status that ends the run in its client."""
    verdict.status = final_status(call)
    if not waiting_helps(verdict.status):
        verdict.retry_after_s = None
    return verdict


def waiting_helps(status: int) -> bool:
    """Return whether `Retry-After` belongs to a denial with this status."""
    return status in _WAITING_HELPS
