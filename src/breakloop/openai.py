"""Drop-in clients for OpenAI: they send requests through the gateway.

    from breakloop.openai import OpenAI
    client = OpenAI(agent="support-bot")

The gateway is `BREAKLOOP_URL`, or the address of a local `breakloop serve`. A denial is raised as an error that is both
`breakloop.DeniedError` and `openai.RateLimitError`, so that existing handlers keep working.
"""

from __future__ import annotations

from typing import Any

import httpx2
import openai

from breakloop import exceptions
from breakloop.model.verdict import Decision
from breakloop.sdk.clients import client_options, denial_in, with_agent_headers

__all__ = ["AsyncOpenAI", "DeniedError", "LoopDetectedError", "OpenAI"]

_PATH = "/v1"


class DeniedError(exceptions.DeniedError, openai.RateLimitError):
    """A denial that is not a loop: a limit, a budget, a kill switch."""

    def __init__(self, decision: Decision, text: str, response: httpx2.Response, body: object) -> None:
        openai.RateLimitError.__init__(self, text, response=response, body=body)
        exceptions.DeniedError.__init__(self, decision, text)


class LoopDetectedError(exceptions.LoopDetectedError, openai.RateLimitError):
    """The agent repeats itself."""

    def __init__(self, decision: Decision, text: str, response: httpx2.Response, body: object) -> None:
        openai.RateLimitError.__init__(self, text, response=response, body=body)
        exceptions.LoopDetectedError.__init__(self, decision, text)


class OpenAI(openai.OpenAI):
    """`openai.OpenAI` through the gateway. `agent` and `session` name the caller; all other options are the SDK's:

    client = OpenAI(agent="support-bot", session=ticket_id)
    client.chat.completions.create(model="gpt-5", messages=[...])
    """

    def __init__(self, *, agent: str = "", session: str = "", **options: Any) -> None:
        super().__init__(**client_options(options, _PATH, agent, session))

    @property
    def default_headers(self) -> dict[str, str | openai.Omit]:
        return with_agent_headers(super().default_headers)

    def _make_status_error_from_response(self, response: httpx2.Response) -> openai.APIStatusError:
        return _with_denial(super()._make_status_error_from_response(response), response)


class AsyncOpenAI(openai.AsyncOpenAI):
    """`openai.AsyncOpenAI` through the gateway. See `OpenAI`."""

    def __init__(self, *, agent: str = "", session: str = "", **options: Any) -> None:
        super().__init__(**client_options(options, _PATH, agent, session))

    @property
    def default_headers(self) -> dict[str, str | openai.Omit]:
        return with_agent_headers(super().default_headers)

    def _make_status_error_from_response(self, response: httpx2.Response) -> openai.APIStatusError:
        return _with_denial(super()._make_status_error_from_response(response), response)


def _with_denial(error: openai.APIStatusError, response: httpx2.Response) -> openai.APIStatusError:
    """Return the SDK's error, or ours if the gateway denied the request."""
    decision = denial_in(response) if isinstance(error, openai.RateLimitError) else None
    if decision is None:
        return error
    kind = LoopDetectedError if decision.is_loop else DeniedError
    return kind(decision, str(error), response, error.body)
