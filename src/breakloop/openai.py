"""Drop-in clients of OpenAI's: `from breakloop.openai import OpenAI`. Made in `breakloop.openai`.

Drop-in clients of OpenAI's (SPEC P-2): the real ones, pointed at the gateway. A denied loop is raised as an error
that is both `breakloop.LoopDetectedError` and `openai.RateLimitError`, so that existing handlers keep working.
"""

from __future__ import annotations

from typing import Any

import httpx2
import openai

from breakloop import exceptions
from breakloop.model.verdict import Decision
from breakloop.sdk import http

_PATH = "/v1"


class DeniedError(exceptions.DeniedError, openai.RateLimitError):
    """A denial other than a loop's: a limit, a budget, a kill switch."""

    def __init__(self, decision: Decision, text: str, response: httpx2.Response, body: object) -> None:
        openai.RateLimitError.__init__(self, text, response=response, body=body)
        exceptions.DeniedError.__init__(self, decision, text)


class LoopDetectedError(exceptions.LoopDetectedError, openai.RateLimitError):
    """The agent repeats itself."""

    def __init__(self, decision: Decision, text: str, response: httpx2.Response, body: object) -> None:
        openai.RateLimitError.__init__(self, text, response=response, body=body)
        exceptions.LoopDetectedError.__init__(self, decision, text)


class OpenAI(openai.OpenAI):
    """`openai.OpenAI` by way of the gateway. `agent` and `session` name who speaks, the rest is as it was."""

    def __init__(self, *, agent: str = "", session: str = "", **options: Any) -> None:
        super().__init__(**http.options(options, _PATH, agent, session))

    @property
    def default_headers(self) -> dict[str, str | openai.Omit]:
        """The client's own, and the names of the `with` block around."""
        return http.named(super().default_headers)

    def _make_status_error_from_response(self, response: httpx2.Response) -> openai.APIStatusError:
        return _ours(super()._make_status_error_from_response(response), response)


class AsyncOpenAI(openai.AsyncOpenAI):
    """`openai.AsyncOpenAI` by way of the gateway."""

    def __init__(self, *, agent: str = "", session: str = "", **options: Any) -> None:
        super().__init__(**http.options(options, _PATH, agent, session))

    @property
    def default_headers(self) -> dict[str, str | openai.Omit]:
        """The client's own, and the names of the `with` block around."""
        return http.named(super().default_headers)

    def _make_status_error_from_response(self, response: httpx2.Response) -> openai.APIStatusError:
        return _ours(super()._make_status_error_from_response(response), response)


def _ours(error: openai.APIStatusError, response: httpx2.Response) -> openai.APIStatusError:
    """The SDK's error, or where the gateway has denied, ours, which is one too."""
    decision = http.denial_in(response) if isinstance(error, openai.RateLimitError) else None
    if decision is None:
        return error
    kind = LoopDetectedError if decision.is_loop else DeniedError
    return kind(decision, str(error), response, error.body)


__all__ = ["AsyncOpenAI", "DeniedError", "LoopDetectedError", "OpenAI"]
