"""Drop-in clients for Anthropic: they send requests through the gateway.

    from breakloop.anthropic import Anthropic
    client = Anthropic(agent="support-bot")

The gateway is `BREAKLOOP_URL`, or the address of a local `breakloop serve`. A denial is raised as an error that is both
`breakloop.DeniedError` and `anthropic.RateLimitError`, so that existing handlers keep working.
"""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2

from breakloop import exceptions
from breakloop.model.verdict import Decision
from breakloop.sdk.clients import client_options, denial_in, with_agent_headers

__all__ = ["Anthropic", "AsyncAnthropic", "DeniedError", "LoopDetectedError"]

_PATH = ""


class DeniedError(exceptions.DeniedError, anthropic.RateLimitError):
    """A denial that is not a loop: a limit, a budget, a kill switch."""

    def __init__(self, decision: Decision, text: str, response: httpx2.Response, body: object) -> None:
        anthropic.RateLimitError.__init__(self, text, response=response, body=body)
        exceptions.DeniedError.__init__(self, decision, text)


class LoopDetectedError(exceptions.LoopDetectedError, anthropic.RateLimitError):
    """The agent repeats itself."""

    def __init__(self, decision: Decision, text: str, response: httpx2.Response, body: object) -> None:
        anthropic.RateLimitError.__init__(self, text, response=response, body=body)
        exceptions.LoopDetectedError.__init__(self, decision, text)


class Anthropic(anthropic.Anthropic):
    """`anthropic.Anthropic` through the gateway. `agent` and `session` name the caller; other options are the SDK's:

    client = Anthropic(agent="support-bot", session=ticket_id)
    client.messages.create(model="claude-sonnet-5", max_tokens=1024, messages=[...])
    """

    def __init__(self, *, agent: str = "", session: str = "", **options: Any) -> None:
        super().__init__(**client_options(options, _PATH, agent, session))

    @property
    def default_headers(self) -> dict[str, str | anthropic.Omit]:
        return with_agent_headers(super().default_headers)

    def _make_status_error_from_response(self, response: httpx2.Response) -> anthropic.APIStatusError:
        return _with_denial(super()._make_status_error_from_response(response), response)


class AsyncAnthropic(anthropic.AsyncAnthropic):
    """`anthropic.AsyncAnthropic` through the gateway. See `Anthropic`."""

    def __init__(self, *, agent: str = "", session: str = "", **options: Any) -> None:
        super().__init__(**client_options(options, _PATH, agent, session))

    @property
    def default_headers(self) -> dict[str, str | anthropic.Omit]:
        return with_agent_headers(super().default_headers)

    def _make_status_error_from_response(self, response: httpx2.Response) -> anthropic.APIStatusError:
        return _with_denial(super()._make_status_error_from_response(response), response)


def _with_denial(error: anthropic.APIStatusError, response: httpx2.Response) -> anthropic.APIStatusError:
    """Return the SDK's error, or ours if the gateway denied the request."""
    decision = denial_in(response) if isinstance(error, anthropic.RateLimitError) else None
    if decision is None:
        return error
    kind = LoopDetectedError if decision.is_loop else DeniedError
    return kind(decision, str(error), response, error.body)
